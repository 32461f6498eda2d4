"""`kill -9` of the real daemon, or a power cut, in the middle of a sink's commit, repeatedly.

BRAIDMQ_KILLS and BRAIDMQ_CUTS set how often, BRAIDMQ_CHAOS_SEED the seed.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
import pytest

from braidmq import columnar
from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkCommit, SinkKey
from tests.chaos.test_power_cut import Volume
from tests.integration.blip.peer import until
from tests.integration.served import Served, served

CUTS: Final = max(3, int(os.environ.get("BRAIDMQ_CUTS", "24")) // 8)
KILLS: Final = max(6, int(os.environ.get("BRAIDMQ_KILLS", "52")) // 8)
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
ROWS: Final = 20_000
"""Rows per batch: about twenty commits of the log."""

QUERY: Final = "3f0b34a7-7a1c-4a5e-9d0c-5d1f0f1f8d11"


class Driver:
    """Does what a Spark query does at the end of each batch and after a kill of the broker."""

    def __init__(self, directory: Path) -> None:
        self.rng = Random(SEED)
        self.directory = directory
        self.batch = 0
        self.cut_short = 0  # batches interrupted by a kill after their intent was durable

    def durable_id(self) -> int:
        """Return the newest durable id, as another process reads it."""
        return int.from_bytes((self.directory / "data/wal/durable").read_bytes()[:8], "little")

    def rows(self) -> list[bytes]:
        return [b"%d.%d" % (self.batch, number) for number in range(ROWS)]

    def write(self, address: str) -> SinkCommit:
        """Stage the current batch, split and ordered differently each time, and commit it."""
        endpoint = Endpoint(f"grpc://{address}", "dev-key")
        rows = self.rows()
        self.rng.shuffle(rows)
        cuts = sorted(self.rng.sample(range(ROWS), self.rng.randint(0, 3)))
        stages: list[str] = []
        schema = pa.schema([("value", pa.binary())])
        for first, last in zip([0, *cuts], [*cuts, ROWS], strict=True):
            batch = pa.record_batch([pa.array(rows[first:last], pa.binary())], schema=schema)
            stages.append(endpoint.stage("sunk", schema, iter([batch])).id)
        return endpoint.commit(SinkKey(QUERY, "", self.batch), stages)

    async def live(self, broker: Served) -> None:
        """Write batches until the broker is killed, at some row of one of them."""
        address = (await broker.ready())["flight"]
        at = self.durable_id() + self.rng.randrange(2 * ROWS)
        writing = asyncio.create_task(self._write_on(address))
        await until(lambda: self.durable_id() >= at or writing.done())
        await self.strike(broker)
        with suppress(BraidError):
            await writing

    async def strike(self, broker: Served) -> None:
        """End the broker, as `kill -9` does."""
        await broker.end(signal.SIGKILL)

    async def _write_on(self, address: str) -> None:
        while True:
            done = await asyncio.to_thread(self.write, address)
            self.cut_short += done.repeated
            self.batch += 1

    async def finish(self, broker: Served) -> None:
        """Write the current batch, undisturbed."""
        await asyncio.to_thread(self.write, (await broker.ready())["flight"])


async def killed_repeatedly(driver: Driver, kills: int) -> None:
    for _ in range(kills):
        async with served(driver.directory, "--flight", "127.0.0.1:0") as broker:
            await driver.live(broker)
    async with served(driver.directory, "--flight", "127.0.0.1:0") as broker:
        await driver.finish(broker)
        assert 0 == await broker.end()


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
def test_each_sink_row_is_stored_once_whenever_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    """Batches are complete and in order, and hold only rows from Spark."""
    driver = Driver(tmp_path)
    asyncio.run(killed_repeatedly(driver, KILLS))
    assert_each_row_once(driver)


class CutDriver(Driver):
    """Cuts the power of the broker's disk instead."""

    def __init__(self, directory: Path, volume: Volume) -> None:
        super().__init__(directory)
        self._volume = volume
        # A link: the ready file beside it is not synced, and a cut would leave it empty.
        (volume.path / "data").mkdir()
        (directory / "data").symlink_to(volume.path / "data")
        volume.unmount()
        volume.mount()

    async def strike(self, broker: Served) -> None:
        """Cut the power, then end the broker."""
        self._volume.cut_power()
        await broker.end(signal.SIGKILL)
        self._volume.unmount()
        self._volume.mount()


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * CUTS)
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_each_sink_row_is_stored_once_whenever_the_power_is_cut(
    tmp_path: Path, file_system: str
) -> None:
    """Stages, intents and rows are synced in that order; a repeated batch is found out."""
    with Volume.at(tmp_path, file_system) as volume:
        driver = CutDriver(tmp_path, volume)
        asyncio.run(killed_repeatedly(driver, CUTS))
        assert_each_row_once(driver)


def assert_each_row_once(driver: Driver) -> None:
    table = columnar.read(driver.directory / "data", topics=["sunk"])
    values = table.column("value").to_pylist()

    assert driver.cut_short >= 1
    assert (driver.batch + 1) * ROWS == len(values)
    for batch in range(driver.batch + 1):
        driver.batch = batch
        assert sorted(driver.rows()) == sorted(values[batch * ROWS : (batch + 1) * ROWS])
    assert {"spark"} == set(table.column("origin").to_pylist())
