"""Subscriptions: their initial state, memory and lease."""

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.subscriptions import Consumer
from braidmq.broker.delivery.windows import ENTRY_BYTES
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, subscription_at


def test_a_subscription_starts_after_its_own_record() -> None:
    """Only messages above its own id belong to it."""
    subscription = subscription_at(7)

    assert (7, 7, 7) == (
        subscription.id,
        subscription.position.cursor,
        subscription.position.tail,
    )
    assert [(0, 7)] == subscription.settled_ranges(6)


def test_a_new_peer_is_empty() -> None:
    """It has no principal, no room and no deliveries."""
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


def test_a_subscription_far_behind_holds_only_a_window() -> None:
    """Thousands of messages wait in the log, one window of them in memory."""
    drive = Drive(Settings(window=4))
    subscription = drive.subscribe("a").subscription
    drive.publish_many("a", 3_000)

    assert 4 == len(subscription.ready)
    assert (
        4 * len(b"\0\1a1")
        == subscription.held_bytes
        == drive.broker.dispatch.windows.held_bytes - 4 * ENTRY_BYTES
    )


def test_credit_renews_a_lease_even_while_the_log_is_full() -> None:
    """That time must not count against it later."""
    drive = Drive(Settings(lease_us=60_000_000))
    consumer = drive.subscribe("a")
    drive.credit(consumer, 1)
    drive.publish("b")
    drive.refuse()
    drive.advance(120_000_000)
    drive.disconnect(consumer)
    drive.broker.accept_again()
    drive.advance(2_000_000)

    assert [1] == list(drive.broker.subscriptions.by_id)
