"""What a Blip peer is told when the log refuses what it waits for."""

from braidmq.base.errors import LogFullError
from tests.integration.blip.peer import (
    ack,
    nack,
    parse,
    ping,
    pong,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import Hand

FULL = "durable publish failed: the disk is full"


def full() -> LogFullError:
    return LogFullError("the disk is full")


def frames(*raw: bytes) -> list[tuple[int, int, bytes]]:
    return [parse(one)[0] for one in raw]


def test_a_refusal_is_told_in_request_order() -> None:
    """Waiting replies become NACKs where their requests stood; PONGs stay between them."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2) + publish(3, "t", b"b"))
    connection.receive(publish(4, "", b"malformed") + publish(5, "t", b"c") + ping(6))

    assert [] == wire.take()
    hand.fail(full())
    assert wire.take() == frames(
        nack(1, 500, FULL),
        pong(2),
        nack(3, 500, FULL),
        nack(4, 400, "empty topic"),
        nack(5, 500, FULL),
        pong(6),
    )


def test_a_publish_without_a_fence_is_refused_too() -> None:
    """Who did not ask for a PONG is told all the same."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + publish(2, "t", b"b"))
    hand.fail(full())

    assert wire.take() == frames(nack(1, 500, FULL), nack(2, 500, FULL))


def test_each_connection_is_told_of_its_own() -> None:
    """A refused batch holds the messages of many."""
    hand = Hand()
    one, one_wire = hand.connect()
    two, two_wire = hand.connect()
    one.receive(publish(1, "t", b"a") + ping(2))
    two.receive(publish(3, "t", b"b") + ping(4))
    hand.fail(full())

    assert one_wire.take() == frames(nack(1, 500, FULL), pong(2))
    assert two_wire.take() == frames(nack(3, 500, FULL), pong(4))


def test_a_subscribe_is_refused_with_its_batch() -> None:
    """A subscription whose record was refused does not exist, and its id is given anew."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t") + publish(2, "t", b"memory only", 0) + ping(3))
    hand.fail(full())
    assert wire.take() == frames(nack(1, 500, "subscribe failed: the disk is full"), pong(3))
    hand.engine.room_made()
    connection.receive(subscribe(4, "t"))
    hand.commit()

    assert wire.take() == frames(ack(4, 1))
