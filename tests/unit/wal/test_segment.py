"""Segments: names, creation and growth; and the reserve."""

import errno
from random import Random

import pytest

from braidmq.base.errors import LogPoisonedError
from braidmq.base.limits import KIB, MIB
from braidmq.testing.disk import FakeDisk
from braidmq.wal.format import HEADER_BYTES, checksum
from braidmq.wal.index import index_path
from braidmq.wal.segment import (
    RESERVE_BYTES_MAX,
    RESERVE_PATH,
    ActiveSegment,
    Reserve,
    list_segments,
    removal_of,
    segment_path,
    start_segment,
)
from tests.unit.wal.bodies import describe, message, note


def start(disk: FakeDisk) -> ActiveSegment:
    disk.make_dir("wal")
    disk.sync_dir("")
    return start_segment(disk, 1, 7)


def test_only_segments_are_listed() -> None:
    """Foreign files in the directory are ignored and left alone."""
    disk = FakeDisk()
    for name in ("5.wal", "x.wal", "0" * 19 + "5.idx", "0" * 19 + "5.wal.tmp", "reserve"):
        disk.put("wal/" + name, b"foreign")
    disk.put(segment_path(12), b"")
    disk.put(segment_path(3), b"")

    assert [3, 12] == list_segments(disk)
    assert "wal/00000000000000000003.wal" == segment_path(3)


def test_a_new_segment_survives_a_power_cut() -> None:
    """Header and directory entry are durable before the segment is used."""
    disk = FakeDisk()
    start(disk)

    for seed in range(10):
        after = disk.crash(Random(seed))
        assert [1] == list_segments(after)
        assert HEADER_BYTES == len(after.content(segment_path(1)))


@pytest.mark.parametrize("operation", ["fsync", "sync_dir"])
def test_a_new_segment_that_cannot_be_synced_poisons_the_log(operation: str) -> None:
    """Even with ENOSPC: a failed sync is final."""
    disk = FakeDisk()
    disk.make_dir("wal")
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(LogPoisonedError):
        start_segment(disk, 1, 0)


def test_rolling_back_leaves_no_trace() -> None:
    """File, index and topics are as before, even after a power cut."""
    disk = FakeDisk()
    segment = start(disk)
    segment.append([message(b"a", b"1")], describe, fence=True)
    segment.file.fdatasync()
    before = disk.content(segment_path(1))
    rows = disk.content(index_path(1))
    disk.write_bytes_max = 100
    batch = [message(b"b", b"2" * 900), *[note(b"n")] * 20]
    calls = (16 * 21 + sum(map(len, batch))) // 100 + 1 + 32 * 21 // 100 + 1
    for nth in range(1, calls + 1):
        disk.fail("pwrite", errno.ENOSPC, nth=nth)
        with pytest.raises(OSError, match="space"):
            segment.append(batch, describe, fence=True)
        disk.heal()
        disk.write_back()
        segment.roll_back()

        assert before == disk.content(segment_path(1))
        assert rows == disk.content(index_path(1))
        assert [b"", b"a"] == list(segment.index.topics)
        for seed in range(10):
            assert before == disk.crash(Random(seed)).content(segment_path(1))


def test_a_segment_describes_itself() -> None:
    """Ids, size and block checksums match what was written."""
    disk = FakeDisk()
    segment = start(disk)
    assert segment.is_empty
    assert 0 == segment.info(sealed=False).last_id
    segment.append([note(b"1"), note(b"2")], describe, fence=True)

    info = segment.info(sealed=True)
    content = disk.content(segment_path(1))
    assert (1, 2, len(content), 7) == (info.first_id, info.last_id, info.size, info.created_us)
    assert segment_path(1) == info.path
    assert [checksum(content)] == segment.blocks.all()
    assert not segment.is_empty


def make(capacity: int | None = None, segment_bytes: int = MIB) -> tuple[FakeDisk, Reserve]:
    disk = FakeDisk(capacity=capacity)
    disk.make_dir("wal")
    return disk, Reserve(disk, segment_bytes)


def test_the_reserve_is_a_quarter_of_a_segment() -> None:
    """But at most 16 MiB."""
    assert 256 * KIB == make()[1].bytes_full
    assert RESERVE_BYTES_MAX == make(segment_bytes=1024 * MIB)[1].bytes_full


def test_the_reserve_is_released_and_refilled() -> None:
    """Releasing shortens the file step by step to nothing; refilling restores it."""
    disk, reserve = make()
    assert 0 == reserve.bytes_left
    assert reserve.refill()
    assert reserve.is_whole
    assert 256 * KIB == len(disk.content(RESERVE_PATH))
    released = 0
    while reserve.release(KIB):
        released += 1
        assert reserve.bytes_left == len(disk.content(RESERVE_PATH))
    assert 4 == released
    assert 0 == reserve.bytes_left
    assert reserve.refill()
    assert reserve.refill()


def test_a_reserve_takes_the_part_that_there_is_room_for() -> None:
    """Acknowledgements need some of it even if publishing stays refused."""
    disk, reserve = make(capacity=100 * KIB)

    assert not reserve.refill()
    assert 64 * KIB == reserve.bytes_left == len(disk.content(RESERVE_PATH))
    disk.capacity = None
    disk.fail("allocate", errno.EIO)
    with pytest.raises(OSError, match="error"):
        reserve.refill()
    disk.heal()
    assert reserve.refill()
    reserve.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
def test_a_reserve_without_a_file_is_made_later(error: int) -> None:
    """The log opens all the same, with nothing in reserve."""
    disk, reserve = make()
    disk.fail("open", error)

    assert not reserve.refill()
    assert not reserve.release(1)
    disk.heal()
    assert reserve.refill()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_new_segment_without_a_descriptor_can_be_removed_again(nth: int) -> None:
    """Its removal may have to be tried again too, and is then durable."""
    disk = FakeDisk()
    disk.make_dir("wal")
    disk.sync_dir("")
    for _ in range(2):  # that call and the next
        disk.fail("open_dir", errno.EMFILE, nth=nth)
    with pytest.raises(OSError, match="open files"):
        start_segment(disk, 1, 7)
    remove = removal_of(disk, 1)
    with pytest.raises(OSError, match="open files"):
        remove()
    remove()

    assert [] == disk.crash(Random(1)).paths()
