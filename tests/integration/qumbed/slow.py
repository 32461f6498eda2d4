"""A Qumbed peer that reads only on demand; while it pauses, its windows do not move."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nacl.public import PrivateKey

from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_client import QuicClient, Trust, connect
from braidmq.transport.quic_streams import StreamWire
from tests.integration.blip.peer import PATIENCE_S, until
from tests.integration.qumbed.peer import Json, ack, public, subscribe


class SlowStream:
    """One stream of a slow peer."""

    def __init__(self, wire: StreamWire) -> None:
        self._wire = wire
        self._buffer = bytearray()

    # What the wire calls.

    def receive(self, data: bytes) -> None:
        self._buffer += data

    def finish_input(self) -> None:
        pass

    def set_writable(self, writable: bool) -> None:
        pass

    def lost(self) -> None:
        pass

    # What a test does.

    def send(self, *frames: bytes) -> None:
        self._wire.write(b"".join(frames))

    def unsent_bytes(self) -> int:
        return self._wire.unsent_bytes()

    def pause(self) -> None:
        """Stop reading."""
        self._wire.pause_reading()

    def resume(self) -> None:
        self._wire.resume_reading()

    async def frames(self, count: int) -> list[Json]:
        """Wait for *count* frames and return them."""
        found: list[Json] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                await until(self._has_frame)
                size = 4 + int.from_bytes(self._buffer[:4], "big")
                found.append(json.loads(self._buffer[4:size]))
                del self._buffer[:size]
        return found

    def _has_frame(self) -> bool:
        size = 4 + int.from_bytes(self._buffer[:4], "big")
        return len(self._buffer) >= max(5, size)


class Slow:
    """One connection of a slow peer."""

    def __init__(self, client: QuicClient) -> None:
        self._client = client

    def open(self) -> SlowStream:
        carried = self._client.open_stream(SlowStream).carried
        assert isinstance(carried, SlowStream)
        return carried

    async def stuck_subscriber(self, topic: str, key: PrivateKey) -> SlowStream:
        """Subscribe on a new stream, and stop reading it."""
        stream = self.open()
        stream.send(subscribe(topic, public(key)))
        assert ack() == (await stream.frames(1))[0]
        stream.pause()
        return stream


@asynccontextmanager
async def slow(address: tuple[str, int], fingerprint: str) -> AsyncIterator[Slow]:
    """Connect a peer that reads its streams only on demand."""
    limits = QuicLimits(stream_window_bytes=16_384, connection_window_bytes=65_536)
    client = await connect(*address, trust=Trust(fingerprint=fingerprint), limits=limits)
    try:
        yield Slow(client)
    finally:
        await client.close()
