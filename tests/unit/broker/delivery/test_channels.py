"""Channels at rest: what they say of themselves, and what a restart makes of them."""

from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.channels import SETTLED, Delivery, Entry, Position
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic
from tests.unit.broker.drive import Drive


def subscription_at(subscription_id: int) -> Subscription:
    subscription = Subscription(Topic("a"), 1, "ada", Rules(Settings()))
    subscription.begin(subscription_id)
    return subscription


def test_a_settled_entry_lets_its_message_go() -> None:
    """It may still be listed in a heap or a lane; the payload must not be."""
    subscription = subscription_at(1)
    message = Message(subscription.topic, 1, b"\0\1apayload")
    entry = Entry(subscription, message, 1)
    entry.due_us = 5
    entry.finish()

    assert (SETTLED, 0, None) == (entry.state, entry.due_us, entry.consumer)
    assert b"" == entry.message.body


def test_ranges_stand_for_all_but_what_is_waiting_or_open() -> None:
    """A snapshot of them, and of nothing else, brings the same messages back."""
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


def test_ranges_go_on_where_the_log_was_not_read_again() -> None:
    """After a restart what is known to be settled lies partly ahead of the cursor."""
    subscription = subscription_at(1)
    subscription.position.settled = Settled(1)
    subscription.position.settled.add(5, 9)
    subscription.position.settled.add(12, 14)
    subscription.position.cursor = 7
    subscription.position.behind = True

    assert [(0, 7), (7, 9), (12, 14)] == subscription.settled_ranges(20)


def test_a_tag_of_before_a_restart_is_known_until_it_is_read() -> None:
    """Between the cursor and the newest hand-out, unless it is settled."""
    subscription = subscription_at(1)

    assert not subscription.position.is_known_open(3)

    subscription.position.settled = Settled(2)
    subscription.position.settled.add(4, 5)
    subscription.position.handed_id = 6

    assert [False, True, True, False, True, False] == [
        subscription.position.is_known_open(tag) for tag in range(1, 7 + 1) if tag != 2
    ]


def test_progress_is_one_until_it_is_recorded() -> None:
    """What happens between two records goes into one of them."""
    subscription = subscription_at(1)

    assert subscription.made_progress() is subscription.made_progress()


def test_a_delivery_says_what_goes_out() -> None:
    """Message, correlation id, effective QoS."""
    message = Message(Topic("a"), 1, b"")
    delivery = Delivery(message, 9, 1)

    assert (message, 9, 1) == (delivery.message, delivery.correlation_id, delivery.qos)


def test_a_quiet_subscription_does_not_hold_the_log_back() -> None:
    """Nothing of its topic waits in the log, so everything that is committed is settled."""
    assert [(0, 900)] == subscription_at(7).settled_ranges(900)


def test_a_skipped_backlog_leaves_nothing_known_of_it() -> None:
    """A purge goes to the newest message, and never back."""
    position = Position()
    position.begin(5)
    position.behind = True
    position.known_attempts = {7: 2}
    position.skip_to(9)
    forward = (position.cursor, position.tail, position.behind, position.known_attempts)
    position.skip_to(3)

    assert (9, 9, False, {}) == forward
    assert 9 == position.cursor


def test_a_restart_begins_at_the_floor_and_knows_what_is_settled_above_it() -> None:
    """Attempts of settled messages are forgotten; a channel that is not behind needs none."""
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


def test_a_channel_is_its_own_journal_unless_a_kind_says_otherwise() -> None:
    """Blip's is no part of a queue."""
    subscription = subscription_at(1)

    assert subscription.journal is None
    assert subscription.queue_of() is None
