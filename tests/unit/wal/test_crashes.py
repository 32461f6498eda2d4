"""Crashes of the log at every I/O operation: it keeps its promises and invents nothing."""

import errno
from contextlib import suppress
from random import Random

import pytest

from braidmq.base.errors import LogFullError, LogPoisonedError
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal import snapshots
from braidmq.wal.maintenance.survey import verify
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import describe, note, numbered, open_log, write

WORKLOAD_STEPS = 12


def workload(disk: FakeDisk, committed: list[bytes], appended: list[bytes]) -> None:
    """Open, append, commit, rotate, snapshot and retain; record what was committed."""
    disk.lock("LOCK")
    wal = open_log(disk, limit=1, hours=1.0)
    for step in range(WORKLOAD_STEPS):
        bodies = numbered(9, topic=b"t%d" % (step % 3), size=40 + 60 * (step % 4))
        appended += bodies
        wal.append(bodies)
        wal.commit(step)
        committed += bodies
        if step % 4 == 3:
            snapshots.save(disk, wal.committed_id, b"state %d" % wal.committed_id)
        if step % 5 == 4 and (kept := snapshots.list_ids(disk)):
            wal.retain(kept[-1] + 1, step, recovery_id=kept[-1] + 1)
    wal.close()


def check_survivor(
    disk: FakeDisk, committed: list[bytes], appended: list[bytes], *, go_on: bool = True
) -> None:
    """Check that everything committed is there, in order and byte for byte, and no more."""
    found = snapshots.load(disk)
    after_id = found.last_id if found else 0
    if found:
        assert b"state %d" % after_id == found.body
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen, after_id=after_id)
    assert [] == wal.recovered.quarantined or wal.recovered.torn_bytes
    first = wal.first_id
    assert first <= after_id + 1
    assert len(committed) <= wal.committed_id <= len(appended)
    expected = list(enumerate(appended, 1))[: wal.committed_id]
    assert expected[after_id:] == seen
    assert expected[first - 1 :] == _from(wal, first - 1)
    if go_on:
        write(wal, [note(b"after the crash")])
    assert verify(disk, describe).is_intact


def _from(wal: Wal, after_id: int) -> list[tuple[int, bytes]]:
    found = wal.read(
        after_id, topic=None, up_to=wal.committed_id, count_max=10**6, bytes_max=10**9
    )
    assert found.lost is None
    return found.records


def _count_operations() -> int:
    disk = FakeDisk()
    workload(disk, [], [])
    return disk.operations


@pytest.mark.parametrize("third", range(3))
def test_a_power_cut_at_any_operation_loses_nothing(third: int) -> None:
    """Cut the power before each I/O operation, keep random sectors, and recover."""
    states = 0
    for operation in range(1 + third, _count_operations() + 2, 3):
        disk = FakeDisk()
        committed: list[bytes] = []
        appended: list[bytes] = []
        disk.cut_power_at(operation)
        with suppress(PowerCutError):
            workload(disk, committed, appended)
        for seed in range(40):
            check_survivor(disk.crash(Random(operation * 97 + seed)), committed, appended)
            states += 1
        check_survivor(disk.kill(), committed, appended)
    assert states > 1000


def test_a_power_cut_during_recovery_loses_nothing() -> None:
    """Recovery interrupted at any operation can be started again."""
    disk = FakeDisk()
    committed: list[bytes] = []
    appended: list[bytes] = []
    disk.cut_power_at(_count_operations() * 2 // 3)
    with pytest.raises(PowerCutError):
        workload(disk, committed, appended)
    for seed in range(8):
        torn = disk.crash(Random(seed))
        for operation in range(1, 40):
            again = torn.kill()
            again.cut_power_at(operation)
            try:
                check_survivor(again, committed, appended, go_on=False)
            except PowerCutError:
                check_survivor(again.crash(Random(operation)), committed, appended)
            else:
                break


def test_a_power_cut_during_deletion_leaves_no_hole() -> None:
    """The oldest segment is gone for good before the next one is deleted."""
    whole = FakeDisk()
    wal = open_log(whole)
    bodies = numbered(150)
    write(wal, *(bodies[i : i + 10] for i in range(0, 150, 10)))
    needed_id = wal.segments()[-1].first_id
    wal.close()
    for operation in range(1, 20):
        disk = whole.kill()
        wal = open_log(disk, limit=1)
        disk.cut_power_at(disk.operations + operation)
        with suppress(PowerCutError):
            wal.retain(needed_id, 1)
        for seed in range(20):
            after = open_log(disk.crash(Random(seed)), after_id=needed_id - 1)
            assert list(enumerate(bodies, 1))[after.first_id - 1 :] == _from(
                after, after.first_id - 1
            )


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "fsync", "truncate", "rename"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_call_may_fail_at_any_time(operation: str, error: int) -> None:
    """Fail the Nth call, for every N: nothing committed is lost, and no commit follows."""
    for nth in range(1, 200):
        disk = FakeDisk()
        committed: list[bytes] = []
        appended: list[bytes] = []
        disk.fail(operation, error, nth=nth)
        try:
            workload(disk, committed, appended)
        except (LogFullError, LogPoisonedError):
            disk.heal()
            check_survivor(disk.crash(Random(nth)), committed, appended)
        else:
            break
