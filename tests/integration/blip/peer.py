"""A Blip peer for tests: it sends raw frames over a real socket and checks the replies.

It shares no code with the broker's codec, so that a bug there cannot hide here. A PING proves
silence: any frame due before its PONG has arrived by then.
"""

import asyncio
import hashlib
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from braidmq.server.strands.listeners import TcpListener
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.clock import FakeClock

HELLO: Final = 0x01
AUTH: Final = 0x02
PUBLISH: Final = 0x03
SUBSCRIBE: Final = 0x04
ACK: Final = 0x05
NACK: Final = 0x06
PING: Final = 0x07
PONG: Final = 0x08
POLL: Final = 0x09
STATS: Final = 0x0A
UNSUBSCRIBE: Final = 0x0B
CREDIT: Final = 0x0C

LENGTH_MAX: Final = 16 * 1024 * 1024

PATIENCE_S: Final = 20.0
"""Timeout of every wait; a correct broker never makes a test wait this long."""

NOT_FOUND: Final = (404, "unknown subscription or delivery tag")


class Frame(NamedTuple):
    """One parsed frame."""

    kind: int
    correlation_id: int
    payload: bytes


def frame(kind: int, correlation_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBQ", 9 + len(payload), kind, correlation_id) + payload


def hello(correlation_id: int = 1, version: int = 1) -> bytes:
    return frame(HELLO, correlation_id, struct.pack(">H", version))


def auth(correlation_id: int = 2, key: str = "dev-key") -> bytes:
    return frame(AUTH, correlation_id, struct.pack(">H", len(key.encode())) + key.encode())


def publish(correlation_id: int, topic: str, message: bytes, qos: int = 1) -> bytes:
    """Return a PUBLISH, as a publisher sends it and as the broker delivers it."""
    name = topic.encode()
    head = struct.pack(">BH", qos, len(name))
    return frame(PUBLISH, correlation_id, head + name + message)


def subscribe(correlation_id: int, topic: str, qos: int = 1) -> bytes:
    name = topic.encode()
    return frame(SUBSCRIBE, correlation_id, struct.pack(">H", len(name)) + name + bytes([qos]))


def ack(correlation_id: int, subscription_id: int) -> bytes:
    return frame(ACK, correlation_id, struct.pack(">Q", subscription_id))


def nack(correlation_id: int, code: int, text: str) -> bytes:
    return frame(NACK, correlation_id, struct.pack(">HH", code, len(text)) + text.encode())


def not_found(correlation_id: int) -> bytes:
    return nack(correlation_id, *NOT_FOUND)


def ping(correlation_id: int, payload: bytes = b"") -> bytes:
    return frame(PING, correlation_id, payload)


def pong(correlation_id: int) -> bytes:
    return frame(PONG, correlation_id)


def poll(correlation_id: int, subscription_id: int) -> bytes:
    return frame(POLL, correlation_id, struct.pack(">Q", subscription_id))


def unsubscribe(correlation_id: int, subscription_id: int) -> bytes:
    return frame(UNSUBSCRIBE, correlation_id, struct.pack(">Q", subscription_id))


def credit(correlation_id: int, subscription_id: int, count: int) -> bytes:
    return frame(CREDIT, correlation_id, struct.pack(">QI", subscription_id, count))


def parse(data: bytes) -> list[Frame]:
    """Parse complete frames."""
    found = []
    while data:
        length, kind, correlation_id = struct.unpack_from(">IBQ", data)
        found.append(Frame(kind, correlation_id, data[13 : 4 + length]))
        data = data[4 + length :]
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.002)


def listener(broker: RunningBroker) -> TcpListener:
    """Return the broker's Blip listener, for tests that inspect its internals."""
    (found,) = (one for one in broker.daemon.status.listeners if one.strand == "blip")
    assert isinstance(found, TcpListener)
    return found


async def until_committed(broker: RunningBroker) -> None:
    """Wait until the log has committed everything that the broker started by itself."""
    engine = broker.daemon.status.engine
    assert engine is not None
    await until(engine.is_committed)


class SocketPeer(asyncio.Protocol):
    """One end of a TCP connection for any protocol; it reads unless paused."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self.is_closed = False
        self._transport: asyncio.Transport | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._changed.set()

    # What a test does.

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def unread(self) -> bytes:
        """Bytes received and not yet parsed."""
        return bytes(self._buffer)

    def send(self, *frames: bytes) -> None:
        """Send frames, or any bytes, in one piece."""
        self.transport.write(b"".join(frames))

    async def leave(self) -> None:
        """Abort the connection, as a killed process would."""
        self.transport.abort()
        await until(lambda: self.is_closed)

    async def until_whole(self, head: int, size: Callable[[], int]) -> None:
        """Wait for a whole frame; its *size* is known once its *head* bytes are there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._buffer) < head or len(self._buffer) < size():
                assert not self.is_closed, f"closed after {bytes(self._buffer)!r}"
                self._changed.clear()
                await self._changed.wait()


class Peer(SocketPeer):
    """One end of a Blip connection."""

    def __init__(self) -> None:
        super().__init__()
        self._fences = 0x7000_0000_0000_0000  # correlation ids that no test uses

    def finish(self) -> None:
        """Half-close: send no more, but keep reading."""
        self.transport.write_eof()

    async def next(self) -> Frame:
        """Return the next frame from the broker."""
        await self.until_whole(4, self._frame_bytes)
        size = self._frame_bytes()
        taken = parse(bytes(self._buffer[:size]))[0]
        del self._buffer[:size]
        return taken

    async def expect(self, *frames: bytes) -> None:
        """Assert that exactly these frames arrive next."""
        for wanted in frames:
            assert parse(wanted)[0] == await self.next()

    async def expect_silence(self) -> None:
        """Assert that nothing arrives before the PONG of a PING sent now."""
        self._fences += 1
        self.send(ping(self._fences))
        await self.expect(pong(self._fences))

    async def expect_close(self) -> None:
        """Assert that the broker closes the connection and sends nothing more."""
        await until(lambda: self.is_closed)

        assert [] == parse(bytes(self._buffer))

    def _frame_bytes(self) -> int:
        return 4 + int.from_bytes(self._buffer[:4], "big")

    # Whole conversations.

    async def log_in(self, key: str = "dev-key") -> None:
        """Do the handshake."""
        self.send(hello(1), auth(2, key))
        await self.expect(ack(1, 0), ack(2, 0))

    async def subscribe(self, topic: str, qos: int = 1) -> int:
        """Create a subscription and return its id."""
        self.send(subscribe(3, topic, qos))
        answer = await self.next()
        assert (ACK, 3) == answer[:2], answer
        return int.from_bytes(answer.payload, "big")

    async def publish(self, topic: str, *messages: bytes, qos: int = 1) -> None:
        """Publish, and return once everything is durable."""
        self.send(*(publish(4, topic, message, qos) for message in messages))
        await self.expect_silence()

    async def poll(self, subscription_id: int, correlation_id: int = 5) -> Frame | None:
        """Return the next message of a subscription, or None when there is none."""
        self._fences += 1
        self.send(poll(correlation_id, subscription_id), ping(self._fences))
        answer = await self.next()
        if answer.kind == PONG:
            assert self._fences == answer.correlation_id
            return None
        await self.expect(pong(self._fences))
        return answer

    async def take(self, subscription_id: int) -> tuple[int, bytes]:
        """Return tag and payload of the next message, which must be there."""
        answer = await self.poll(subscription_id)
        assert answer is not None, "nothing was ready"
        assert PUBLISH == answer.kind, answer
        topic_bytes = int.from_bytes(answer.payload[1:3], "big")
        return answer.correlation_id, answer.payload[3 + topic_bytes :]

    async def acknowledge(self, subscription_id: int, *tags: int) -> None:
        """Acknowledge, and return once that is durable."""
        self.send(*(ack(tag, subscription_id) for tag in tags))
        await self.expect_silence()

    async def stats(self) -> tuple[int, ...]:
        """Return the five numbers of a STATS reply."""
        self.send(frame(STATS, 6))
        answer = await self.next()
        assert (STATS, 6) == answer[:2], answer
        return struct.unpack(">5Q", answer.payload)


def key_config(name: str, key: str, **settings: object) -> dict[str, object]:
    """Return the configuration of a key that may do everything, unless *settings* differ."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {
        "name": name,
        "hash": f"sha256:{digest}",
        "publish": ["*"],
        "subscribe": ["*"],
        **settings,
    }


@asynccontextmanager
async def broker_at(
    data_dir: Path | None = None, clock: FakeClock | None = None, **config: object
) -> AsyncIterator[RunningBroker]:
    """Run a broker, and assert that no exception escaped in its event loop."""
    escaped: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: escaped.append(context))
    try:
        async with running_broker(data_dir=data_dir, clock=clock, config=config) as broker:
            yield broker
    finally:
        loop.set_exception_handler(None)

    assert [] == escaped, escaped


@asynccontextmanager
async def stranger(
    broker: RunningBroker, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    """Connect without a handshake."""
    loop = asyncio.get_running_loop()
    host, port = broker.address()
    name = "localhost" if tls else None
    _, peer = await loop.create_connection(Peer, host, port, ssl=tls, server_hostname=name)
    try:
        yield peer
    finally:
        await peer.leave()


@asynccontextmanager
async def connected(
    broker: RunningBroker, *, key: str = "dev-key", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    """Connect and do the handshake."""
    async with stranger(broker, tls=tls) as peer:
        await peer.log_in(key)
        yield peer
