"""What a Blip peer receives when the log refuses a batch."""

from tests.integration.blip.peer import (
    ack,
    nack,
    ping,
    pong,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import DISK_FULL_NACK, Hand, frames


def test_refusals_are_sent_in_request_order() -> None:
    """Each refused request gets its NACK in its place; PONGs stay between them."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2) + publish(3, "t", b"b"))
    connection.receive(publish(4, "", b"malformed") + publish(5, "t", b"c") + ping(6))

    assert [] == wire.take()
    hand.fill_disk()
    assert wire.take() == frames(
        nack(1, 500, DISK_FULL_NACK),
        pong(2),
        nack(3, 500, DISK_FULL_NACK),
        nack(4, 400, "empty topic"),
        nack(5, 500, DISK_FULL_NACK),
        pong(6),
    )


def test_a_publish_without_a_ping_is_nacked_too() -> None:
    """A publisher that did not ask for a PONG still gets its NACK."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + publish(2, "t", b"b"))
    hand.fill_disk()

    assert wire.take() == frames(nack(1, 500, DISK_FULL_NACK), nack(2, 500, DISK_FULL_NACK))


def test_each_connection_gets_its_own_refusals() -> None:
    """A refused batch holds messages of several connections."""
    hand = Hand()
    one, one_wire = hand.connect()
    two, two_wire = hand.connect()
    one.receive(publish(1, "t", b"a") + ping(2))
    two.receive(publish(3, "t", b"b") + ping(4))
    hand.fill_disk()

    assert one_wire.take() == frames(nack(1, 500, DISK_FULL_NACK), pong(2))
    assert two_wire.take() == frames(nack(3, 500, DISK_FULL_NACK), pong(4))


def test_a_subscribe_is_refused_with_its_batch() -> None:
    """A subscription whose record was refused does not exist, and its id is used again."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t") + publish(2, "t", b"memory only", 0) + ping(3))
    hand.fill_disk()
    assert wire.take() == frames(nack(1, 500, "subscribe failed: the disk is full"), pong(3))
    hand.engine.room_made()
    connection.receive(subscribe(4, "t"))
    hand.commit()

    assert wire.take() == frames(ack(4, 1))
