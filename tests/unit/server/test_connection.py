"""What a connection does while the log hesitates or refuses; the rest is seen over sockets."""

from braidmq.base.errors import LogFullError
from braidmq.broker.settings import Settings
from braidmq.broker.subscriptions import SUBSCRIPTIONS_MAX
from braidmq.server.connection import READ_AHEAD_BYTES
from tests.integration.blip.peer import (
    PUBLISH,
    ack,
    credit,
    nack,
    parse,
    ping,
    poll,
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
    assert wire.take() == frames(nack(1, 500, FULL), pong(3))
    hand.engine.room_made()
    connection.receive(subscribe(4, "t"))
    hand.commit()

    assert wire.take() == frames(ack(4, 1))


def test_a_pong_behind_an_acknowledgement_waits_for_its_progress() -> None:
    """The acknowledgement is written again, from the reserve; only then comes the PONG."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    connection.receive(publish(2, "t", b"a"))
    hand.commit()
    connection.receive(poll(3, 1) + ack(2, 1) + publish(4, "t", b"b") + ping(5))
    wire.take()
    hand.fail(full())

    assert wire.take() == frames(nack(4, 500, FULL))
    assert [True] == hand.log.urgent[-1:]
    hand.commit()
    assert wire.take() == frames(pong(5))


def test_while_the_log_is_full_memory_and_acknowledgements_go_on() -> None:
    """Durable publishes are refused at once, QoS 0 and ACK are not; room makes it good."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    connection.receive(publish(2, "t", b"a"))
    hand.commit()
    connection.receive(publish(3, "t", b"b"))
    hand.fail(full())
    wire.take()
    connection.receive(
        publish(4, "t", b"c") + publish(5, "t", b"m", 0) + poll(6, 1) + poll(7, 1)
    )
    assert wire.take() == frames(
        nack(4, 500, FULL), publish(2, "t", b"a"), publish(7, "t", b"m", 0)
    )
    connection.receive(ack(2, 1) + ping(8))
    hand.commit()
    assert wire.take() == frames(pong(8))
    hand.engine.room_made()
    connection.receive(publish(9, "t", b"d") + ping(10))
    hand.commit()
    assert wire.take() == frames(pong(10))


def test_a_connection_that_waits_is_read_from_up_to_a_bound() -> None:
    """Behind a command that waits, more than the read-ahead is left to the kernel."""
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
    """It is not refused: its messages follow when half of the bound is free again."""
    hand = Hand(Settings(memory_bytes=1000))
    connection, wire = hand.connect()
    connection.receive(b"".join(publish(n, "t", bytes(300)) for n in range(8)) + ping(9))
    assert 4 == len(hand.engine.broker.outgoing.pending())
    while not wire.written:
        hand.commit()

    assert wire.take() == frames(pong(9))
    assert 8 == hand.committed_id


def test_the_rate_limit_asks_to_be_woken() -> None:
    """A publisher above its rate goes on when a token has been earned."""
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
    """However often it is woken for other reasons: each timer would outlive its wake."""
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


def test_credit_that_waited_behind_a_fence_is_void_after_the_half_close() -> None:
    """Credit ends with the peer's input, also credit that was not granted by then."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    wire.take()
    connection.receive(publish(2, "t", b"a") + ping(3) + credit(4, 1, 100) + ping(5))
    connection.finish_input()
    hand.commit()

    assert wire.take() == frames(pong(3), pong(5))
    assert wire.is_closed


def test_subscriptions_have_a_bound() -> None:
    """One more is refused; nobody's memory grows without end."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    wire.take()
    subscriptions = hand.engine.broker.subscriptions
    subscriptions.update(dict.fromkeys(range(2, SUBSCRIPTIONS_MAX + 1), subscriptions[1]))
    connection.receive(subscribe(2, "t"))

    text = "durable publish failed: too many subscriptions"
    assert wire.take() == frames(nack(2, 500, text))


def test_pushes_go_on_when_the_wire_took_everything() -> None:
    """The transport calls only when the buffer was above its bound: nobody else would push."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t", 0))
    hand.commit()
    connection.receive(b"".join(publish(2, "t", bytes(600_000), 0) for _ in range(9)))
    wire.take()
    connection.receive(credit(3, 1, 9))

    assert [PUBLISH] * 9 == [one.kind for one in wire.take()]


def test_pushes_stop_when_the_wire_is_full_and_go_on_when_it_is_not() -> None:
    """Full means full: nothing is written until the transport says that there is room."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t", 0))
    hand.commit()
    connection.set_writable(False)
    connection.receive(credit(3, 1, 9))
    connection.set_writable(True)
    connection.set_writable(False)
    publisher, _ = hand.connect()
    publisher.receive(publish(2, "t", b"x", 0))
    wire.take()
    assert [] == wire.take()
    connection.set_writable(True)

    assert wire.take() == frames(publish(3, "t", b"x", 0))


def test_nothing_is_written_after_the_end() -> None:
    """A peer that is gone gets no answers, though its publishes are committed."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2))
    connection.lost()
    hand.commit()

    assert [] == wire.take()
    assert 1 == hand.engine.broker.stats.published
