"""A Qumbed peer that reads only on demand; while it pauses, its windows do not move."""

import asyncio
import json

from braidmq.transport.quic_client import QuicClient
from braidmq.transport.quic_streams import StreamWire
from tests.integration.blip.peer import PATIENCE_S, until
from tests.integration.qumbed.peer import Json


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
