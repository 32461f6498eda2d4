"""The transmission turns of a UDP endpoint."""

from pathlib import Path

import pytest

from braidmq.transport.quic import BoundedConnection
from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import listening, opened


@pytest.mark.asyncio
async def test_the_writes_of_one_turn_are_transmitted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small writes become one transmission."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        sizes: list[int] = []
        original = BoundedConnection.datagrams_to_send

        def spy(self: BoundedConnection, now: float) -> list[tuple[bytes, object]]:
            if self is client.carrier.quic:
                sizes.append(self.unacknowledged_bytes(stream.wire.stream_id))
            return original(self, now)

        monkeypatch.setattr(BoundedConnection, "datagrams_to_send", spy)
        for _ in range(50):
            stream.wire.write(b"0123456789")
        assert [] == sizes
        await until(lambda: server.accepted and len(server.accepted[0].received) == 500)
        assert 500 == sizes[0]
        await client.close()
