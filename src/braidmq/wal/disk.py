"""The real disk: the `Files` Protocol on a directory. It decides nothing.

What each call promises, and what it does not, is said on the Protocols in `braidmq.wal.files`.
Files are readable by their owner only (0600, directories 0700).
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from braidmq.base.errors import DataDirInUseError

_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700


class DiskFile:
    """An open file of a `Disk`.

    It closes itself when its last reference goes. A reader may still hold a file that retention
    has deleted; an early close would free the descriptor for reuse, and the reader would then
    read another file's bytes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

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
            os.close(descriptor)

    def __del__(self) -> None:
        """Close the file with its last reference."""
        with suppress(OSError):
            self.close()


class Disk:
    """The data directory on a local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[str, int] = {}

    def _path(self, path: str) -> Path:
        return self.root / path

    def open(self, path: str, *, write: bool, create: bool) -> DiskFile:
        """Open *path* for reading, or for both."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        return DiskFile(os.open(self._path(path), flags, _FILE_MODE))

    def exists(self, path: str) -> bool:
        """Return whether *path* exists."""
        return self._path(path).exists()

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*; none if there is no directory."""
        try:
            return sorted(entry.name for entry in self._path(path).iterdir())
        except FileNotFoundError:
            return []

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
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """Return how many bytes an unprivileged user can still write."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> None:
        """Take the lock *path*; the kernel releases it when the process ends.

        Raises:
            DataDirInUseError: Another process holds it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC  # a child process must not keep the lock
        descriptor = os.open(self._path(path), flags, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise DataDirInUseError(str(self.root)) from None
        self._locks[path] = descriptor

    def unlock(self, path: str) -> None:
        """Release the lock *path*."""
        os.close(self._locks.pop(path))
