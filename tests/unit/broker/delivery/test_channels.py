"""Channels: the state they report, and what a restart makes of it."""

from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.channels import SETTLED, Delivery, Entry, Position
from braidmq.broker.topics import Message, Topic
from tests.unit.broker.drive import Drive, subscription_at


def test_a_settled_entry_releases_its_message() -> None:
    """The entry may still be in a heap or a lane, but must not keep the payload alive."""
    subscription = subscription_at(1)
    message = Message(subscription.topic, 1, b"\0\1apayload")
    entry = Entry(subscription, message, 1)
    entry.due_us = 5
    entry.finish()

    assert (SETTLED, 0, None) == (entry.state, entry.due_us, entry.consumer)
    assert b"" == entry.message.body


def test_settled_ranges_leave_out_waiting_and_open_messages() -> None:
    """A snapshot of these ranges alone restores the same messages."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("b")
    first, second, third, fourth = drive.publish_many("a", 4)
    drive.poll_ids(consumer, 3)
    drive.ack(consumer, second)

    assert (3, 4, 5, 6) == (first, second, third, fourth)
    assert [(0, 2), (3, 4)] == consumer.subscription.settled_ranges(fourth)

    drive.ack(consumer, first)
    drive.ack(consumer, third)

    assert [(0, 5)] == consumer.subscription.settled_ranges(fourth)


def test_settled_ranges_extend_beyond_the_cursor() -> None:
    """After a restart, part of the known settled ids lies ahead of the cursor."""
    subscription = subscription_at(1)
    subscription.position.settled = Settled(1)
    subscription.position.settled.add(5, 9)
    subscription.position.settled.add(12, 14)
    subscription.position.cursor = 7
    subscription.topic.last_id = 20
    subscription.position.behind = True

    assert [(0, 7), (7, 9), (12, 14)] == subscription.settled_ranges(20)


def test_a_tag_from_before_a_restart_is_known_to_be_open() -> None:
    """If it lies between the cursor and the last delivery, and is not settled."""
    subscription = subscription_at(1)

    assert not subscription.position.is_known_open(3)

    subscription.position.settled = Settled(2)
    subscription.position.settled.add(4, 5)
    subscription.position.handed_id = 6

    assert [False, True, True, False, True, False] == [
        subscription.position.is_known_open(tag) for tag in range(1, 7 + 1) if tag != 2
    ]


def test_progress_accumulates_until_it_is_recorded() -> None:
    """Everything between two records goes into the same object."""
    subscription = subscription_at(1)

    assert subscription.made_progress() is subscription.made_progress()


def test_a_delivery_holds_message_correlation_id_and_qos() -> None:
    """The QoS is the effective one."""
    message = Message(Topic("a"), 1, b"")
    delivery = Delivery(message, 9, 1)

    assert (message, 9, 1) == (delivery.message, delivery.correlation_id, delivery.qos)


def test_a_quiet_subscription_does_not_hold_the_log_back() -> None:
    """No message of its topic waits, so everything committed counts as settled."""
    assert [(0, 900)] == subscription_at(7).settled_ranges(900)


def test_skipping_a_backlog_forgets_its_attempts() -> None:
    """A purge skips to the newest message, and never back."""
    position = Position()
    position.begin(5)
    position.behind = True
    position.known_attempts = {7: 2}
    position.skip_to(9)
    forward = (position.cursor, position.tail, position.behind, position.known_attempts)
    position.skip_to(3)

    assert (9, 9, False, {}) == forward
    assert 9 == position.cursor


def test_recovery_starts_at_the_floor_and_keeps_the_settled_ids_above_it() -> None:
    """It forgets the attempts of settled messages; a channel not behind needs no ranges."""
    subscription = subscription_at(1)
    subscription.topic.last_id = 9
    subscription.position.settled = Settled(3)
    made = Progress()
    made.handed_id, made.ranges, made.attempts = 8, [(4, 5)], {5: 2, 7: 3}
    subscription.replay_progress(made)
    subscription.recover(100)
    behind = subscription.position
    quiet = subscription_at(2)
    quiet.position.settled = Settled(2)
    quiet.recover(100)

    assert (3, 3, True, 8) == (behind.cursor, behind.tail, behind.behind, behind.handed_id)
    assert {7: 3} == behind.known_attempts
    assert not quiet.position.behind
    assert quiet.position.settled is None


def test_a_subscription_has_no_journal_and_no_queue() -> None:
    """It records its own progress, and is not part of a queue."""
    subscription = subscription_at(1)

    assert subscription.journal is None
    assert subscription.queue_of() is None


def test_an_idle_channel_holds_no_memory_for_messages() -> None:
    """Not before its first message, and not for long after its last."""
    drive = Drive()
    idle = drive.subscribe("a").subscription
    consumer = drive.subscribe("b")
    used = consumer.subscription
    ids = drive.publish_many("b", 2)
    drive.publish("b", qos=0)
    drive.poll_id(consumer)
    in_use = (used.ready, used.volatile, used.in_flight)
    before = (idle.ready, idle.volatile, idle.in_flight)
    for message_id in [*ids, 0]:
        drive.poll_id(consumer)
        drive.ack(consumer, message_id)
    drive.advance(2_000_000)
    after = (used.ready, used.volatile, used.in_flight)

    assert [False] * 3 == [one is other for one, other in zip(in_use, before, strict=True)]
    assert [True] * 3 == [one is other for one, other in zip(after, before, strict=True)]
