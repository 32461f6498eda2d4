"""The real disk, and writes that do not stop half-way."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.base.errors import DataDirInUseError
from braidmq.testing.disk import FakeDisk, FakeFile, Inode
from braidmq.wal.disk import (
    PASSING_ERRNOS,
    Disk,
    Spares,
    read_all,
    replace_file,
    synced,
    write_all,
)
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


def test_a_call_without_a_descriptor_gets_a_spare() -> None:
    """One after the other is given back; a file that is closed then takes its place."""
    spares = Spares(3)
    calls: list[int] = []

    def call() -> int:
        calls.append(len(spares))
        if len(calls) < 3:
            raise OSError(errno.EMFILE, "none left")
        return os.open(os.devnull, os.O_RDONLY)

    descriptor = spares.attempt(call)
    assert [3, 2, 1] == calls
    spares.close(descriptor)
    assert 2 == len(spares)
    os.fstat(descriptor)  # its number was never free for others
    spares.refill()
    assert 3 == len(spares)
    other = os.open(os.devnull, os.O_RDONLY)
    spares.close(other)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(other)


def test_without_spares_the_error_is_raised() -> None:
    """Also when all of them were given back, and for every other error at once."""
    spares = Spares(2)

    def call(error: int) -> Callable[[], int]:
        def fails() -> int:
            raise OSError(error, os.strerror(error))

        return fails

    with pytest.raises(OSError, match="denied"):
        spares.attempt(call(errno.EACCES))
    assert 2 == len(spares)
    with pytest.raises(OSError, match="open files"):
        spares.attempt(call(errno.EMFILE))
    assert 0 == len(spares)


def test_a_write_that_fails_in_the_middle_is_not_tried_again() -> None:
    """Without memory for the first byte nothing was done; after it, the outcome is unknown."""
    disk = FakeDisk()
    file = disk.open("file", write=True, create=True)
    disk.fail("pwrite", errno.ENOMEM)
    with pytest.raises(OSError, match="memory") as caught:
        write_all(file, b"data", 0)
    assert errno.ENOMEM == caught.value.errno
    disk.heal()
    disk.write_bytes_max = 2
    disk.fail("pwrite", errno.ENOMEM, nth=2)
    with pytest.raises(OSError, match="middle") as caught:
        write_all(file, b"data", 0)
    assert errno.EIO == caught.value.errno


@pytest.mark.parametrize("error", sorted(PASSING_ERRNOS), ids=errno.errorcode.get)
def test_a_failed_sync_has_no_number_that_passes(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file and of a directory; one that is missing still says so."""

    def fail(_descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    disk = Disk(tmp_path)
    file = disk.open("f", write=True, create=True)
    monkeypatch.setattr(os, "fsync", fail)
    syncs: list[Callable[[], None]] = [
        lambda: synced(file.fsync),
        lambda: disk.sync_dir(""),
        lambda: replace_file(disk, "f", b"new"),
        lambda: disk.sync_dir("missing"),
    ]
    found = []
    for sync in syncs:
        with pytest.raises(OSError, match=r".") as caught:
            sync()
        found.append(caught.value.errno)

    assert [errno.EIO] * 3 + [errno.ENOENT] == found
