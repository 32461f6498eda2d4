"""The real disk, and writes that do not stop half-way."""

import errno
import stat
from pathlib import Path

import pytest

from braidmq.base.errors import DataDirInUseError
from braidmq.testing.disk import FakeDisk, FakeFile, Inode
from braidmq.wal.disk import Disk, read_all, write_all
from braidmq.wal.maintenance.survey import verify
from tests.unit.wal.bodies import (
    batches_of,
    describe,
    numbered,
    open_log,
    read_everything,
    write,
)


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """Files are 0600 and directories 0700, whatever the umask allows."""
    disk = Disk(tmp_path)
    disk.make_dir("wal")
    disk.open("wal/f", write=True, create=True).close()

    assert 0o600 == stat.S_IMODE((tmp_path / "wal/f").stat().st_mode)
    assert 0o700 == stat.S_IMODE((tmp_path / "wal").stat().st_mode)


def test_the_operations_of_a_file(tmp_path: Path) -> None:
    """Write, read, size, truncate, allocate and sync act on the real file."""
    disk = Disk(tmp_path)
    file = disk.open("f", write=True, create=True)
    assert 5 == file.pwrite(b"hello", 3)
    assert b"lo" == file.pread(10, 6)
    assert 8 == file.size()
    file.truncate(4)
    file.fdatasync()
    file.fsync()
    assert b"\0\0\0h" == (tmp_path / "f").read_bytes()
    file.allocate(10_000)
    assert 10_000 == file.size()
    assert (tmp_path / "f").stat().st_blocks * 512 >= 10_000
    file.close()
    file.close()


def test_the_operations_of_a_directory(tmp_path: Path) -> None:
    """List, rename, unlink and sync act on the real directory."""
    disk = Disk(tmp_path)
    assert [] == disk.list_dir("d")
    disk.make_dir("d")
    disk.make_dir("d")
    for name in ("d/b", "d/a"):
        disk.open(name, write=True, create=True)
    disk.sync_dir("d")
    assert ["a", "b"] == disk.list_dir("d")
    disk.rename("d/a", "d/b")
    assert ["b"] == disk.list_dir("d")
    disk.unlink("d/b")
    assert not disk.exists("d/b")
    assert disk.exists("d")
    assert 0 < disk.free_bytes()
    with pytest.raises(FileNotFoundError):
        disk.open("d/c", write=False, create=False)


def test_dropping_the_last_reference_closes_a_file(tmp_path: Path) -> None:
    """Descriptors do not leak, and none is closed while a reader still uses it."""
    disk = Disk(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = disk.open("f", write=True, create=True)
    assert before + 1 == len(list(Path("/proc/self/fd").iterdir()))
    del file

    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_two_brokers_never_share_a_directory(tmp_path: Path) -> None:
    """The lock is exclusive, and free again once it is released."""
    disk, other = Disk(tmp_path), Disk(tmp_path)
    disk.lock("LOCK")
    with pytest.raises(DataDirInUseError):
        other.lock("LOCK")
    disk.unlock("LOCK")
    other.lock("LOCK")
    other.unlock("LOCK")


def test_a_log_on_the_real_disk(tmp_path: Path) -> None:
    """What works on the fake works here: append, rotate, read, reopen, retain."""
    disk = Disk(tmp_path)
    bodies = numbered(100)
    wal = open_log(disk, limit=1)
    write(wal, *batches_of(bodies, 9))
    expected = list(enumerate(bodies, 1))
    assert expected == read_everything(wal)
    wal.close()
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen, limit=1)
    assert expected == seen
    report = verify(disk, describe)
    assert ([], []) == (report.damages, report.notes)
    assert wal.scrub(10**9) > 0
    gone = wal.retain(50, 1)
    assert gone
    assert not any((tmp_path / path).exists() for path in gone)
    wal.close()


class Stubborn(FakeFile):
    """A file that accepts the first write and then no more bytes."""

    def pwrite(self, data: bytes, offset: int) -> int:
        return super().pwrite(data, offset) if offset == 0 else 0


class Sipping(FakeFile):
    """A file that returns one byte at a time."""

    def pread(self, size: int, offset: int) -> bytes:
        return super().pread(min(size, 1), offset)


def test_short_writes_are_continued() -> None:
    """All bytes arrive in the right place."""
    disk = FakeDisk()
    disk.write_bytes_max = 3
    write_all(disk.open("f", write=True, create=True), b"0123456789", 2)

    assert b"\0\x000123456789" == disk.content("f")


def test_a_write_without_progress_is_an_error() -> None:
    """A disk that accepts no bytes is not retried for ever."""
    disk = FakeDisk()
    disk.write_bytes_max = 3
    file = Stubborn(disk, Inode(), write=True)
    with pytest.raises(OSError, match="no progress") as caught:
        write_all(file, b"0123456789", 0)
    assert errno.EIO == caught.value.errno


def test_short_reads_are_continued() -> None:
    """Fewer bytes than requested always means the end of the file."""
    disk = FakeDisk()
    file = Sipping(disk, Inode(bytearray(b"0123456789")), write=False)

    assert b"2345" == read_all(file, 4, 2)
    assert b"89" == read_all(file, 4, 8)
