"""The room that is set aside."""

import errno

import pytest

from braidmq.base.limits import KIB, MIB
from braidmq.testing.disk import FakeDisk
from braidmq.wal.reserve import RESERVE_BYTES_MAX, RESERVE_PATH, Reserve


def make(capacity: int | None = None, segment_bytes: int = MIB) -> tuple[FakeDisk, Reserve]:
    disk = FakeDisk(capacity=capacity)
    disk.make_dir("wal")
    return disk, Reserve(disk, segment_bytes)


def test_its_size_follows_the_segments() -> None:
    """A quarter of a segment, at most 16 MiB."""
    assert 256 * KIB == make()[1].bytes_full
    assert RESERVE_BYTES_MAX == make(segment_bytes=1024 * MIB)[1].bytes_full


def test_room_is_taken_given_back_and_taken_again() -> None:
    """Releasing shortens the file, step by step to nothing; refilling restores it."""
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


def test_without_room_it_stays_as_it_is() -> None:
    """Refilling that fails says so and gives back what it took."""
    disk, reserve = make(capacity=100 * KIB)

    assert not reserve.refill()
    assert b"" == disk.content(RESERVE_PATH)
    disk.capacity = None
    disk.fail("allocate", errno.EIO)
    with pytest.raises(OSError, match="error"):
        reserve.refill()
    reserve.close()
