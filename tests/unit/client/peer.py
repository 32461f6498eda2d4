"""A scripted server for client tests, over real TCP, that misbehaves when a test tells it to.

Each strand's subclass implements the behaviour of an honest broker. This module does the rest:
it listens, lets a test script the server (replace the handler of a frame type, hold frames
back, drop connections) and wait for a condition on what the server has received.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, Unpack

from braidmq.client.options import Choices

PATIENCE_S = 10.0

F = TypeVar("F")
"""A frame, as the strand decodes it."""


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
        """Send bytes; one byte per turn of the event loop if the peer fragments."""
        if not self._fragments:
            self._writer.write(b"".join(data))
            return
        self._outbox.put_nowait(b"".join(data))
        if self.trickle is None:
            self.trickle = asyncio.create_task(self._trickle())

    def die(self) -> None:
        """Drop the connection abruptly."""
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection, as a broker does after a frame of unknown type."""
        self._writer.close()

    def pause_reading(self) -> None:
        """Let the client's bytes pile up."""
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
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
    """The scripted server; use it with `async with`."""

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
    publishing: int
    confirming: int
    """Frame types; the answer to `confirming` confirms a publish."""
    permanent: tuple[int | str, ...]
    """Error codes that a retry cannot help against."""
    large = 900_000
    """Size in bytes of a large payload that still fits into a frame."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """Return the published payloads, in order."""

    @abstractmethod
    def offer(self, name: str, *payloads: bytes) -> None:
        """Make messages available to the subscribers of a topic or queue."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The peer's URL, API key included."""

    @abstractmethod
    def line(self, writer: asyncio.StreamWriter) -> L:
        """Wrap an accepted connection."""

    @abstractmethod
    def reader(self) -> Callable[[bytes], Iterator[F]]:
        """Return a frame decoder for one connection."""

    @abstractmethod
    def kind(self, frame: F) -> int:
        """Return the type of *frame*."""

    @abstractmethod
    def handle(self, line: L, frame: F) -> None:
        """Run the script for this frame type, or act as an honest broker."""

    @abstractmethod
    def gone(self, line: L) -> None:
        """Clean up after a closed connection: requeue its deliveries."""

    @abstractmethod
    def refusing(self, code: int | str, text: str = "because") -> Callable[..., None]:
        """Return a script that refuses a frame with *code* and *text*."""

    def refuse(self, kind: int, code: int | str, text: str = "because") -> None:
        """Refuse frames of a type from now on."""
        self.script(kind, self.refusing(code, text))

    def count(self, kind: int) -> int:
        """Return how many frames of a type have arrived, over all connections."""
        return sum(self.kind(frame) == kind for line in self.lines for frame in line.seen)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, after a restart on the same port as before."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in self.lines:
            line.die()
        await self.until(lambda: not any(line.is_open for line in self.lines))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until a condition on the peer's state holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def open_lines(self) -> list[L]:
        """Return the connections that are still open."""
        return [line for line in self.lines if line.is_open]

    def script(self, kind: int, what: Callable[..., None]) -> None:
        """Handle frames of a type with *what* instead of honestly."""
        self.scripts[kind] = what

    def once(self, kind: int, what: Callable[..., None]) -> None:
        """Handle the next frame of a type with *what*, later ones honestly."""

        def script(*arguments: object) -> None:
            del self.scripts[kind]
            what(*arguments)

        self.script(kind, script)

    def hold(self, kind: int) -> None:
        """Hold back frames of a type, unanswered, until :meth:`release`."""
        self._holding.add(kind)

    def release(self) -> None:
        """Handle all held frames and stop holding."""
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
    """Return options for tests: reconnect with hardly any delay."""
    more.setdefault("reconnect_delay", 0.001)
    more.setdefault("reconnect_delay_max", 0.005)
    return more


def hang_up(line: Line[Any], *frame: object) -> None:
    """Script: close the connection, as after a frame of unknown type."""
    line.hang_up()


def die(line: Line[Any], *frame: object) -> None:
    """Script: drop the connection abruptly."""
    line.die()


def ignore(line: Line[Any], *frame: object) -> None:
    """Script: do not answer."""
