"""The fake disk: it loses what a real disk may lose, and nothing else."""

import errno
from random import Random

import pytest

from braidmq.base.errors import DataDirInUseError
from braidmq.testing.disk import SECTOR_BYTES, FakeDisk, PowerCutError
from braidmq.wal.disk import File, Files

SEEDS = range(200)


def disk_with_file(content: bytes = b"") -> tuple[FakeDisk, File]:
    """Return a disk with one durable file, and that file."""
    disk = FakeDisk()
    file = disk.open("f", write=True, create=True)
    file.pwrite(content, 0)
    file.fsync()
    disk.sync_dir("")
    return disk, file


def survivors(disk: FakeDisk) -> set[bytes | None]:
    crashed = (disk.crash(Random(seed)) for seed in SEEDS)
    return {after.content("f") if after.exists("f") else None for after in crashed}


def test_the_disk_implements_the_protocols_of_the_log() -> None:
    """The type checker accepts it as `Files`, and its files as `File`."""
    files: Files = FakeDisk()
    file: File = files.open("f", write=True, create=True)

    assert 0 == file.size()


def test_synced_bytes_survive_every_crash() -> None:
    """After fsync or fdatasync a power cut loses nothing."""
    disk, file = disk_with_file(b"a" * 3000)
    file.pwrite(b"b" * 100, 1000)
    file.fdatasync()

    assert {b"a" * 1000 + b"b" * 100 + b"a" * 1900} == survivors(disk)


def test_unsynced_sectors_survive_in_any_combination() -> None:
    """Of two written sectors none, either or both may survive, and one may be torn."""
    disk, file = disk_with_file(b"a" * 2 * SECTOR_BYTES)
    file.pwrite(b"b" * 2 * SECTOR_BYTES, 0)
    found = {content for content in survivors(disk) if content}
    old, new = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES

    assert {old + old, old + new, new + old, new + new} <= found
    torn = [c for c in found if 0 < c[:SECTOR_BYTES].count(b"b") < SECTOR_BYTES]
    assert torn
    assert all(c.rstrip(b"a").startswith(b"b" * c.count(b"b", 0, 9)) for c in torn)


def test_the_size_may_be_old_new_or_in_between() -> None:
    """Unsynced bytes may be missing, cut off, or replaced by zeros."""
    disk, file = disk_with_file(b"a")
    file.pwrite(b"b" * 2000, 1)
    sizes = {len(content) for content in survivors(disk) if content}
    assert {1, 2001} <= sizes
    assert len(sizes) > 5
    assert any(content and content.endswith(b"\0" * 600) for content in survivors(disk))

    disk, file = disk_with_file(b"a" * 900)
    file.truncate(10)
    assert {10, 900} <= {len(content) for content in survivors(disk) if content}


def test_directory_entries_may_vanish_until_they_are_synced() -> None:
    """A new file may be lost in a crash, synced or not, until its directory is synced."""
    disk = FakeDisk()
    disk.open("f", write=True, create=True).fsync()
    assert {None, b""} == survivors(disk)
    disk.sync_dir("")
    assert {b""} == survivors(disk)
    disk.unlink("f")
    assert {None, b""} == survivors(disk)


def test_a_rename_is_all_or_nothing() -> None:
    """A crash never leaves both names or neither."""
    disk, file = disk_with_file(b"new")
    disk.put("g", b"old")
    disk.rename("f", "g")
    found = set()
    for seed in SEEDS:
        after = disk.crash(Random(seed))
        found.add((after.exists("f"), after.content("g")))

    assert {(True, b"old"), (False, b"new")} == found
    assert b"new" == file.pread(9, 0)


def test_an_unsynced_directory_is_lost_with_its_files() -> None:
    """Even if the files themselves were synced."""
    disk = FakeDisk()
    disk.make_dir("d")
    disk.open("d/f", write=True, create=True).fsync()
    disk.sync_dir("d")
    found = {tuple(disk.crash(Random(seed)).paths()) for seed in SEEDS}
    assert {(), ("d/f",)} == found
    disk.sync_dir("")
    assert {("d/f",)} == {tuple(disk.crash(Random(seed)).paths()) for seed in SEEDS}
    with pytest.raises(FileNotFoundError):
        disk.open("nowhere/f", write=True, create=True)


def test_the_writes_of_a_killed_process_remain() -> None:
    """After a kill all writes are there; a power cut may still lose them."""
    disk, file = disk_with_file(b"a")
    file.pwrite(b"b", 0)
    disk.open("g", write=True, create=True)
    after = disk.kill()

    assert (b"b", ["f", "g"]) == (after.content("f"), after.paths())
    assert {b"a", b"b"} == survivors(after)
    file.pwrite(b"c", 0)
    assert b"b" == after.content("f")


def test_the_kernel_may_write_back_without_a_sync() -> None:
    """Such bytes survive, and may return after they were truncated."""
    disk, file = disk_with_file(b"a")
    file.pwrite(b"b" * 600, 0)
    disk.write_back()
    assert {b"b" * 600} == survivors(disk)
    file.truncate(1)
    assert {b"b", b"b" * 600} <= survivors(disk)


def test_the_same_seed_gives_the_same_crash() -> None:
    """So that a disaster can be replayed."""
    disk, file = disk_with_file(b"a" * 5000)
    file.pwrite(b"b" * 5000, 0)
    contents = [disk.crash(Random(5)).content("f") for _ in range(3)]
    assert 1 == len(set(contents))


def test_operations_fail_when_told_to() -> None:
    """The nth call of an operation fails, once or until the disk is healed."""
    disk, file = disk_with_file()
    disk.fail("pwrite", errno.EIO, nth=2)
    file.pwrite(b"1", 0)
    with pytest.raises(OSError, match="error"):
        file.pwrite(b"2", 0)
    file.pwrite(b"3", 0)
    disk.fail("*", errno.EIO, forever=True)
    for operation in (file.fsync, file.fdatasync, lambda: file.truncate(0)):
        with pytest.raises(OSError, match="error"):
            operation()
    assert b"3" == file.pread(1, 0)
    disk.heal()
    file.fsync()


def test_the_disk_runs_full() -> None:
    """The last write is short, the next is refused; truncating frees space."""
    disk = FakeDisk(capacity=10)
    file = disk.open("f", write=True, create=True)
    assert 10 == file.pwrite(b"0123456789abc", 0)
    with pytest.raises(OSError, match="space"):
        file.pwrite(b"x", 10)
    assert 2 == file.pwrite(b"xx", 0)
    with pytest.raises(OSError, match="space"):
        file.allocate(11)
    assert 0 == disk.free_bytes()
    file.truncate(4)
    assert 6 == disk.free_bytes()
    file.allocate(10)
    assert b"xx23" + bytes(6) == disk.content("f")


def test_writes_may_be_short() -> None:
    """No more than write_bytes_max is taken at once."""
    disk, file = disk_with_file()
    disk.write_bytes_max = 4
    assert 4 == file.pwrite(b"0123456789", 0)
    assert b"0123" == disk.content("f")


def test_a_power_cut_lasts() -> None:
    """From the given operation on every operation fails."""
    disk, file = disk_with_file()
    disk.cut_power_at(disk.operations + 2)
    file.pwrite(b"a", 0)
    for _ in range(2):
        with pytest.raises(PowerCutError):
            file.pwrite(b"b", 0)
    assert b"a" == disk.content("f")


def test_operations_are_counted_by_name() -> None:
    """Those that change or sync the disk; reading is not counted."""
    disk, file = disk_with_file(b"x")
    before = disk.operations
    file.pread(1, 0)
    disk.open("f", write=False, create=False)
    assert disk.exists("f")
    assert before == disk.operations
    assert {"open": 1, "pwrite": 1, "fsync": 1, "sync_dir": 1} == dict(disk.counts)


def test_files_directories_and_locks_behave_as_on_a_real_disk() -> None:
    """Listing, missing files and locks."""
    disk = FakeDisk()
    disk.put("d/b", b"1")
    disk.put("d/a", b"2")
    assert ["a", "b"] == disk.list_dir("d")
    assert [] == disk.list_dir("e")
    disk.remove("d/a")
    assert ["d/b"] == disk.paths()
    with pytest.raises(FileNotFoundError):
        disk.open("d/a", write=False, create=False)
    with pytest.raises(FileNotFoundError):
        disk.unlink("d/a")
    disk.make_dir("d")
    disk.lock("LOCK")
    with pytest.raises(DataDirInUseError):
        disk.lock("LOCK")
    disk.unlock("LOCK")
    disk.lock("LOCK")
    assert disk.free_bytes() > 0
