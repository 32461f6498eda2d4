"""A disk in memory that loses what was not synced, fails when told to, and runs full.

It implements the `braidmq.wal.disk.Files` protocol, so the log runs on it unchanged::

    disk = FakeDisk()
    wal = Wal.open(disk, ...)
    wal.append([...])
    wal = Wal.open(disk.crash(Random(7)), ...)   # power cut: which sectors survived?

It promises no more than docs/log_format.md assumes of a real disk: until a sync, any subset of
the written 512-byte sectors may survive, some of them torn; the size may be old, new or in
between; and directory changes may be lost in any combination (a rename as a whole).
"""

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from braidmq.base.errors import DataDirInUseError
from braidmq.wal.disk import FULL_ERRNOS, synced

SECTOR_BYTES: Final = 512

NEEDS_DESCRIPTOR: Final = frozenset({"open", "open_dir", "list_dir"})
"""The operations that can meet EMFILE and ENFILE; `fail` with ``"*"`` spares the others."""

READS: Final = frozenset({"pread", "open_dir", "list_dir"})
"""The operations that need no room; `fail` with ``"*"`` and ENOSPC or EDQUOT spares them."""

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class PowerCutError(Exception):
    """The power cut requested with `FakeDisk.cut_power_at`."""


@dataclass(slots=True)
class Inode:
    """A file's bytes as processes see them, and as they are on disk; or a directory."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    is_directory: bool = False

    def touch(self, start: int, end: int) -> None:
        """Mark the sectors of start..end as written."""
        self.dirty.update(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def sync(self) -> None:
        """Make everything durable."""
        self.durable[:] = self.data
        self.dirty.clear()

    def copy(self) -> "Inode":
        """Return an independent copy."""
        return Inode(
            bytearray(self.data), bytearray(self.durable), set(self.dirty), self.is_directory
        )

    def after_power_cut(self, rng: Random) -> "Inode":
        """Return what a power cut leaves; *rng* decides which sectors survive."""
        old, new = len(self.durable), len(self.data)
        size = rng.choice((old, new, rng.randint(min(old, new), max(old, new))))
        # A file system may record a size before the bytes: what never arrived reads as zeros.
        left = self.durable[:size].ljust(size, b"\0")
        survival = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        for sector in sorted(self.dirty):
            if rng.random() < survival:
                start = sector * SECTOR_BYTES
                end = min(start + SECTOR_BYTES, size, new)
                if rng.random() < 1 / 8:  # torn: only its first bytes are new
                    end = min(end, start + rng.randrange(SECTOR_BYTES))
                if start < end:
                    left[start:end] = self.data[start:end]
        return Inode(left, bytearray(left), is_directory=self.is_directory)


@dataclass(frozen=True, slots=True)
class _Change:
    """An atomic change of directories: names and their inodes afterwards."""

    directories: frozenset[str]
    entries: tuple[tuple[str, Inode | None], ...]


class FakeFile:
    """An open file of a `FakeDisk`."""

    def __init__(self, disk: "FakeDisk", inode: Inode, *, write: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._write = write

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on."""
        self._disk.operate("pread", counted=False)
        self._disk.watch("pread", size)
        return bytes(self._inode.data[offset : offset + size])

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write as much as there is room for, at most `FakeDisk.write_bytes_max` at once."""
        assert self._write
        self._disk.operate("pwrite")
        self._disk.watch("pwrite", len(data))
        room = self._disk.room_from(len(self._inode.data))
        wanted = min(len(data), self._disk.write_bytes_max)
        end = min(offset + wanted, room)
        if end <= offset < offset + wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._grow(end)
        self._inode.data[offset:end] = data[: end - offset]
        self._inode.touch(offset, end)
        return end - offset

    def size(self) -> int:
        """Return the file's size in bytes."""
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        """Make the file *size* bytes long."""
        assert self._write
        self._disk.operate("truncate")
        self._inode.touch(size, len(self._inode.data))
        del self._inode.data[size:]
        self._grow(size)

    def fdatasync(self) -> None:
        """Put bytes and size on the platter."""
        self._disk.operate("fdatasync")
        self._inode.sync()

    def fsync(self) -> None:
        """Put bytes and size on the platter."""
        self._disk.operate("fsync")
        self._inode.sync()

    def allocate(self, size: int) -> None:
        """Allocate space for *size* bytes."""
        self._disk.operate("allocate")
        if size > self._disk.room_from(len(self._inode.data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._grow(size)

    def close(self) -> None:
        """Do nothing: a close says nothing about durability."""

    def _grow(self, size: int) -> None:
        data = self._inode.data
        if len(data) < size:
            self._inode.touch(len(data), size)
            data.extend(bytes(size - len(data)))


class FakeDisk:
    """A data directory in memory.

    `capacity` is the space for all files together in bytes, None for unlimited;
    `write_bytes_max` the most that one write accepts; `operations` counts changes and syncs,
    `counts` each kind by name; `watch` is called with the name and size of each read and write.
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.write_bytes_max: int = 2**63
        self.operations = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.watch: Callable[[str, int], None] = lambda _name, _size: None
        self._faults: list[Callable[[str], None]] = []
        self._cut_at = 0
        self._locked: set[str] = set()
        self._entries: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[_Change] = []

    # Faults.

    def fail(self, operation: str, error: int, *, nth: int = 1, forever: bool = False) -> None:
        """Let the *nth* call of *operation* from now on fail with the errno *error*.

        *operation* is a method of `File` or `Files`, or ``"*"`` for any but pread that can fail
        so; with *forever* all later calls fail too. `failed` lists the names of those that did.
        ``"sync_dir"`` is the sync of a directory, ``"open_dir"`` the open before it.
        """
        assert operation != "sync_dir" or error not in _NO_DESCRIPTOR  # it has one by then
        seen = 0

        def fault(name: str) -> None:
            nonlocal seen
            able = error not in _NO_DESCRIPTOR or name in NEEDS_DESCRIPTOR
            able &= error not in FULL_ERRNOS or name not in READS
            if operation == name or (operation == "*" and name != "pread" and able):
                seen += 1
                if seen == nth or (forever and seen > nth):
                    self.failed.append(name)
                    raise OSError(error, os.strerror(error))

        self._faults.append(fault)

    def heal(self) -> None:
        """Forget all faults; the capacity stays."""
        self._faults.clear()

    def cut_power_at(self, operation_number: int) -> None:
        """Raise `PowerCutError` instead of this and every later operation."""
        self._cut_at = operation_number

    def operate(self, name: str, *, counted: bool = True) -> None:
        """Count an operation, and fail it if requested."""
        if counted:
            self.operations += 1
            self.counts[name] += 1
            if 0 < self._cut_at <= self.operations:
                raise PowerCutError
        for fault in self._faults:
            fault(name)

    def crash(self, rng: Random) -> "FakeDisk":
        """Return the disk after a power cut now; *rng* decides what survives."""
        left = FakeDisk(capacity=self.capacity)
        entries: dict[str, Inode] = dict(self._durable)
        survival = rng.choice((0.0, 0.5, 1.0))
        for change in self._pending:
            if rng.random() < survival:
                _apply(entries, change)
        renewed: dict[int, Inode] = {}
        for path, inode in entries.items():
            directory = _directory(path)
            if directory and directory not in entries:
                continue  # gone with its directory
            if id(inode) not in renewed:  # two names of one file share its fate
                renewed[id(inode)] = inode.after_power_cut(rng)
            left._entries[path] = renewed[id(inode)]
        left._durable = dict(left._entries)
        return left

    def kill(self) -> "FakeDisk":
        """Return the disk after the process was killed: all writes there, none synced."""
        left = FakeDisk(capacity=self.capacity)
        copies: dict[int, Inode] = {}

        def copy(inode: Inode) -> Inode:
            return copies.setdefault(id(inode), inode.copy())

        left._entries = {path: copy(inode) for path, inode in self._entries.items()}
        left._durable = {path: copy(inode) for path, inode in self._durable.items()}
        for change in self._pending:
            entries = tuple((path, copy(i) if i else None) for path, i in change.entries)
            left._pending.append(_Change(change.directories, entries))
        return left

    def write_back(self) -> None:
        """Make all files' bytes durable without a sync, as a kernel may at any time."""
        for inode in self._entries.values():
            inode.sync()

    # For tests to inspect and tamper with.

    def content(self, path: str) -> bytes:
        """Return the bytes of a file as processes see them."""
        return bytes(self._entries[path].data)

    def put(self, path: str, data: bytes) -> None:
        """Set a file's bytes durably, without counting an operation; create it if missing."""
        directory = _directory(path)
        if directory:
            self._entries.setdefault(directory, Inode(is_directory=True))
            self._durable[directory] = self._entries[directory]
        inode = self._entries.setdefault(path, Inode())
        self._durable[path] = inode
        inode.data[:] = data
        inode.sync()

    def remove(self, path: str) -> None:
        """Remove a file durably, without counting an operation."""
        del self._entries[path]
        self._durable.pop(path, None)

    def paths(self) -> list[str]:
        """Return the sorted paths of all files."""
        return sorted(path for path, inode in self._entries.items() if not inode.is_directory)

    @property
    def used_bytes(self) -> int:
        """The total size of all files in bytes."""
        return sum(len(inode.data) for inode in self._entries.values())

    def room_from(self, size: int) -> int:
        """Return the size that a file of *size* bytes can grow to."""
        return 2**63 if self.capacity is None else self.capacity - self.used_bytes + size

    # The `Files` protocol.

    def open(self, path: str, *, write: bool, create: bool) -> FakeFile:
        """Open *path*."""
        if path not in self._entries:
            if not create:
                self.operate("open", counted=False)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.operate("open")
            if not self.exists(_directory(path)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._change((path, Inode()))
        else:
            self.operate("open", counted=False)
        return FakeFile(self, self._entries[path], write=write)

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""
        return path in self._entries or not path

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*."""
        self.operate("list_dir", counted=False)
        names = (name for name in self._entries if name and _directory(name) == path)
        return sorted(name.rpartition("/")[2] for name in names)

    def make_dir(self, path: str) -> None:
        """Make the directory *path* unless it exists."""
        self.operate("make_dir")
        if not self.exists(path):
            self._change((path, Inode(is_directory=True)))

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing *new* if it exists."""
        self.operate("rename")
        self._change((new, self._entries[old]), (old, None))

    def unlink(self, path: str) -> None:
        """Remove *path* from its directory."""
        self.operate("unlink")
        if path not in self._entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._change((path, None))

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""
        # The entries only: a file that is named durably can still be empty after a power cut.
        self.operate("open_dir", counted=False)
        synced(lambda: self.operate("sync_dir"))
        for change in self._pending:
            if path in change.directories:
                _apply(self._durable, change)
        self._pending = [c for c in self._pending if path not in c.directories]

    def free_bytes(self) -> int:
        """Return the free space in bytes."""
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used_bytes)

    def is_short(self) -> bool:
        """Return whether some call has failed for want of a descriptor."""
        return bool(self.failed)

    def lock(self, path: str) -> None:
        """Take the lock *path*.

        Raises:
            DataDirInUseError: It is taken.
        """
        if path in self._locked:
            raise DataDirInUseError("fake disk")
        self._locked.add(path)

    def unlock(self, path: str) -> None:
        """Release the lock *path*."""
        self._locked.remove(path)

    def _change(self, *entries: tuple[str, Inode | None]) -> None:
        change = _Change(frozenset(_directory(path) for path, _ in entries), entries)
        self._pending.append(change)
        _apply(self._entries, change)


def _apply(entries: dict[str, Inode], change: _Change) -> None:
    for path, inode in change.entries:
        if inode is None:
            entries.pop(path, None)
        else:
            entries[path] = inode


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
