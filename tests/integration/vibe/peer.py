"""A Vibe peer for tests: it sends raw frames of both dialects and checks the replies.

It shares no code with the broker's codec, so that a bug there cannot hide here. It parses every
frame strictly: error fields always in 1.0, and in 1.1 on Error frames only. Pings prove
silence, the last one sent when the broker has no work left.
"""

import asyncio
import gzip
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import brotli

from braidmq.broker.broker import Broker
from braidmq.broker.stats import Stats
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import SocketPeer, until

CONNECT: Final = 0
CONNECT_ACK: Final = 1
DISCONNECT: Final = 2
PING: Final = 10
PONG: Final = 11
PUBLISH: Final = 20
PUBLISH_ACK: Final = 21
SUBSCRIBE: Final = 22
SUBSCRIBE_ACK: Final = 23
UNSUBSCRIBE: Final = 24
UNSUBSCRIBE_ACK: Final = 25
DELIVER: Final = 26
ACK: Final = 30
CREATE_QUEUE: Final = 40
DELETE_QUEUE: Final = 41
QUEUE_INFO: Final = 42
LIST_QUEUES: Final = 43
ERROR: Final = 99

RAW: Final = 0
GZIP: Final = 1
BROTLI: Final = 2

V1_0: Final = "1.0"
V1_1: Final = "1.1"

TOKEN: Final = (("authToken", "dev-key"),)

Headers = dict[str, str] | Sequence[tuple[str, str]]


class Message(NamedTuple):
    """One parsed frame from the broker."""

    kind: int
    id: str
    queue: str
    payload: bytes
    headers: dict[str, str]
    error_code: str
    error_message: str
    flags: int

    @property
    def error(self) -> tuple[str, str]:
        return self.error_code, self.error_message

    @property
    def attempts(self) -> int:
        return int(self.headers["deliveryAttempts"])


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def body(
    kind: int,
    message_id: str,
    queue: str = "",
    payload: bytes = b"",
    headers: Headers = (),
    *,
    version: int = 1,
    errors: bool = False,
) -> bytes:
    """Return a body; *errors* adds the two error fields, empty."""
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    packed = b"".join(text(key) + text(value) for key, value in pairs)
    return b"".join(
        [
            bytes([version, kind]),
            text(message_id),
            text(queue),
            struct.pack(">I", len(payload)),
            payload,
            struct.pack(">H", len(pairs)),
            packed,
            bytes(4) if errors else b"",
        ]
    )


def frame(dialect: str, of_body: bytes, flags: int = RAW) -> bytes:
    """Return a frame of *dialect*."""
    head = struct.pack(">I", len(of_body))
    return head + of_body if dialect == V1_0 else head + bytes([flags]) + of_body


def packed(flags: int, of_body: bytes) -> bytes:
    """Return a compressed frame of dialect 1.1."""
    compressed = gzip.compress(of_body) if flags == GZIP else brotli.compress(of_body)
    return frame(V1_1, compressed, flags)


def parse(dialect: str, of_body: bytes, flags: int = RAW) -> Message:
    """Parse a body from the broker; no byte may be missing or left over."""
    if flags == GZIP:
        of_body = gzip.decompress(of_body)
    elif flags == BROTLI:
        of_body = brotli.decompress(of_body)
    kind = of_body[1]
    assert 1 == of_body[0]
    message_id, at = _text(of_body, 2)
    queue, at = _text(of_body, at)
    size = int.from_bytes(of_body[at : at + 4], "big")
    payload = of_body[at + 4 : at + 4 + size]
    at += 4 + size
    count = int.from_bytes(of_body[at : at + 2], "big")
    at += 2
    headers = {}
    for _ in range(count):
        key, at = _text(of_body, at)
        headers[key], at = _text(of_body, at)
    error_code = error_message = ""
    if dialect == V1_0 or kind == ERROR:
        error_code, at = _text(of_body, at)
        error_message, at = _text(of_body, at)
    assert len(of_body) == at
    return Message(kind, message_id, queue, payload, headers, error_code, error_message, flags)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    assert end <= len(data)
    return data[at + 2 : end].decode(), end


def core(running: RunningBroker) -> Broker:
    """Return the broker's core, for tests that inspect it."""
    engine = running.daemon.status.engine
    assert engine is not None
    return engine.broker


def stats(running: RunningBroker) -> Stats:
    return core(running).stats


def is_quiet(running: RunningBroker) -> bool:
    """Return whether the broker has no commit and no read of the log under way."""
    engine = running.daemon.status.engine
    assert engine is not None
    read = engine.broker.queues.all_channels()
    return engine.is_committed() and not any(one.position.reading for one in read)


async def until_subscribers(running: RunningBroker, queue: str, count: int) -> None:
    """Wait until the broker counts that many consumers of a queue."""
    found = core(running).queues.by_name[queue]
    await until(lambda: len(found.consumers) == count)


class Peer(SocketPeer):
    """One end of a Vibe connection; deliveries that precede an answer are set aside."""

    def __init__(self, running: RunningBroker, dialect: str) -> None:
        super().__init__()
        self.dialect = dialect
        self._running = running
        self._ids = 0
        self._aside: deque[Message] = deque()  # deliveries that arrived before an answer

    def frame(
        self,
        kind: int,
        message_id: str,
        queue: str = "",
        payload: bytes = b"",
        headers: Headers = (),
    ) -> bytes:
        """Return a frame as clients of this peer's dialect write it."""
        errors = self.dialect == V1_0
        return frame(
            self.dialect, body(kind, message_id, queue, payload, headers, errors=errors)
        )

    async def break_off(self) -> None:
        """Reset the connection, so that the broker notices at once."""
        linger = struct.pack("ii", 1, 0)  # a reset instead of an orderly end
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await self.leave()

    async def next(self) -> Message:
        """Return the next frame; deliveries that were set aside come first."""
        return self._aside.popleft() if self._aside else await self._read()

    async def _read(self) -> Message:
        head = 4 if self.dialect == V1_0 else 5
        await self.until_whole(head, lambda: head + self._length())
        end = head + self._length()
        flags = RAW if self.dialect == V1_0 else self._buffer[4]
        taken = bytes(self._buffer[head:end])
        del self._buffer[:end]
        return parse(self.dialect, taken, flags)

    def _length(self) -> int:
        return int.from_bytes(self._buffer[:4], "big")

    def new_id(self) -> str:
        """Return an id that no test uses."""
        self._ids += 1
        return f"id_{self._ids}"

    async def ask(
        self,
        kind: int,
        queue: str = "",
        payload: bytes = b"",
        headers: Headers = (),
        *,
        message_id: str = "",
    ) -> Message:
        """Send a request and return its answer; earlier deliveries are set aside."""
        message_id = message_id or self.new_id()
        self.send(self.frame(kind, message_id, queue, payload, headers))
        return await self.reply(message_id)

    async def reply(self, request_id: str) -> Message:
        """Return the reply to a request; earlier deliveries are set aside."""
        while (answer := await self._read()).kind == DELIVER:
            self._aside.append(answer)
        assert request_id == answer.id, answer
        return answer

    async def expect_silence(self) -> None:
        """Assert that nothing arrives, now or once the broker has no work left."""
        assert PONG == (await self.ask(PING)).kind
        await until(lambda: is_quiet(self._running))
        assert PONG == (await self.ask(PING)).kind

        assert [] == list(self._aside)

    async def expect_close(self) -> None:
        """Assert that the broker closes the connection and sends nothing more."""
        await until(lambda: self.is_closed)

        assert b"" == self.unread

    # Whole conversations.

    async def log_in(self, headers: Headers) -> Message:
        """Connect, and return the ConnectAck."""
        answer = await self.ask(CONNECT, headers=headers)
        assert CONNECT_ACK == answer.kind, answer
        return answer

    async def publish(
        self, queue: str, payload: bytes, message_id: str = "", **headers: str
    ) -> None:
        """Publish, and return once the broker has acknowledged it."""
        answer = await self.ask(PUBLISH, queue, payload, headers, message_id=message_id)
        assert PUBLISH_ACK == answer.kind, answer

    async def subscribe(self, queue: str, prefetch: int = 0) -> None:
        """Subscribe; with a *prefetch* of 0 the request does not mention it."""
        headers = {"prefetch": str(prefetch)} if prefetch else {}
        answer = await self.ask(SUBSCRIBE, queue, headers=headers)
        assert SUBSCRIBE_ACK == answer.kind, answer

    async def unsubscribe(self, queue: str) -> None:
        answer = await self.ask(UNSUBSCRIBE, queue)
        assert UNSUBSCRIBE_ACK == answer.kind, answer

    async def create(self, queue: str, **options: object) -> None:
        """Declare a queue by headers."""
        headers = {key: str(value) for key, value in options.items()}
        answer = await self.ask(CREATE_QUEUE, queue, headers=headers)
        assert CREATE_QUEUE == answer.kind, answer

    async def info(self, queue: str) -> dict[str, Any]:
        """Return the QueueInfo."""
        answer = await self.ask(QUEUE_INFO, queue)
        assert QUEUE_INFO == answer.kind, answer
        found: dict[str, Any] = json.loads(answer.payload)
        return found

    async def counts(self, queue: str) -> tuple[int, int]:
        """Return the numbers of waiting messages and of messages in flight."""
        found = await self.info(queue)
        return found["messageCount"], found["inFlight"]

    async def names(self) -> list[str]:
        """Return the names from a ListQueues."""
        answer = await self.ask(LIST_QUEUES)
        assert LIST_QUEUES == answer.kind, answer
        found: list[str] = json.loads(answer.payload)
        return found

    async def delivered(self) -> Message:
        """Return the next frame, which must be a delivery."""
        answer = await self.next()
        assert DELIVER == answer.kind, answer
        return answer

    async def payloads(self, count: int) -> list[bytes]:
        """Return the payloads of the next deliveries."""
        return [(await self.delivered()).payload for _ in range(count)]

    def ack(self, message_id: str, queue: str = "", **headers: str) -> None:
        """Acknowledge a message, or settle it in another way with *headers*."""
        self.send(self.frame(ACK, message_id, queue, headers=headers))

    async def settle(self, message_id: str, queue: str = "", **headers: str) -> None:
        """Acknowledge, return once that is durable, and assert that nothing else arrives."""
        self.ack(message_id, queue, **headers)
        await self.expect_silence()


@asynccontextmanager
async def stranger(
    running: RunningBroker, dialect: str, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    """Open a connection without a Connect."""
    loop = asyncio.get_running_loop()
    host, port = running.address("vibe")
    name = "localhost" if tls else None
    _, peer = await loop.create_connection(
        lambda: Peer(running, dialect), host, port, ssl=tls, server_hostname=name
    )
    try:
        yield peer
    finally:
        await peer.leave()


@asynccontextmanager
async def connected(
    running: RunningBroker,
    dialect: str = V1_1,
    *,
    tls: ssl.SSLContext | None = None,
    headers: Headers = TOKEN,
) -> AsyncIterator[Peer]:
    """Open a connection and Connect."""
    async with stranger(running, dialect, tls=tls) as peer:
        await peer.log_in(headers)
        yield peer
