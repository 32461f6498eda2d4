"""The durable mark."""

import errno

import pytest

from braidmq.testing.disk import FakeDisk
from braidmq.wal.format import encode_mark
from braidmq.wal.mark import MARK_PATH, DurableMark, known_mark, read_mark


def test_a_mark_that_is_not_valid_is_not_known() -> None:
    """A reader must not take it for an empty log."""
    disk = FakeDisk()
    assert None is known_mark(disk)
    for data in (b"", bytes(12), encode_mark(5)[:9]):
        disk.put(MARK_PATH, data)
        assert None is known_mark(disk)
    disk.put(MARK_PATH, encode_mark(5))
    assert 5 == known_mark(disk)


def test_reading_the_durable_mark() -> None:
    """A missing or empty mark is 0; a torn one is unreadable."""
    disk = FakeDisk()
    assert 0 == read_mark(disk)
    disk.put(MARK_PATH, b"")
    assert 0 == read_mark(disk)
    disk.put(MARK_PATH, encode_mark(5))
    assert 5 == read_mark(disk)
    disk.put(MARK_PATH, encode_mark(5)[:9])
    assert None is read_mark(disk)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.ENOMEM])
def test_a_mark_that_cannot_be_written_now_stays_old(error: int) -> None:
    """It is a lower bound; any other error is raised."""
    disk = FakeDisk()
    disk.make_dir("wal")
    mark = DurableMark(disk)
    mark.write(5)
    disk.fail("pwrite", error)
    mark.write(6)
    assert 5 == read_mark(disk)
    mark.write(7)
    assert 7 == read_mark(disk)
    disk.fail("pwrite", errno.EIO)
    with pytest.raises(OSError, match="error"):
        mark.write(8)
    mark.close()
