"""Room set aside so that acknowledgements can be written when the disk is full."""

from typing import Final

from braidmq.base.limits import KIB, MIB
from braidmq.wal.files import FULL_ERRNOS, File, Files

RESERVE_PATH: Final = "wal/reserve"
RESERVE_BYTES_MAX: Final = 16 * MIB
_STEP_BYTES: Final = 64 * KIB
"""Given back at once, on top of what is asked for: file systems need room for themselves."""


class Reserve:
    """A preallocated file that shrinks as urgent batches need its room."""

    def __init__(self, files: Files, segment_bytes: int) -> None:
        self.bytes_full = min(RESERVE_BYTES_MAX, segment_bytes // 4)
        self._file: File = files.open(RESERVE_PATH, write=True, create=True)
        # What an earlier run allocated may have been lost with a crash; it is asked for again.
        self.bytes_left = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is used up."""
        return self.bytes_left == self.bytes_full

    def release(self, wanted: int) -> bool:
        """Give room for *wanted* bytes back to the disk; return False when none is left.

        Raises:
            OSError: The file could not be shortened.
        """
        if not self.bytes_left:
            return False
        self.bytes_left = max(0, self.bytes_left - wanted - _STEP_BYTES)
        self._file.truncate(self.bytes_left)
        return True

    def refill(self) -> bool:
        """Take the full reserve from the disk again if there is room; return if it is whole.

        Raises:
            OSError: Something but lack of room is wrong.
        """
        if self.is_whole:
            return True
        try:
            self._file.allocate(self.bytes_full)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._file.truncate(self.bytes_left)
            return False
        self.bytes_left = self.bytes_full
        return True

    def close(self) -> None:
        """Close the file; the room stays taken."""
        self._file.close()
