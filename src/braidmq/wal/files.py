"""What the log asks of a disk, as two Protocols, and writing that does not stop half-way.

It is not a disk: `braidmq.wal.disk` is the real one, `braidmq.testing.disk` the fake one.
Paths are relative POSIX strings below the data directory: ``wal/00000000000000000001.wal``.
"""

import errno
from typing import Final, Protocol

LOG_DIR: Final = "wal"
"""Where segments, indexes, mark and reserve are, below the data directory."""

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a write says when there is no room; anything else that it says is final."""


class File(Protocol):
    """An open file. Offsets are explicit, so that readers need no lock."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on; fewer at the end of the file."""

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write *data* at *offset* and return how many of its bytes were written."""

    def size(self) -> int:
        """Return the file's size in bytes."""

    def truncate(self, size: int) -> None:
        """Make the file *size* bytes long."""

    def fdatasync(self) -> None:
        """Return when the file's bytes and size are on the disk."""

    def fsync(self) -> None:
        """Return when the file's bytes and all that is known of it are on the disk."""

    def allocate(self, size: int) -> None:
        """Make the file at least *size* bytes long with room on the disk for all of them."""

    def close(self) -> None:
        """Close the file; nothing about durability follows from it."""


class Files(Protocol):
    """The data directory."""

    def open(self, path: str, *, write: bool, create: bool) -> File:
        """Open *path*; a file that is created is for its owner only."""

    def exists(self, path: str) -> bool:
        """Return whether *path* is there."""

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*; none when it is not there."""

    def make_dir(self, path: str) -> None:
        """Make the directory *path* unless it is there."""

    def rename(self, old: str, new: str) -> None:
        """Give *old* the name *new*, in the place of what had it."""

    def unlink(self, path: str) -> None:
        """Take *path* out of its directory."""

    def sync_dir(self, path: str) -> None:
        """Return when the directory's entries are on the disk."""

    def free_bytes(self) -> int:
        """Return how many bytes there is room for."""

    def lock(self, path: str) -> None:
        """Take the lock *path* for as long as this process lives or until unlock.

        Raises:
            DataDirInUseError: Somebody else holds it.
        """

    def unlock(self, path: str) -> None:
        """Give the lock *path* back."""


def write_all(file: File, data: bytes, offset: int) -> None:
    """Write all of *data* at *offset*, however short the single writes are.

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
    """Return *size* bytes from *offset* on; fewer only when the file ends before."""
    data = file.pread(size, offset)
    while len(data) < size:
        more = file.pread(size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Put *data* in the place of *path* so that a crash leaves the old or the new, never less.

    Raises:
        OSError: Something failed; *path* is what it was.
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
