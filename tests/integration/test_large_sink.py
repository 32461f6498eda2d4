"""A batch of a million rows through the real daemon: its memory, and the latency of others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pytest

from braidmq import columnar
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkCommit, SinkKey
from tests.integration.blip.peer import Peer
from tests.integration.served import served

ROWS: Final = 1_000_000
BATCH: Final = 10_000
SCHEMA: Final = pa.schema([("value", pa.binary())])
GROWTH_BYTES_MAX: Final = 160 * 1024 * 1024
"""Arrow and Flight keep some memory; a million messages would need twice as much."""

WAIT_S_MAX: Final = 1.0


def batches() -> Iterator[pa.RecordBatch]:
    for at in range(0, ROWS, BATCH):
        values = pa.array([b"%100d" % number for number in range(at, at + BATCH)], pa.binary())
        yield pa.record_batch([values], schema=SCHEMA)


def write(address: str) -> SinkCommit:
    endpoint = Endpoint(f"grpc://{address}", "dev-key")
    stage = endpoint.stage("sunk", SCHEMA, batches())
    return endpoint.commit(SinkKey("query", "", 0), [stage.id])


async def longest_wait(peer: Peer, writing: asyncio.Task[SinkCommit]) -> float:
    """Ping the broker until the batch is written; return the longest round trip."""
    loop = asyncio.get_running_loop()
    longest = 0.0
    while not writing.done():
        sent = loop.time()
        await peer.expect_silence()
        longest = max(longest, loop.time() - sent)
    return longest


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.asyncio
async def test_a_large_batch_takes_bounded_memory_and_does_not_block_others(
    tmp_path: Path,
) -> None:
    """The broker reads and publishes it in chunks, and serves others between them."""
    async with served(tmp_path, "--flight", "127.0.0.1:0") as broker:
        address = (await broker.ready())["flight"]
        process = psutil.Process(broker.process.pid)
        before = process.memory_info().rss
        async with broker.peer() as peer:
            writing = asyncio.create_task(asyncio.to_thread(write, address))
            waited_s = await longest_wait(peer, writing)
        grown = process.memory_info().rss - before
        assert 0 == await broker.end()

    assert SinkCommit(ROWS, repeated=False) == writing.result()
    assert (True, True) == (waited_s < WAIT_S_MAX, grown < GROWTH_BYTES_MAX), (waited_s, grown)
    table = columnar.read(tmp_path / "data", topics=["sunk"], columns=["value"])
    assert list(map(int, table.column("value").to_pylist())) == list(range(ROWS))
