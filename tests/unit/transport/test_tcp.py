"""A TCP wire, from accept to close, with real sockets and a recording connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from braidmq.transport.door import Door
from braidmq.transport.tcp import Carried, TcpWire
from tests.integration.blip.peer import Peer, until

pytestmark = pytest.mark.asyncio


class Recorder:
    """A connection that keeps its data and events."""

    def __init__(self, wire: TcpWire) -> None:
        self.wire = wire
        self.received = b""
        self.events: list[str] = []
        self.on_writable: Callable[[], None] = lambda: None

    def receive(self, data: bytes) -> None:
        self.received += data

    def finish_input(self) -> None:
        self.events.append("finished")

    def set_writable(self, writable: bool) -> None:
        self.events.append("writable" if writable else "full")
        if writable:
            self.on_writable()

    def lost(self) -> None:
        self.events.append("lost")


class Listening:
    """A server of wires."""

    def __init__(
        self,
        *,
        timeout_s: float = 20.0,
        output_buffer_bytes: int = 1000,
    ) -> None:
        self.accepted: list[Recorder] = []
        self.closed: list[TcpWire] = []
        self._timeout_s = timeout_s
        self.door = Door(connections=10, strangers=10)
        self._output_buffer_bytes = output_buffer_bytes

    def accept(self, wire: TcpWire) -> Carried:
        self.accepted.append(Recorder(wire))
        return self.accepted[-1]

    def wire(self) -> TcpWire:
        return TcpWire(
            self.accept,
            self.door.enter("127.0.0.1"),
            output_buffer_bytes=self._output_buffer_bytes,
            handshake_timeout_s=self._timeout_s,
            closed=self.closed.append,
        )

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.wire, "127.0.0.1", 0)
        _, peer = await loop.create_connection(Peer, *server.sockets[0].getsockname()[:2])
        try:
            await until(lambda: self.accepted)
            yield peer
        finally:
            await peer.leave()
            for recorder in self.accepted:
                recorder.wire.abort()
            server.close()
            await until(lambda: self.closed)


async def test_bytes_go_both_ways() -> None:
    """Written bytes are sent, received bytes are passed to the connection."""
    listening = Listening()
    async with listening.peer() as peer:
        (recorder,) = listening.accepted
        peer.send(b"question")
        await until(lambda: recorder.received == b"question")
        recorder.wire.write(b"answer")
        await until(lambda: peer.unread == b"answer")

        assert "127.0.0.1" == recorder.wire.peer_address


async def test_a_wire_keeps_its_place_until_it_is_lost() -> None:
    """As a stranger until it is greeted."""
    listening = Listening()
    counts = []
    async with listening.peer():
        counts.append((listening.door.count(), listening.door.strangers()))
        listening.accepted[0].wire.greeted("tests")
        counts.append((listening.door.count(), listening.door.strangers()))
    counts.append((listening.door.count(), listening.door.strangers()))

    assert [(1, 1), (1, 0), (0, 0)] == counts


async def test_a_peer_must_authenticate_before_the_deadline() -> None:
    """Otherwise it is disconnected; after the greeting there is no deadline."""
    listening = Listening(timeout_s=0.05)
    async with listening.peer() as peer:
        await until(peer.transport.is_closing)
        assert ["lost"] == listening.accepted[0].events
    greeted = Listening(timeout_s=0.05)
    async with greeted.peer() as peer:
        greeted.accepted[0].wire.greeted("tests")
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, passed.set)
        await passed.wait()
        assert [] == greeted.accepted[0].events


async def test_a_half_close_leaves_our_half_open() -> None:
    """The peer's requests are still answered after its last byte."""
    listening = Listening()
    async with listening.peer() as peer:
        (recorder,) = listening.accepted
        peer.send(b"last")
        peer.finish()
        await until(lambda: recorder.events == ["finished"])
        recorder.wire.write(b"answer")
        recorder.wire.close()
        await until(peer.transport.is_closing)

        assert b"answer" == peer.unread


async def test_a_full_and_an_emptied_buffer_are_reported() -> None:
    """Above `output_buffer_bytes` it is full, until the peer has read."""
    listening = Listening()
    async with listening.peer() as peer:
        (recorder,) = listening.accepted
        peer.transport.pause_reading()
        recorder.wire.write(bytes(20_000_000))
        assert ["full"] == recorder.events
        assert recorder.wire.unsent_bytes() > 1000
        peer.transport.resume_reading()
        await until(lambda: recorder.events == ["full", "writable"])


async def test_paused_reading_leaves_bytes_with_the_peer() -> None:
    """The connection receives nothing until reading resumes."""
    listening = Listening()
    async with listening.peer() as peer:
        (recorder,) = listening.accepted
        recorder.wire.pause_reading()
        peer.send(bytes(20_000_000))
        await until(lambda: peer.transport.get_write_buffer_size() > 0)
        assert b"" == recorder.received
        recorder.wire.resume_reading()
        await until(lambda: len(recorder.received) == 20_000_000)


async def test_using_a_closed_wire_is_not_an_error() -> None:
    """A connection may still write to it; the bytes are dropped."""
    listening = Listening()
    async with listening.peer():
        (recorder,) = listening.accepted
        recorder.wire.abort()
        await until(lambda: recorder.events == ["lost"])
        recorder.wire.write(b"dropped")
        recorder.wire.pause_reading()
        recorder.wire.resume_reading()
        recorder.wire.close()
        recorder.wire.abort()

        assert 0 == recorder.wire.unsent_bytes()
        assert [recorder.wire] == listening.closed


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_connection_may_end_when_its_output_has_room_again(how: str) -> None:
    """As after a half-close: the last reply is sent, and nothing is left to do."""
    loop = asyncio.get_running_loop()
    escaped: list[object] = []
    loop.set_exception_handler(lambda _, context: escaped.append(context))
    listening = Listening(output_buffer_bytes=0)  # has room again once it is empty
    async with listening.peer() as peer:
        (recorder,) = listening.accepted
        recorder.on_writable = getattr(recorder.wire, how)
        reply = bytes(4 * 2**20)
        recorder.wire.write(reply)
        await until(lambda: listening.closed)
        await until(lambda: len(peer.unread) == len(reply))

        assert ["full", "writable", "lost"] == recorder.events
    assert [recorder.wire] == listening.closed
    assert [] == escaped, escaped
