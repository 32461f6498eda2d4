"""Load over Qumbed: frames on our own QUIC transport, without a client library.

Each function makes one run against a new broker and returns its sample. QUIC in Python costs
the client as much as the broker, so the client is often the bottleneck: the column of CPU time
per message is the broker's alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import nacl.public

from bench.servers import Broker
from bench.streams import RUN_S_MAX, BrokenRunError, Clock, Elapsed, Sample
from braidmq.transport.quic_client import QuicClient, Trust, connect
from braidmq.transport.quic_streams import StreamWire
from braidmq.wire.qumbed import messages

TOPIC: Final = "bench"
PAYLOAD: Final = b"\xff" * 256
"""Not JSON, and published without a key: opaque, and encrypted for each subscriber."""

SUBSCRIBERS: Final = 10
BLOCK_MESSAGES: Final = 100
IDLE_CLIENTS: Final = 200
_LENGTH_BYTES: Final = 4
_ERROR: Final = b'{"t":6,'


class Peer:
    """The client's end of one stream: counts the frames it receives."""

    def __init__(self, wire: StreamWire) -> None:
        self.wire = wire
        self.frames = 0
        self.error = ""
        self._held = b""
        self._moved = asyncio.Event()
        self._is_writable = True

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds."""
        async with asyncio.timeout(RUN_S_MAX):
            while not condition():
                if self.error:
                    raise BrokenRunError(self.error)
                self._moved.clear()
                await self._moved.wait()

    async def send(self, block: bytes, repeats: int) -> None:
        """Send a block *repeats* times, no faster than the peer accepts it."""
        for _ in range(repeats):
            await self.until(lambda: self._is_writable)
            self.wire.write(block)

    # What the transport calls.

    def receive(self, data: bytes) -> None:
        """Count whole frames."""
        held = self._held + data
        at = 0
        while len(held) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(held[at : at + _LENGTH_BYTES], "big")
            if end > len(held):
                break
            if held.startswith(_ERROR, at + _LENGTH_BYTES):
                self.error = held[at + _LENGTH_BYTES : end].decode()
            self.frames += 1
            at = end
        self._held = held[at:]
        self._moved.set()

    def finish_input(self) -> None:
        """Mark the run as failed."""
        self.lost()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own word
        """Record whether the stream accepts data."""
        self._is_writable = writable
        self._moved.set()

    def lost(self) -> None:
        """Mark the run as failed."""
        self.error = self.error or "the stream ended"
        self._moved.set()


def publish(broker: Broker, count: int) -> Sample:
    """Publish without waiting, until every message is confirmed."""

    async def run(stack: AsyncExitStack) -> Elapsed:
        peer = await _peer(stack, broker)
        clock = Clock()
        await peer.send(_publish() * BLOCK_MESSAGES, count // BLOCK_MESSAGES)
        await peer.until(lambda: peer.frames >= count)
        return clock.elapsed()

    return broker.measure(count, lambda: _run(run))


def publish_each_connected(broker: Broker, count: int) -> Sample:
    """Publish each message on its own connection, as the original does."""

    async def run(stack: AsyncExitStack) -> Elapsed:
        del stack
        clock = Clock()
        for _ in range(count):
            async with AsyncExitStack() as connection:
                peer = await _peer(connection, broker)
                peer.wire.write(_publish())
                await peer.until(lambda: peer.frames > 0)  # noqa: B023 - awaited here
        return clock.elapsed()

    return broker.measure(count, lambda: _run(run))


def fan_out(broker: Broker, count: int) -> Sample:
    """Publish to subscribers, each on its own connection; *count* is that of deliveries."""

    async def run(stack: AsyncExitStack) -> Elapsed:
        publisher = await _peer(stack, broker)
        subscribers = [await _peer(stack, broker) for _ in range(SUBSCRIBERS)]
        for subscriber in subscribers:
            key = bytes(nacl.public.PrivateKey.generate().public_key)
            subscriber.wire.write(messages.subscribe(TOPIC, "", key))
            await subscriber.until(lambda: subscriber.frames == 1)  # noqa: B023 - awaited here
        clock = Clock()
        each = count // SUBSCRIBERS
        sending = asyncio.ensure_future(
            publisher.send(_publish() * BLOCK_MESSAGES, each // BLOCK_MESSAGES)
        )
        for subscriber in subscribers:
            await subscriber.until(lambda: subscriber.frames > each)  # noqa: B023 - as above
        await sending
        return clock.elapsed()

    return broker.measure(count, lambda: _run(run))


def idle_bytes(broker: Broker) -> float:
    """Return the broker's memory per idle subscriber, in bytes."""
    grown = 0

    async def run(stack: AsyncExitStack) -> Elapsed:
        nonlocal grown
        key = bytes(nacl.public.PrivateKey.generate().public_key)

        async def subscribe() -> None:
            peer = await _peer(stack, broker)
            peer.wire.write(messages.subscribe(TOPIC, "", key))
            await peer.until(lambda: peer.frames == 1)

        clock = Clock()
        await subscribe()  # one-time allocations are done now
        before = broker.rss_bytes
        for _ in range(IDLE_CLIENTS):
            await subscribe()
        grown = broker.rss_bytes - before
        return clock.elapsed()

    _run(run)
    return grown / IDLE_CLIENTS


def _run(run: Callable[[AsyncExitStack], Awaitable[Elapsed]]) -> Elapsed:
    async def whole() -> Elapsed:
        async with AsyncExitStack() as stack:
            return await run(stack)

    return asyncio.run(whole())


async def _peer(stack: AsyncExitStack, broker: Broker) -> Peer:
    host, _, port = broker.qumbed.rpartition(":")
    client: QuicClient = await connect(
        host, int(port), trust=Trust(fingerprint=broker.qumbed_fingerprint)
    )
    stack.push_async_callback(client.close)
    made: list[Peer] = []

    def make(wire: StreamWire) -> Peer:
        made.append(Peer(wire))
        return made[0]

    client.open_stream(make)
    return made[0]


def _publish() -> bytes:
    return messages.publish(TOPIC, PAYLOAD)
