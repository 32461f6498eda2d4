"""Snapshots: saving, loading and damage."""

import errno
from random import Random

import pytest

from braidmq.base.errors import DamagedLogError, LogFullError, LogPoisonedError
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal import snapshots
from braidmq.wal.format import checksum
from tests.unit.wal.bodies import flip_bit


def test_the_newest_snapshot_is_loaded_and_two_are_kept() -> None:
    """Older snapshots are deleted once a newer one is durable."""
    disk = FakeDisk()
    assert None is snapshots.load(disk)
    for last_id in (5, 9, 12):
        snapshots.save(disk, last_id, b"state %d" % last_id)

    assert snapshots.Snapshot(12, b"state 12") == snapshots.load(disk)
    assert [12, 9] == snapshots.list_ids(disk)


def test_a_snapshot_with_a_flipped_bit_is_quarantined() -> None:
    """The older snapshot is used instead."""
    whole = snapshots.encode(9, b"newer")
    for bit in range(len(whole) * 8):
        disk = FakeDisk()
        snapshots.save(disk, 5, b"older")
        flipped = flip_bit(whole, bit)
        disk.put(snapshots.snapshot_path(9), flipped)
        rejected: list[str] = []
        assert snapshots.Snapshot(5, b"older") == snapshots.load(disk, rejected)
        assert flipped == disk.content(rejected[0])
        assert [5] == snapshots.list_ids(disk)


def test_a_truncated_snapshot_is_rejected() -> None:
    """Truncated anywhere it is invalid, and so is one under another's name."""
    whole = snapshots.encode(9, b"body")
    for size in range(len(whole)):
        assert None is snapshots.decode(whole[:size])
    disk = FakeDisk()
    disk.put(snapshots.snapshot_path(8), whole)
    assert None is snapshots.load(disk)


def test_a_snapshot_of_a_newer_version_is_damage() -> None:
    """It is intact, so it must not be skipped like a torn one."""
    fields = bytearray(snapshots.encode(9, b"body")[:28])
    fields[8] = 2
    crc = checksum(bytes(fields) + b"body").to_bytes(4, "little")
    with pytest.raises(DamagedLogError, match="version 2"):
        snapshots.decode(bytes(fields) + crc + b"body")


def test_a_power_cut_at_any_operation_leaves_a_snapshot() -> None:
    """After a crash the newest saved snapshot is there, or the one being saved."""
    for operation in range(1, 60):
        disk = FakeDisk()
        saved = 0
        disk.cut_power_at(operation)
        try:
            for last_id in (5, 9, 12, 20):
                snapshots.save(disk, last_id, b"x" * 700 + b"%d" % last_id)
                saved = last_id
        except PowerCutError:
            pass
        for seed in range(10):
            found = snapshots.load(disk.crash(Random(seed)))
            assert saved <= (found.last_id if found else 0)
            assert found is None or found.body == b"x" * 700 + b"%d" % found.last_id


def test_a_full_disk_keeps_the_old_snapshots() -> None:
    """The new snapshot is refused, and nothing is deleted."""
    disk = FakeDisk()
    snapshots.save(disk, 5, b"old")
    disk.capacity = disk.used_bytes + 10
    with pytest.raises(LogFullError):
        snapshots.save(disk, 9, b"n" * 100)

    assert snapshots.Snapshot(5, b"old") == snapshots.load(disk)
    disk.capacity = None
    snapshots.save(disk, 9, b"n" * 100)


@pytest.mark.parametrize("operation", ["fsync", "sync_dir", "rename", "pwrite", "open"])
def test_a_failing_disk_is_final(operation: str) -> None:
    """EIO anywhere poisons the log; so does a failed sync with any error."""
    disk = FakeDisk()
    disk.fail(operation, errno.EIO)
    with pytest.raises(LogPoisonedError):
        snapshots.save(disk, 5, b"x")
    if "sync" in operation:
        disk = FakeDisk()
        disk.fail(operation, errno.ENOSPC)
        with pytest.raises(LogPoisonedError):
            snapshots.save(disk, 5, b"x")
