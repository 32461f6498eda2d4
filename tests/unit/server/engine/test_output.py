"""The output of any connection: back-pressure, and replies that the log refuses."""

from collections.abc import Callable

import pytest

from braidmq.server.engine.connection import Connection, Limits, Output, WaitingReply
from tests.integration.blip.peer import (
    PUBLISH,
    credit,
    ping,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import Hand, HandWire, frames


def test_pushes_continue_when_the_wire_takes_everything() -> None:
    """The transport calls back only after its buffer was full; until then pushes go on."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t", 0))
    hand.commit()
    connection.receive(b"".join(publish(2, "t", bytes(600_000), 0) for _ in range(9)))
    wire.take()
    connection.receive(credit(3, 1, 9))

    assert [PUBLISH] * 9 == [one.kind for one in wire.take()]


def test_pushes_stop_while_the_wire_is_full() -> None:
    """Nothing is written until the transport reports room."""
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


def test_nothing_is_written_to_a_lost_connection() -> None:
    """A peer that is gone gets no replies, though its publishes are committed."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2))
    connection.lost()
    hand.commit()

    assert [] == wire.take()
    assert 1 == hand.engine.broker.stats.published


LEFT_TO_THE_STRAND: dict[str, Callable[[Output], object]] = {
    "deliveries": lambda output: output.collect(),
    "a refusal": lambda output: output.refuse(1, [], 1, "why"),
    "a write": lambda output: output.flush(),
}


def bare_output(hand: Hand) -> Output:
    """Return the output of a connection without a strand."""
    limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=0)
    wire = HandWire()
    return Connection(hand.engine, wire, limits, Output(hand.engine, wire, limits)).output


@pytest.mark.parametrize("ask", LEFT_TO_THE_STRAND.values(), ids=LEFT_TO_THE_STRAND)
def test_an_output_without_a_strand_raises(ask: Callable[[Output], object]) -> None:
    """A strand must encode deliveries and refusals itself."""
    output = bare_output(Hand())
    output.replies.append(WaitingReply(1, b"reply"))

    with pytest.raises(NotImplementedError):
        ask(output)


def test_a_connection_is_listed_once_for_the_next_commit() -> None:
    """However many replies wait, and again once the engine has taken it off the list."""
    hand = Hand()
    output = bare_output(hand)
    output.reply_after(WaitingReply(1, b"a"))
    output.reply_after(WaitingReply(2, b"b"))
    assert [output.connection] == hand.engine.waiting
    output.is_listed = False
    output.reply_after(WaitingReply(3, b"c"))

    assert [output.connection] * 2 == hand.engine.waiting


def test_a_reply_behind_a_waiting_one_keeps_its_place() -> None:
    """It waits for the connection's newest record, so that its refusal would be sent first."""
    output = bare_output(Hand())
    output.connection.last_id = 7
    output.reply_after(WaitingReply(7, b"a"))
    output.reply(b"b")

    assert [(7, b"a"), (7, b"b")] == [(one.after_id, one.data) for one in output.replies]


def test_replies_that_the_log_did_not_refuse_keep_waiting() -> None:
    """A refusal from an id on leaves the replies before that id, in the shared list."""
    output = bare_output(Hand())
    shared = output.replies
    output.reply_after(WaitingReply(1, b"a"))
    output.refuse(2, [], 3, "why")

    assert [(1, b"a")] == [(one.after_id, one.data) for one in shared]
    assert shared is output.replies
