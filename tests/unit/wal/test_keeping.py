"""Snapshots and retention, also on a disk without room."""

import errno

import pytest

from braidmq.base.errors import LogPoisonedError
from braidmq.testing.disk import FakeDisk
from braidmq.wal import snapshots
from braidmq.wal.keeping import Keeper
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import SMALL, batches_of, numbered, open_log, write

BODIES = numbered(120)
STATE = bytes(300)


def full_log(*, force: float = 0) -> tuple[FakeDisk, Wal, Keeper]:
    """Return a log with two snapshots on a disk on which no byte is free."""
    disk = FakeDisk()
    wal = open_log(disk, limit=SMALL, hours=0.0, force=force)
    keeper = Keeper(wal, disk, needed_id=0)
    for batch in batches_of(BODIES, 40):
        write(wal, *batches_of(batch, 7))
        keeper.keep(wal.committed_id, [STATE], needed_id=1, now_us=1)
    disk.capacity = disk.used_bytes
    return disk, wal, keeper


def test_a_snapshot_on_a_full_disk_is_written_out_of_the_reserve() -> None:
    """So retention can go on, and make the room that the reserve needs to be whole."""
    _, wal, keeper = full_log()
    assert wal.has_room
    wal.append([BODIES[0]], urgent=True)
    wal.commit(1)
    keeper.keep(121, [STATE], needed_id=122, now_us=1)

    assert wal.first_id > 1
    assert wal.refill_reserve()


def test_without_any_room_retention_goes_by_the_snapshots_that_are_kept() -> None:
    """And by what readers needed when the newest of them was taken."""
    disk, wal, keeper = full_log()
    while wal.release_reserve(1):
        pass
    disk.capacity = disk.used_bytes
    keeper.keep(120, [bytes(5000)], needed_id=121, now_us=1)
    assert 1 == wal.first_id  # their readers stood at 1
    disk.capacity += 5000
    keeper.keep(120, [STATE], needed_id=121, now_us=1)
    assert wal.first_id > 1


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_whatever_passes_harms_no_snapshot(error: int) -> None:
    """At every call of the disk; then the next one is kept."""
    for nth in range(1, 60):
        disk, wal, keeper = full_log(force=1)
        disk.capacity = None
        disk.fail("*", error, nth=nth)
        try:
            keeper.keep(120, [STATE], needed_id=1, now_us=1)
        except LogPoisonedError:
            assert {"fsync", "fdatasync", "sync_dir"} & set(disk.failed)
            continue
        disk.heal()
        assert wal.first_id <= snapshots.list_ids(disk)[-1] + 1
        if not disk.failed:
            return
        keeper.keep(120, [STATE], needed_id=1, now_us=1)
        assert 120 == snapshots.list_ids(disk)[0]
    raise AssertionError("it never succeeds")


def test_forced_retention_is_told() -> None:
    """Readers below the floor have lost something; without force it is not."""
    _, _, keeper = full_log(force=1)
    floor = keeper.keep(120, [STATE], needed_id=121, now_us=1)
    assert None is floor
    _, wal, keeper = full_log()
    assert None is keeper.retain(1)
    forced = open_log(FakeDisk(), limit=SMALL, hours=0.0, force=1)
    assert forced.floor.forced_id == 0 == wal.floor.forced_id


def test_a_start_on_a_full_disk_deletes_by_what_was_recovered() -> None:
    """Without room for a snapshot of its own; readers had passed all of it."""
    disk, wal, keeper = full_log()
    disk.capacity = None
    snapshots.save(disk, 120, STATE)
    snapshots.save(disk, 121, STATE)
    wal.close()
    for needed_id, is_deleted in ((1, False), (121, True)):
        again = open_log(disk, after_id=120, limit=SMALL)
        disk.capacity = disk.used_bytes
        keeper = Keeper(again, disk, needed_id=needed_id)
        while again.release_reserve(1):
            disk.capacity = disk.used_bytes
        keeper.keep(120, [bytes(50_000)], needed_id=121, now_us=1)
        assert is_deleted == (again.first_id > 1)
