"""The sink under failure: kills, a full disk, a failing log, a stopping broker."""

import asyncio
import errno
from random import Random

import pytest
from structlog.testing import capture_logs

from braidmq.base.errors import LogFullError
from braidmq.columnar.flight.requests import SinkCommit
from braidmq.server.engine.requests import UnavailableError
from braidmq.server.sink import sink
from braidmq.server.sink.sink import CHUNK_ROWS
from braidmq.testing.disk import PowerCutError
from tests.unit.server.sink.sink_world import ADA, KEY, ROWS, SinkWorld, numbered

pytestmark = pytest.mark.asyncio

# Kills.


@pytest.mark.parametrize("with_snapshots", [False, True])
@pytest.mark.parametrize("kind", ["power", "process"])
async def test_a_kill_at_any_disk_operation_leaves_each_row_once(
    kind: str, monkeypatch: pytest.MonkeyPatch, *, with_snapshots: bool
) -> None:
    """Whether the driver retries with other stages or the broker resumes by itself."""
    monkeypatch.setattr(sink, "CHUNK_ROWS", 1)
    operation = 0
    while await killed_at(operation, kind=kind, with_snapshots=with_snapshots):
        operation += 1
    assert operation > 20  # writes, syncs and marks of six commits


async def killed_at(operation: int, *, kind: str, with_snapshots: bool) -> bool:
    """Kill a commit at its n-th operation, check the result; return whether it was killed."""
    rng = Random(operation)
    world = SinkWorld()
    ids = [world.stage(b"1", b"2"), world.stage(b"3", b"4", b"5")]
    world.disk.cut_power_at(world.disk.operations + operation + 1)
    answered = True
    try:
        task = asyncio.ensure_future(world.sink.commit(ADA, KEY, ids))
        while not task.done():
            await asyncio.sleep(0)
            if with_snapshots and rng.random() < 0.2:
                world.engine.take_snapshot()
            world.work()
        task.result()
    except PowerCutError:
        answered = False
    await world.sink.stop()
    disk = world.disk.crash(rng) if kind == "power" else world.disk.kill()
    after = SinkWorld(disk)
    began = after.engine.broker.sinks.open is not None
    if rng.random() < 0.5:
        await after.run(after.sink.resume())
    again = [after.stage(b"5", b"4", b"3"), after.stage(b"2", b"1")]
    done = await after.run(after.sink.commit(ADA, KEY, again))

    assert done.repeated or not answered
    assert done.repeated or not began
    expected = [b"1", b"2", b"3", b"4", b"5"]
    assert (expected if done.repeated else expected[::-1]) == after.payloads()
    assert set() == set(after.files()) & set(again)
    return not answered


async def test_an_open_batch_is_finished_at_the_next_start() -> None:
    """By the broker itself: the driver may never return."""
    world = SinkWorld()
    stage = world.stage(*numbered(3 * CHUNK_ROWS), size=1000)
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, [stage]))
    await world.until(lambda: len(world.payloads()) >= CHUNK_ROWS)
    await world.sink.stop()
    assert task.cancelled()
    after = SinkWorld(world.disk.kill())
    after.sink.start()
    await after.until(lambda: not after.files())
    await after.sink.stop()

    assert list(numbered(3 * CHUNK_ROWS)) == after.payloads()


# A full log, a failing log, a stopping broker.


@pytest.mark.parametrize("nth", range(1, 14))
async def test_a_full_disk_at_any_write_leaves_each_row_once(nth: int) -> None:
    """The batch is refused as a whole, or finished when there is room again."""
    world = SinkWorld()
    ids = [world.stage(*numbered(CHUNK_ROWS)), world.stage(*ROWS)]
    world.disk.fail("pwrite", errno.ENOSPC, nth=nth)
    try:
        done = await world.run(world.sink.commit(ADA, KEY, ids))
        assert not done.repeated
    except LogFullError:
        assert [] == world.payloads()
        assert world.engine.broker.sinks.open is None
        await world.until(lambda: not world.engine.log_is_full)
        done = await world.run(world.sink.commit(ADA, KEY, ids))

    assert [*numbered(CHUNK_ROWS), *ROWS] == world.payloads()
    assert [*numbered(CHUNK_ROWS), *ROWS] == SinkWorld(world.disk.kill()).payloads()


async def test_a_batch_that_waits_for_room_leaves_the_reserve_alone() -> None:
    """The reserve is for consumers: only their acknowledgements make room."""
    world = SinkWorld()
    stage = world.stage(*numbered(3 * CHUNK_ROWS), size=1000)
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, [stage]))
    await world.until(lambda: len(world.payloads()) >= CHUNK_ROWS)
    world.disk.fail("pwrite", errno.ENOSPC, forever=True)
    await world.until(lambda: world.engine.log_is_full)
    with capture_logs() as logs:
        for _ in range(200):
            await asyncio.sleep(0)
            if world.log.jobs or world.log.reports:
                world.work()
    assert ["the sink's batch waits"] == [entry["event"] for entry in logs]
    assert world.wal._reserve.is_whole  # noqa: SLF001 - only this test needs it
    world.disk.heal()
    await world.until(task.done)

    assert list(numbered(3 * CHUNK_ROWS)) == world.payloads()


async def test_no_batch_begins_while_the_log_is_full() -> None:
    """The stages stay for the next attempt."""
    world = SinkWorld()
    stage = world.stage(*ROWS)
    world.engine.log_failed(LogFullError())

    with pytest.raises(LogFullError):
        await world.sink.commit(ADA, KEY, [stage])
    assert [stage] == world.files()


async def test_a_failing_log_ends_the_batch_and_the_broker() -> None:
    """The driver learns the batch's outcome after the next start."""
    world = SinkWorld()
    world.disk.fail("fdatasync", errno.EIO)
    with pytest.raises(UnavailableError, match="poisoned"):
        await world.run(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    with pytest.raises(UnavailableError, match="poisoned"):
        await world.run(world.sink.commit(ADA, KEY, []))

    assert 1 == len(world.failures)


async def test_a_stopping_broker_leaves_the_batch_for_the_next_start() -> None:
    """Even between two chunks."""
    world = SinkWorld()
    stage = world.stage(*numbered(3 * CHUNK_ROWS), size=1000)
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, [stage]))
    await world.until(lambda: len(world.payloads()) >= CHUNK_ROWS)
    world.engine.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        await world.run(asyncio.wait_for(task, None))
    world.engine.take_snapshot()
    await world.finish_log()
    assert CHUNK_ROWS <= len(world.payloads()) < 3 * CHUNK_ROWS
    after = SinkWorld(world.disk.kill())
    done = await after.run(after.sink.commit(ADA, KEY, []))

    assert SinkCommit(3 * CHUNK_ROWS, repeated=True) == done
    assert list(numbered(3 * CHUNK_ROWS)) == after.payloads()


async def test_a_batch_goes_on_when_its_driver_is_gone() -> None:
    """The driver may never return."""
    world = SinkWorld()
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    await world.run_without_log()
    task.cancel()
    await world.until(lambda: not world.files())

    assert task.cancelled()
    assert list(ROWS) == world.payloads()


async def test_stages_stay_until_their_rows_are_synced() -> None:
    """With a lax fsync policy a power cut can undo rows, and the batch is open again."""
    world = SinkWorld(wal={"fsync": "none"})
    stage = world.stage(*ROWS)
    await world.run(world.sink.commit(ADA, KEY, [stage]))
    assert [stage] == world.files()
    await world.run(world.sink.abort(ADA, [stage]))
    assert [stage] == world.files()
    world.wal.sync()
    await world.run(world.sink.resume())

    assert [] == world.files()


async def test_a_batch_is_done_though_its_stages_cannot_be_deleted() -> None:
    """They expire; the driver must not be told that the commit failed."""
    world = SinkWorld()
    stage = world.stage(*ROWS)
    world.disk.fail("unlink", errno.EIO)
    with capture_logs() as logs:
        done = await world.run(world.sink.commit(ADA, KEY, [stage]))

    assert SinkCommit(5, repeated=False) == done
    assert ["stages cannot be deleted"] == [entry["event"] for entry in logs]
    assert [stage] == world.files()
