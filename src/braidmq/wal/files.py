"""What the log asks of a disk, as two Protocols, and writes that do not stop half-way.

This module is not a disk: `braidmq.wal.disk` is the real one, `braidmq.testing.disk` the fake.
Paths are relative POSIX strings below the data directory: ``wal/00000000000000000001.wal``.

The Protocols promise no more than POSIX does, and the log relies on nothing else. Until a sync
has returned, a power cut may keep any subset of the written sectors, in any order, and any
subset of the changes to a directory. A crash of the process alone loses nothing that was
written: the kernel still has it. docs/log_format.md states these assumptions in full.

Any method may raise OSError. After a failed *sync* the file's content is unknown: the kernel
may mark the lost pages clean, so a second sync can succeed without having written them. The
log therefore never retries a sync; it poisons itself.
"""

import errno
from typing import Final, Protocol

LOG_DIR: Final = "wal"
"""Where segments, indexes, mark and reserve are, below the data directory."""

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a write that found no room. The log recovers from these and no others."""


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

        NOT promised: anything about the bytes of the files behind those names.
        """

    def free_bytes(self) -> int:
        """Return how many bytes can still be written; a later write may find fewer."""

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
        more = file.pwrite(data[written:], offset + written)
        if more <= 0:
            raise OSError(errno.EIO, "write makes no progress")
        written += more


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
        file.fsync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(path.rpartition("/")[0])
