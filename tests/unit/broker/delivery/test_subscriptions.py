"""Subscriptions at rest: what they say of themselves."""

from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.rules import of_settings
from braidmq.broker.delivery.subscriptions import (
    SETTLED,
    Consumer,
    Delivery,
    Entry,
    Peer,
    Subscription,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic
from tests.unit.broker.drive import Drive


def subscription_at(subscription_id: int) -> Subscription:
    subscription = Subscription(Topic("a"), 1, "ada", of_settings(Settings()))
    subscription.begin(subscription_id)
    return subscription


def test_a_subscription_begins_behind_its_own_record() -> None:
    """Only messages above its own id are its."""
    subscription = subscription_at(7)

    assert (7, 7, 7) == (subscription.id, subscription.cursor, subscription.tail)
    assert [(0, 7)] == subscription.settled_ranges(6)


def test_a_quiet_subscription_does_not_hold_the_log_back() -> None:
    """Nothing of its topic waits in the log, so everything that is committed is settled."""
    assert [(0, 900)] == subscription_at(7).settled_ranges(900)


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
    subscription.settled = Settled(1)
    subscription.settled.add(5, 9)
    subscription.settled.add(12, 14)
    subscription.cursor = 7
    subscription.behind = True

    assert [(0, 7), (7, 9), (12, 14)] == subscription.settled_ranges(20)


def test_a_tag_of_before_a_restart_is_known_until_it_is_read() -> None:
    """Between the cursor and the newest hand-out, unless it is settled."""
    subscription = subscription_at(1)

    assert not subscription.backlog_is_known_open(3)

    subscription.settled = Settled(2)
    subscription.settled.add(4, 5)
    subscription.handed_id = 6

    assert [False, True, True, False, True, False] == [
        subscription.backlog_is_known_open(tag) for tag in range(1, 7 + 1) if tag != 2
    ]


def test_progress_is_one_until_it_is_recorded() -> None:
    """What happens between two records goes into one of them."""
    subscription = subscription_at(1)

    assert subscription.made_progress() is subscription.made_progress()


def test_a_peer_begins_with_nothing() -> None:
    """No principal, no room, nothing to send."""
    peer = Peer()
    consumer = Consumer(peer, subscription_at(1))

    assert peer.principal is None
    assert (0, [], {}, False) == (
        peer.room_bytes,
        peer.deliveries,
        peer.consumers,
        peer.touched,
    )
    assert (0, 0, 0, False) == (
        consumer.credit,
        consumer.correlation_id,
        consumer.held,
        consumer.isolated,
    )


def test_a_delivery_says_what_goes_out() -> None:
    """Message, correlation id, effective QoS."""
    message = Message(Topic("a"), 1, b"")
    delivery = Delivery(message, 9, 1)

    assert (message, 9, 1) == (delivery.message, delivery.correlation_id, delivery.qos)


def test_a_subscription_far_behind_costs_a_cursor() -> None:
    """Thousands wait in the log, a window of them in memory."""
    drive = Drive(Settings(window=4))
    subscription = drive.subscribe("a").subscription
    drive.publish_many("a", 3_000)

    assert 4 == len(subscription.ready)
    assert (
        4 * len(b"\0\1a1")
        == subscription.held_bytes
        == drive.broker.deliverer.windows.held_bytes
    )
