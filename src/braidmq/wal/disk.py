"""The real disk: the `Files` Protocol on a directory. It decides nothing.

Files are for their owner only (0600, directories 0700). A file closes itself with its last
reference, so that a reader that still holds one never reads from a descriptor that was given
to another file.
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
    """An open file of a `Disk`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to *size* bytes from *offset* on."""
        return os.pread(self._descriptor, size, offset)

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write at *offset*, perhaps not all; return how much."""
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
        """Close the file; a second time is harmless."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Close what nobody holds any more."""
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
        """Return whether *path* is there."""
        return self._path(path).exists()

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in the directory *path*; none when it is not there."""
        try:
            return sorted(entry.name for entry in self._path(path).iterdir())
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        """Make the directory *path* and those above it unless they are there."""
        self._path(path).mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing what had the name *new*."""
        self._path(old).replace(self._path(new))

    def unlink(self, path: str) -> None:
        """Take *path* out of its directory."""
        self._path(path).unlink()

    def sync_dir(self, path: str) -> None:
        """Force the directory's entries to the disk."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """Return how many bytes an ordinary user may still write."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> None:
        """Take the lock *path*; the kernel gives it back when the process ends.

        Raises:
            DataDirInUseError: Somebody else holds it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path(path), flags, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise DataDirInUseError(str(self.root)) from None
        self._locks[path] = descriptor

    def unlock(self, path: str) -> None:
        """Give the lock *path* back."""
        os.close(self._locks.pop(path))
