"""Any connection's output: room that is measured, and replies that the log refuses."""

from collections.abc import Callable

import pytest

from braidmq.server.engine.connection import Connection, Limits, Output, WaitingReply
from tests.integration.blip.peer import (
    PUBLISH,
    credit,
    parse,
    ping,
    publish,
    subscribe,
)
from tests.unit.server.by_hand import Hand, HandWire


def frames(*raw: bytes) -> list[tuple[int, int, bytes]]:
    return [parse(one)[0] for one in raw]


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


STRANDS_OWN: dict[str, Callable[[Output], object]] = {
    "deliveries": lambda output: output.collect(),
    "a refusal": lambda output: output.refuse(1, [], 1, "why"),
    "a write": lambda output: output.flush(),
}


def bare_output(hand: Hand) -> Output:
    """Return the output of a connection without a strand."""
    limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=0)
    wire = HandWire()
    return Connection(hand.engine, wire, limits, Output(hand.engine, wire, limits)).output


@pytest.mark.parametrize("ask", STRANDS_OWN.values(), ids=STRANDS_OWN)
def test_without_a_strand_nothing_is_written(ask: Callable[[Output], object]) -> None:
    """A strand that forgets to encode deliveries or refusals raises."""
    output = bare_output(Hand())
    output.replies.append(WaitingReply(1, b"reply"))

    with pytest.raises(NotImplementedError):
        ask(output)


def test_a_connection_is_listed_once_for_the_next_commit() -> None:
    """However many replies wait, and again once the engine has taken it off its list."""
    hand = Hand()
    output = bare_output(hand)
    output.reply_after(WaitingReply(1, b"a"))
    output.reply_after(WaitingReply(2, b"b"))
    assert [output.connection] == hand.engine.waiting
    output.is_listed = False
    output.reply_after(WaitingReply(3, b"c"))

    assert [output.connection] * 2 == hand.engine.waiting


def test_a_reply_behind_one_that_waits_keeps_its_place() -> None:
    """It waits for the connection's newest record, so that a refusal comes before it."""
    output = bare_output(Hand())
    output.connection.last_id = 7
    output.reply_after(WaitingReply(7, b"a"))
    output.reply(b"b")

    assert [(7, b"a"), (7, b"b")] == [(one.after_id, one.data) for one in output.replies]


def test_what_the_log_did_not_refuse_waits_on() -> None:
    """A refusal from an id on leaves the replies before it, in the list that is shared."""
    output = bare_output(Hand())
    shared = output.replies
    output.reply_after(WaitingReply(1, b"a"))
    output.refuse(2, [], 3, "why")

    assert [(1, b"a")] == [(one.after_id, one.data) for one in shared]
    assert shared is output.replies
