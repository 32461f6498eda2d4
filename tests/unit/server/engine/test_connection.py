"""Connections that must wait: for the log, for their rate limit, for their peer.

This holds for every strand; the tests use Blip.
"""

from collections.abc import Callable

import pytest

from braidmq.broker.settings import Settings
from braidmq.server.engine.connection import (
    READ_AHEAD_BYTES,
    Connection,
    Limits,
    Output,
)
from tests.integration.blip.peer import (
    credit,
    ping,
    poll,
    pong,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import Hand, HandWire, frames

LEFT_TO_THE_STRAND: dict[str, Callable[[Connection], object]] = {
    "authentication": lambda connection: connection.is_authenticated,
    "receiving": lambda connection: connection.receive(b"x"),
    "waking": lambda connection: connection.wake(),
}


def test_a_waiting_connection_reads_ahead_up_to_a_limit() -> None:
    """Bytes beyond the read-ahead stay in the kernel."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t") + poll(2, 1))
    connection.receive(ping(3) * (READ_AHEAD_BYTES // len(ping(3))))
    assert wire.is_reading()
    connection.receive(ping(3) * 2)
    assert not wire.is_reading()
    hand.commit()

    assert wire.is_reading()
    assert 1 + READ_AHEAD_BYTES // len(ping(3)) + 2 == len(wire.take())


def test_a_publisher_waits_when_too_much_is_uncommitted() -> None:
    """It is not refused: the broker takes its messages once half of the limit is free again."""
    hand = Hand(Settings(memory_bytes=1000))
    connection, wire = hand.connect()
    connection.receive(b"".join(publish(n, "t", bytes(300)) for n in range(8)) + ping(9))
    assert 4 == len(hand.engine.broker.outgoing.pending())
    while not wire.written:
        hand.commit()

    assert wire.take() == frames(pong(9))
    assert 8 == hand.committed_id


def test_a_publisher_above_its_rate_continues_later() -> None:
    """The engine wakes it when it has earned a token."""
    hand = Hand(messages_per_s=2)
    connection, wire = hand.connect()
    connection.receive(b"".join(publish(n, "t", b"", 0) for n in range(3)) + ping(9))
    ((woken, delay_us),) = hand.wakes
    assert [] == wire.take()
    hand.now_us += delay_us
    woken.earn()

    assert wire.take() == frames(pong(9))
    assert 400_000 < delay_us <= 500_001


def test_a_publisher_above_its_rate_has_one_timer() -> None:
    """However often other events wake it: each extra timer would outlive its purpose."""
    hand = Hand(messages_per_s=2)
    connection, _ = hand.connect()
    connection.receive(subscribe(1, "t", 0))
    hand.commit()
    connection.receive(credit(2, 1, 100))
    connection.receive(b"".join(publish(n, "u", b"", 0) for n in range(9)))
    source, _ = hand.connect()
    source.receive(publish(1, "t", b"", 0))
    source.receive(publish(2, "t", b"", 0))

    assert 1 == len(hand.wakes)


@pytest.mark.parametrize("ask", LEFT_TO_THE_STRAND.values(), ids=LEFT_TO_THE_STRAND)
def test_a_connection_without_a_strand_raises(ask: Callable[[Connection], object]) -> None:
    """A strand that lacks one of these methods must not lose bytes silently."""
    limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=0)
    engine, wire = Hand().engine, HandWire()
    connection = Connection(engine, wire, limits, Output(engine, wire, limits))

    with pytest.raises(NotImplementedError):
        ask(connection)
