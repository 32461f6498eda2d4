"""A server for tests of the client, over real TCP, that makes the mistakes a test asks it to.

What an honest broker of a strand does is the strand's; here is how it listens, how it is
scripted (by replacing what it does with a type of frame, by holding frames back, by ending
lines), and how a test waits for what it has seen.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, Unpack

from braidmq.client.options import Choices

PATIENCE_S = 10.0

F = TypeVar("F")
"""A frame, as the strand reads it."""


class Line(Generic[F]):
    """One accepted connection."""

    def __init__(self, writer: asyncio.StreamWriter, *, fragments: bool) -> None:
        self._fragments = fragments
        self._writer = writer
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen: list[F] = []
        self.is_open = True
        self.trickle: asyncio.Task[None] | None = None

    def send(self, *data: bytes) -> None:
        """Send bytes; one a turn of the loop when the peer fragments."""
        if not self._fragments:
            self._writer.write(b"".join(data))
            return
        self._outbox.put_nowait(b"".join(data))
        if self.trickle is None:
            self.trickle = asyncio.create_task(self._trickle())

    def die(self) -> None:
        """End the line without a word."""
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """End the line as a broker does that has read something it does not know."""
        self._writer.close()

    def pause_reading(self) -> None:
        """Let the client's bytes pile up."""
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport().resume_reading()

    def _transport(self) -> asyncio.Transport:
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    async def _trickle(self) -> None:
        while True:
            for byte in await self._outbox.get():
                self._writer.write(bytes([byte]))
                await asyncio.sleep(0)


L = TypeVar("L", bound=Line[Any])


class ScriptedPeer(ABC, Generic[L, F]):
    """The server; use it with `async with`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._tls = tls
        self.port = port
        self.fragments = False
        self.lines: list[L] = []
        self.scripts: dict[int, Callable[..., None]] = {}
        self.held: list[tuple[L, F]] = []
        self._holding: set[int] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    greeting: int
    ping: int
    subscribe: int
    unsubscribe: int
    confirming: int
    """Types of frames: the last one's answer confirms a publish."""
    large = 900_000
    """Bytes of a large payload that still fits into a frame."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """Return what was published, in order."""

    @abstractmethod
    def offer(self, name: str, *payloads: bytes) -> None:
        """Make messages ready for whoever has subscribed to a name."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the peer listens, with its key."""

    @abstractmethod
    def line(self, writer: asyncio.StreamWriter) -> L:
        """Return a new line."""

    @abstractmethod
    def reader(self) -> Callable[[bytes], Iterator[F]]:
        """Return what reads the frames of one line."""

    @abstractmethod
    def kind(self, frame: F) -> int:
        """Return the frame's type."""

    @abstractmethod
    def handle(self, line: L, frame: F) -> None:
        """Do what an honest broker does, or the script."""

    @abstractmethod
    def gone(self, line: L) -> None:
        """Take back what the line held."""

    def count(self, kind: int) -> int:
        """Return how many frames of a type have come, over all lines."""
        return sum(self.kind(frame) == kind for line in self.lines for frame in line.seen)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end every line."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in self.lines:
            line.die()
        await self.until(lambda: not any(line.is_open for line in self.lines))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for a condition on what the peer has seen."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def open_lines(self) -> list[L]:
        """Return the connections that are there."""
        return [line for line in self.lines if line.is_open]

    def script(self, kind: int, what: Callable[..., None]) -> None:
        """Do *what* with frames of a type instead of what an honest broker does."""
        self.scripts[kind] = what

    def once(self, kind: int, what: Callable[..., None]) -> None:
        """Do *what* with the next frame of a type, then be honest."""

        def script(*arguments: object) -> None:
            del self.scripts[kind]
            what(*arguments)

        self.script(kind, script)

    def hold(self, kind: int) -> None:
        """Keep frames of a type, unanswered."""
        self._holding.add(kind)

    def release(self) -> None:
        """Handle what was held, and hold nothing any more."""
        self._holding.clear()
        held, self.held = self.held, []
        for line, frame in held:
            self.handle(line, frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = self.line(writer)
        self.lines.append(line)
        read = self.reader()
        try:
            while data := await reader.read(65536):
                for frame in read(data):
                    self._take(line, frame)
        except ConnectionError:
            pass
        finally:
            self._lose(line)

    def _take(self, line: L, frame: F) -> None:
        line.seen.append(frame)
        if self.kind(frame) in self._holding:
            self.held.append((line, frame))
        else:
            self.handle(line, frame)
        self._changed.set()

    def _lose(self, line: L) -> None:
        line.is_open = False
        line.hang_up()
        if line.trickle is not None:
            line.trickle.cancel()
        self.gone(line)
        self._changed.set()


def quick(**more: Unpack[Choices]) -> Choices:
    """Return options for tests: attempts to connect follow each other at once."""
    more.setdefault("reconnect_delay", 0.001)
    more.setdefault("reconnect_delay_max", 0.005)
    return more


def hang_up(line: Line[Any], *frame: object) -> None:
    """Script: end the line, as for an unknown frame type."""
    line.hang_up()


def die(line: Line[Any], *frame: object) -> None:
    """Script: end the line without a word."""
    line.die()


def ignore(line: Line[Any], *frame: object) -> None:
    """Script: say nothing."""
