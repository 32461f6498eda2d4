"""Disk space set aside so that acknowledgements can still be written when the disk is full.

Without it a full disk would be a deadlock: consumers free space by acknowledging, and an
acknowledgement is itself a record that needs space.
"""

from typing import Final

from braidmq.base.limits import KIB, MIB
from braidmq.wal.disk import FULL_ERRNOS, File, Files

RESERVE_PATH: Final = "wal/reserve"
RESERVE_BYTES_MAX: Final = 16 * MIB
_STEP_BYTES: Final = 64 * KIB
"""Released on top of each request: the file system needs some blocks for its own metadata."""


class Reserve:
    """A preallocated file that shrinks as urgent batches need its space."""

    def __init__(self, files: Files, segment_bytes: int) -> None:
        self.bytes_full = min(RESERVE_BYTES_MAX, segment_bytes // 4)
        self._file: File = files.open(RESERVE_PATH, write=True, create=True)
        # An allocation is not durable, so a crash may have lost the last run's: allocate anew.
        self.bytes_left = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it is still reserved."""
        return self.bytes_left == self.bytes_full

    def release(self, wanted: int) -> bool:
        """Release at least *wanted* bytes if that much is left; return False if none is.

        A caller whose write still fails asks again, until the reserve is used up.

        Raises:
            OSError: The file could not be truncated.
        """
        if not self.bytes_left:
            return False
        self.bytes_left = max(0, self.bytes_left - wanted - _STEP_BYTES)
        self._file.truncate(self.bytes_left)
        return True

    def refill(self) -> bool:
        """Reserve the full size again if the disk has room; return whether it is whole.

        Raises:
            OSError: It failed for a reason other than lack of space.
        """
        if self.is_whole:
            return True
        try:
            self._file.allocate(self.bytes_full)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # A failed allocation may have taken part of the space; give that part back.
            self._file.truncate(self.bytes_left)
            return False
        self.bytes_left = self.bytes_full
        return True

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        self._file.close()
