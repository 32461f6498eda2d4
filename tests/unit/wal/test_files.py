"""Writing that does not stop half-way."""

import errno

import pytest

from braidmq.testing.disk import FakeDisk, FakeFile, Inode
from braidmq.wal.files import read_all, write_all


class Stubborn(FakeFile):
    """A file that takes the first write and then nothing more."""

    def pwrite(self, data: bytes, offset: int) -> int:
        return super().pwrite(data, offset) if offset == 0 else 0


class Sipping(FakeFile):
    """A file that gives one byte at a time."""

    def pread(self, size: int, offset: int) -> bytes:
        return super().pread(min(size, 1), offset)


def test_short_writes_are_continued() -> None:
    """All bytes arrive, in their places."""
    disk = FakeDisk()
    disk.write_bytes_max = 3
    write_all(disk.open("f", write=True, create=True), b"0123456789", 2)

    assert b"\0\x000123456789" == disk.content("f")


def test_a_write_without_progress_is_an_error() -> None:
    """A disk that takes nothing is not asked for ever."""
    disk = FakeDisk()
    disk.write_bytes_max = 3
    file = Stubborn(disk, Inode(), write=True)
    with pytest.raises(OSError, match="no progress") as caught:
        write_all(file, b"0123456789", 0)
    assert errno.EIO == caught.value.errno


def test_short_reads_are_continued() -> None:
    """Fewer bytes than asked for means the end of the file, nothing else."""
    disk = FakeDisk()
    file = Sipping(disk, Inode(bytearray(b"0123456789")), write=False)

    assert b"2345" == read_all(file, 4, 2)
    assert b"89" == read_all(file, 4, 8)
