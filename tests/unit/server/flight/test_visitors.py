"""Visitors of the Flight endpoint: who holds too much, who leaves, and whose calls stall."""

import socket
from collections.abc import Iterator
from time import monotonic

import pytest

from braidmq.base.limits import MIB
from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import UNFINISHED_BYTES, Quotas
from braidmq.server.flight import visitors as flight_visitors
from braidmq.server.flight.calls import Call
from braidmq.server.flight.inspection import FLIGHT_STREAMS
from braidmq.server.flight.messages import MESSAGE_BYTES_MAX
from braidmq.server.flight.visitors import FLIGHT_MEMORY, Ledger, Visitor, to_leave, to_yield
from braidmq.transport.door import Place
from braidmq.transport.relay import RefusedBytesError, Relay, Relayed
from tests.unit.server.flight.frames import BODY, call, data, frame, message, varint
from tests.unit.server.flight.waiting import until

ANNA = Principal("anna", publish=[], subscribe=[])
BERT = Principal("bert", publish=[], subscribe=[])
CARL = Principal("carl", publish=[], subscribe=[], quotas=Quotas({UNFINISHED_BYTES: 2 * MIB}))


class World:
    """A relay and a ledger with visitors."""

    def __init__(self) -> None:
        self.relay = Relay("test")
        self.ledger = Ledger(0)
        self.ends: list[socket.socket] = []

    def visitor(self, principal: Principal | None = None, address: str = "a") -> Visitor:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        ours.setblocking(False)

        def make(visitor: Visitor) -> Relayed:
            return Relayed(
                ours,
                preface=b"x",
                connect=lambda _relayed: socket.socket(),
                closed=lambda _relayed: self.ledger.leave(visitor),
            )

        found = Visitor(self.ledger, Place(None, address), "peer", make)
        found.principal = principal
        self.ledger.enter(found)
        self.relay.carry(found.relayed)
        return found


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.relay.close()
    for end in found.ends:
        end.close()


def send(visitor: Visitor, size: int, stream: int = 1) -> None:
    """Let a visitor send so much of a message that is longer."""
    start = message(varint(BODY << 3 | 2) + varint(60 * MIB), size=60 * MIB + 10)
    said = call(stream, "DoPut", "k") + data(stream, start, ends=False)
    frames = [frame(0, stream, bytes(min(MIB, size - at))) for at in range(0, size, MIB)]
    visitor.up(memoryview(said + b"".join(frames)))


def test_a_quota_bounds_what_a_principal_holds(world: World) -> None:
    """On all of its connections; what ends makes room, and strangers have no quota."""
    first, second = world.visitor(CARL), world.visitor(CARL)
    send(world.visitor(), 3 * MIB)
    send(first, MIB)
    with pytest.raises(RefusedBytesError, match="quota unfinished_bytes = 2097152 of 'carl'"):
        send(second, MIB)
    world.ledger.leave(second)
    first.up(memoryview(frame(3, 1, bytes(4))))
    send(world.visitor(CARL), 2 * MIB - 1000)


def test_the_greediest_leaves_when_all_hold_too_much(world: World) -> None:
    """The longest message fits in any case; one is closed once, and no other for it."""
    bert, anna = world.visitor(BERT), world.visitor(ANNA)
    send(anna, 40 * MIB)
    for stream in (1, 3, 5):
        send(bert, (MESSAGE_BYTES_MAX - 39 * MIB) // 3, stream)
    assert anna.relayed.refusal is not None
    assert FLIGHT_MEMORY == anna.relayed.refusal.reason
    until(lambda: anna.relayed.is_closed)
    assert None is bert.relayed.refusal
    with pytest.raises(RefusedBytesError, match=r"limits\.max_memory_bytes"):
        send(bert, MESSAGE_BYTES_MAX - 20 * MIB, 7)


def test_a_principal_has_a_bounded_number_of_calls(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all of its connections, and beside those of others."""
    monkeypatch.setattr(flight_visitors, "PRINCIPAL_STREAMS_MAX", 3)
    first, second = world.visitor(ANNA), world.visitor(ANNA)
    other = world.visitor(BERT)
    first.up(memoryview(call(1, "DoGet", "k") + call(3, "DoGet", "k")))
    other.up(memoryview(call(1, "DoGet", "k") + call(3, "DoGet", "k")))
    second.up(memoryview(call(1, "DoGet", "k")))
    with pytest.raises(RefusedBytesError) as caught:
        second.up(memoryview(call(3, "DoGet", "k")))
    assert FLIGHT_STREAMS == caught.value.reason
    first.down(memoryview(frame(1, 1, b"x", 1)))
    first.down(memoryview(frame(1, 3, b"x", 1)))
    first.up(memoryview(call(5, "DoGet", "k")))


def test_a_stranger_leaves_for_a_newcomer(world: World) -> None:
    """The oldest of the address that has the most; else the greediest principal's idle one."""
    strangers = [world.visitor(address=one) for one in "abbcb"]
    known = [world.visitor(ANNA), world.visitor(BERT), world.visitor(BERT)]
    assert strangers[1] is to_leave(known + strangers)
    assert strangers[0] is to_leave([known[0], strangers[0], strangers[3]])
    assert known[1] is to_leave(known)
    known[1].up(memoryview(call(1, "DoGet", "k")))
    assert known[2] is to_leave(known)
    known[2].calls.add(Call(BERT, lambda _call: None))
    assert known[0] is to_leave(known)
    known[0].up(memoryview(call(1, "DoGet", "k")))
    assert None is to_leave(known)


def test_the_greediest_principal_makes_room_for_a_key(world: World) -> None:
    """By an idle connection, or its newest; a newcomer of its own finds none."""
    anna = [world.visitor(ANNA) for _ in range(3)]
    bert, stranger = world.visitor(BERT), world.visitor()
    present = [*anna, stranger, bert]
    assert anna[0] is to_yield(present, bert)
    for one in (*anna, bert):
        one.up(memoryview(call(1, "DoGet", "k")))
    assert anna[2] is to_yield(present, bert)
    assert anna[1] is to_yield(present, anna[1])


def test_calls_stall_unless_handlers_work(world: World) -> None:
    """As many streams may be silent as there are calls at work; a young call excuses none."""
    visitor, now = world.visitor(ANNA), monotonic()
    visitor.up(memoryview(call(1, "DoGet", "k") + call(3, "DoPut", "k")))
    assert 0 == visitor.stalled(now, 10.0)
    assert 2 == visitor.stalled(now + 10.0, 10.0)
    working, waiting = Call(ANNA, lambda _call: None), Call(ANNA, lambda _call: None)
    for one in (working, waiting):
        one.begins()
        visitor.calls.add(one)
    assert 0 == visitor.stalled(now + 10.0, 10.0)
    waiting.hand_over()
    assert 1 == visitor.stalled(now + 20.0, 10.0)
    working.hand_over()
    assert 2 == visitor.stalled(now + 20.0, 10.0)
    visitor.down(memoryview(frame(1, 1, b"x", 1)))
    assert 1 == visitor.stalled(now + 20.0, 10.0)
