"""The disk: what the log asks of it, what it does not promise, and the real one.

`File` and `Files` are what the log asks for, `Disk` is the real disk, `braidmq.testing.disk` a
fake. Paths are relative POSIX strings below the data directory: ``wal/reserve``.

They promise no more than POSIX does. What a power cut cannot undo once a call has returned:

    pwrite, truncate, allocate     nothing: any of the written sectors may survive, in any order
    open, make_dir, rename, unlink nothing: any of the changes may survive, in any order
    fdatasync, fsync               the bytes and the size of one file, but not its name
    sync_dir                       the names in one directory, but not the bytes of the files
    close                          nothing

A crash of the process alone loses nothing that was written: the kernel still has it. The log
must therefore never assume

- that a record is whole because its end is there, or because a later record is: each record
  has a checksum, and a fence says what was durable before it;
- that a synced file has a name, or that a named file has synced bytes: a file is synced
  before it is renamed or used, and then its directory;
- that changes to two files, or of two names, survive in the order they were made in: a sync
  stands between any two whose order matters;
- that truncated bytes are gone before the next sync;
- that a failed sync can be repeated. The kernel may mark the lost pages clean, so that a second
  sync succeeds without having written them: the log poisons itself instead.

docs/log_format.md states these assumptions in full. Any method may raise OSError.

One of `SCARCE_ERRNOS` says that the system had no descriptor or no memory for the call, and
that nothing was done: the caller may try again. `write_all` does not raise it once bytes are
written: what is then on the disk is not known. A failed sync is final whatever its number, also
ENOSPC. So `synced`, through which every fsync goes whose error is told by its number, and
`sync_dir`, once its sync has begun, raise none of `PASSING_ERRNOS`.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

from braidmq.base.errors import DataDirInUseError

LOG_DIR: Final = "wal"
"""Where segments, indexes, mark and reserve are, below the data directory."""

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a write that found no room."""

SCARCE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a call for which there was no descriptor or no memory; nothing was done."""

PASSING_ERRNOS: Final = FULL_ERRNOS | SCARCE_ERRNOS
"""The errors that the log recovers from; every other one is final."""

SPARE_DESCRIPTORS: Final = 12
"""Held in reserve by a broker: a rotation needs three at once, a snapshot two, a read four."""

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_T = TypeVar("_T")

_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700


class File(Protocol):
    """An open file.

    Any thread may call `pread` and `size` at any time: offsets are explicit, so readers share
    no file position and need no lock. Every other method belongs to one writer at a time.
    """

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on; fewer at the end of the file.

        A short read elsewhere is allowed: use `read_all`. The bytes may be ones that are not
        yet durable, and a read that races a write may see any mix of old and new bytes; the
        log only reads below the committed offset, where nothing is written any more.
        """

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write *data* at *offset* and return how many of its bytes were written.

        NOT promised: that all of *data* is written (use `write_all`), that any of it is
        durable, that a power cut keeps a prefix of it rather than scattered sectors, or that
        a failed write left the file as it was.
        """

    def size(self) -> int:
        """Return the file's size in bytes, whether or not those bytes are durable."""

    def truncate(self, size: int) -> None:
        """Make the file *size* bytes long.

        NOT promised: durability. Until the next sync a power cut can bring the cut-off bytes
        back, even between bytes that were written to the same place afterwards.
        """

    def fdatasync(self) -> None:
        """Return once the file's bytes and its size are durable.

        NOT promised: that the file's *name* is durable. A new file needs `Files.sync_dir` too.
        """

    def fsync(self) -> None:
        """Return once the file's bytes and all of its metadata are durable; not its name."""

    def allocate(self, size: int) -> None:
        """Make the file at least *size* bytes long, with disk blocks reserved for all of it.

        On ENOSPC the file may have grown part of the way. The reservation is not durable.
        """

    def close(self) -> None:
        """Close the file. This makes nothing durable and reports no delayed write error."""


class Files(Protocol):
    """The data directory.

    Any thread may call any method; the log's writer is the only one that changes names, except
    that a reader may replace a sealed segment's index (`maintenance.rebuild`).
    """

    def open(self, path: str, *, write: bool, create: bool) -> File:
        """Open *path*; a file that is created is readable by its owner only.

        NOT promised: that the name of a created file is durable before `sync_dir`.

        Raises:
            FileNotFoundError: It does not exist, and *create* is False.
        """

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*; none if there is no directory."""

    def make_dir(self, path: str) -> None:
        """Make the directory *path* unless it exists; not durable before `sync_dir`."""

    def rename(self, old: str, new: str) -> None:
        """Give the file *old* the name *new*, replacing any file of that name.

        Atomic: a reader or a crash finds the old file or the new one under *new*, never
        neither and never a mix. NOT promised: that the change is durable before `sync_dir`, or
        that the new file's *bytes* are. Sync the file first, or a crash may leave it empty.
        """

    def unlink(self, path: str) -> None:
        """Remove the name *path*; the bytes stay readable through files already open.

        NOT promised: durability before `sync_dir`, nor that two removals survive in order.
        """

    def sync_dir(self, path: str) -> None:
        """Return once all names made, changed and removed in the directory are durable.

        NOT promised: anything about the bytes of the files that have those names.

        Raises:
            OSError: One of `SCARCE_ERRNOS` if the directory could not be opened: try again. If
                the sync failed, none of `PASSING_ERRNOS`.
        """

    def free_bytes(self) -> int:
        """Return how many bytes can still be written; a later write may find fewer."""

    def is_short(self) -> bool:
        """Return whether descriptors are scarce: then keep no file open for later."""

    def lock(self, path: str) -> None:
        """Take the lock *path* until `unlock` or until this process ends, however it ends.

        It is advisory: it excludes other brokers, not other programs, and is only reliable on
        a local file system.

        Raises:
            DataDirInUseError: Another process holds it.
        """

    def unlock(self, path: str) -> None:
        """Release the lock *path*."""


def write_all(file: File, data: bytes, offset: int) -> None:
    """Write all of *data* at *offset*, repeating short writes.

    Raises:
        OSError: A write failed; part of *data* may be in the file.
    """
    written = file.pwrite(data, offset)
    while written < len(data):
        try:
            more = file.pwrite(data[written:], offset + written)
        except OSError as error:
            if error.errno not in SCARCE_ERRNOS:
                raise
            raise in_doubt(error) from error  # part of it is there: not to be tried again
        if more <= 0:
            raise OSError(errno.EIO, "write makes no progress")
        written += more


def passes(error: OSError | MemoryError) -> bool:
    """Return whether the log recovers from *error*: Python's own lack of memory passes too."""
    return isinstance(error, MemoryError) or error.errno in PASSING_ERRNOS


def in_doubt(error: OSError) -> OSError:
    """Return *error* as one that is not tried again: the call had begun when it failed."""
    return OSError(errno.EIO, f"{error.strerror} in the middle of the operation")


def synced(sync: Callable[[], None]) -> None:
    """Call *sync*, an fsync or fdatasync, whose failure is final whatever its number says.

    Raises:
        OSError: It failed; none of `PASSING_ERRNOS`.
    """
    try:
        sync()
    except OSError as error:
        if error.errno not in PASSING_ERRNOS:
            raise
        raise in_doubt(error) from error


def read_all(file: File, size: int, offset: int) -> bytes:
    """Return *size* bytes from *offset* on; fewer only if the file ends first."""
    data = file.pread(size, offset)
    while len(data) < size:
        more = file.pread(size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace the content of *path* so that a crash leaves the old or the new, never a mix.

    1. The temporary file is written and fsynced. *A crash leaves the old file, and a temporary
       one that the next call overwrites.*
    2. It is renamed over *path*. *A crash leaves the old or the new file.*
    3. The directory is fsynced. *From here on the new file survives a power cut.*

    Raises:
        OSError: A step failed. Before the rename *path* is unchanged; after it, the new content
            is there but may not be durable.
    """
    temporary = path + ".tmp"
    file = files.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        synced(file.fsync)
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(path.rpartition("/")[0])


class Spares:
    """Descriptors that are held so that the log has some when the process has no other left.

    A call that meets EMFILE gives one back and tries again at once. There is no way to hand the
    slot over, so another thread may take it first: then the next one is given back. A file that
    is closed while some are missing makes its descriptor a spare again, in one step.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._held: list[int] = []
        self._lock = threading.Lock()
        self.refill()

    def __len__(self) -> int:
        return len(self._held)

    def attempt(self, call: Callable[[], _T]) -> _T:
        """Return what *call* returns, with a spare given back if it has no descriptor.

        Raises:
            OSError: It failed, for want of a descriptor although all spares were given back, or
                for another reason.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR or not self._give_back():
                    raise

    def refill(self) -> None:
        """Take descriptors until all are held again, or there is none to take."""
        with self._lock, suppress(OSError):
            while len(self._held) < self.count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def close(self, descriptor: int) -> None:
        """Close a file's descriptor; keep its slot as a spare if one is missing."""
        if len(self._held) < self.count:
            with self._lock:
                if self._held and len(self._held) < self.count:
                    # Replaces what the descriptor stands for without ever freeing its number.
                    os.dup2(self._held[0], descriptor, inheritable=False)
                    self._held.append(descriptor)
                    return
        os.close(descriptor)
        if len(self._held) < self.count:
            self.refill()

    def _give_back(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def __del__(self) -> None:
        """Give all of them back with the last file that could need one."""
        for descriptor in self._held:
            os.close(descriptor)


class DiskFile:
    """An open file of a `Disk`.

    It closes itself when its last reference goes. A reader may still hold a file that retention
    has deleted; an early close would free the descriptor for reuse, and the reader would then
    read another file's bytes.
    """

    def __init__(self, descriptor: int, spares: Spares) -> None:
        self._descriptor = descriptor
        self._spares = spares

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on."""
        return os.pread(self._descriptor, size, offset)

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write at *offset*, possibly in part; return how many bytes were written."""
        return os.pwrite(self._descriptor, data, offset)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Make the file *size* bytes long."""
        os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        """Force bytes and size to the disk."""
        os.fdatasync(self._descriptor)

    def fsync(self) -> None:
        """Force bytes and metadata to the disk."""
        os.fsync(self._descriptor)

    def allocate(self, size: int) -> None:
        """Take room on the disk for *size* bytes."""
        os.posix_fallocate(self._descriptor, 0, size)

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._spares.close(descriptor)

    def __del__(self) -> None:
        """Close the file with its last reference."""
        with suppress(OSError):
            self.close()


class Disk:
    """The data directory on a local file system; files are readable by their owner only.

    A broker's holds *spare* descriptors for itself, so that the log can open its files however
    many connections there are.
    """

    def __init__(self, root: Path, *, spare: int = 0) -> None:
        self.root = root
        self._locks: dict[str, int] = {}
        self._spares = Spares(spare)

    def _path(self, path: str) -> Path:
        return self.root / path

    def open(self, path: str, *, write: bool, create: bool) -> DiskFile:
        """Open *path* for reading, or for both."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        return DiskFile(self._open(path, flags), self._spares)

    def _open(self, path: str, flags: int) -> int:
        where = self._path(path)
        return self._spares.attempt(lambda: os.open(where, flags, _FILE_MODE))

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""
        return self._path(path).exists()

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*; none if there is no directory."""
        where = self._path(path)
        try:
            return sorted(self._spares.attempt(lambda: os.listdir(where)))  # noqa: PTH208 - names only
        except FileNotFoundError:
            return []
        finally:
            self._spares.refill()

    def make_dir(self, path: str) -> None:
        """Make the directory *path* and its parents unless they exist."""
        self._path(path).mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Rename *old*, replacing any file named *new*."""
        self._path(old).replace(self._path(new))

    def unlink(self, path: str) -> None:
        """Remove the name *path*."""
        self._path(path).unlink()

    def sync_dir(self, path: str) -> None:
        """Force the directory's entries to the disk."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            synced(lambda: os.fsync(descriptor))
        finally:
            self._spares.close(descriptor)

    def free_bytes(self) -> int:
        """Return how many bytes an unprivileged user can still write."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def is_short(self) -> bool:
        """Return whether some of the spare descriptors are in use."""
        return len(self._spares) < self._spares.count

    def lock(self, path: str) -> None:
        """Take the lock *path*; the kernel releases it when the process ends.

        Raises:
            DataDirInUseError: Another process holds it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC  # a child process must not keep the lock
        descriptor = self._open(path, flags)
        # flock, not a POSIX lock: closing any other descriptor of the file would release that
        # one.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise DataDirInUseError(str(self.root)) from None
        self._locks[path] = descriptor

    def unlock(self, path: str) -> None:
        """Release the lock *path*."""
        os.close(self._locks.pop(path))
