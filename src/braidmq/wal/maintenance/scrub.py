"""The background check of sealed segments, by the checksums of their blocks.

Bytes can rot on the disk long after they were synced. The scrub finds that while a backup or a
second copy may still exist, and not years later when a consumer asks for them. The same for a
segment that was removed by hand, of which an open file can still be read until the broker ends.
"""

import threading
from collections.abc import Callable

from braidmq.wal.disk import read_all
from braidmq.wal.failures import reading
from braidmq.wal.format import checksum
from braidmq.wal.reading import LogView, Reader
from braidmq.wal.segment import SegmentInfo, damage
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES


class Scrubber:
    """Verifies the sealed segments in an endless round, a few blocks per call."""

    def __init__(
        self, reader: Reader, exists: Callable[[str], bool], newest: Callable[[], LogView]
    ) -> None:
        """Make one; *newest* returns the view that readers get now."""
        self._reader = reader
        self._exists = exists
        self._newest = newest
        self._lock = threading.Lock()
        self._first_id = 0
        self._block = 0

    def scrub(self, view: LogView, bytes_max: int) -> int:
        """Verify about *bytes_max* bytes from where the last call ended; return how many.

        Raises:
            DamagedLogError: A segment is damaged, or missing.
        """
        self.check_there(view.active)  # the writer, which has it open, would not notice
        with self._lock:
            verified = 0
            visited = 0
            # One extra visit: the round may start in the middle of a segment and end there.
            while verified < bytes_max and visited <= len(view.sealed):
                segment = self._current(view)
                if segment is None:
                    break
                verified += self._verify(view, segment, bytes_max - verified)
                visited += 1
            return verified

    def verify(self, view: LogView, segment: SegmentInfo) -> None:
        """Verify all of a sealed segment, without moving the background check.

        Raises:
            DamagedLogError: It is damaged, or missing although retention did not delete it.
        """
        self.check_there(segment)
        try:
            self._verify_all(view, segment)
        except FileNotFoundError:
            self.check_there(segment)

    def check_there(self, *segments: SegmentInfo) -> None:
        """Look for segments by their names, unless retention has deleted them since.

        Raises:
            DamagedLogError: One is missing.
        """
        for segment in segments:
            # In this order: retention replaces the view before it removes a file.
            if not self._exists(segment.path) and segment.first_id >= self._newest().first_id:
                lost = segment.first_id, max(segment.first_id, segment.last_id)
                raise damage(segment.first_id, lost, "missing segment")

    def _verify_all(self, view: LogView, segment: SegmentInfo) -> None:
        block = 0
        doubts = 0
        while True:
            file, index = self._reader.opened(view, segment)
            if block >= len(index.block_sums):
                return
            data = read_all(file, SEGMENT_BLOCK_BYTES, block * SEGMENT_BLOCK_BYTES)
            if checksum(data) == index.block_sums[block]:
                block += 1
            else:
                self._reader.settle_doubt(view, segment, again=doubts > 0)
                doubts += 1

    def _current(self, view: LogView) -> SegmentInfo | None:
        # The position is an id, not an index into the list: retention shortens the list between
        # two calls, and rotation extends it.
        for segment in view.sealed:
            if segment.first_id >= self._first_id:
                if segment.first_id > self._first_id:
                    self._first_id, self._block = segment.first_id, 0
                return segment
        self._first_id = self._block = 0
        return view.sealed[0] if view.sealed else None

    def _verify(self, view: LogView, segment: SegmentInfo, bytes_max: int) -> int:
        self.check_there(segment)
        try:
            file, index = self._reader.opened(view, segment)
        except FileNotFoundError:  # deleted by retention since the view was taken
            self.check_there(segment)
            self._first_id, self._block = segment.last_id + 1, 0
            return 0
        verified = 0
        while self._block < len(index.block_sums) and verified < bytes_max:
            with reading(segment.path):
                data = read_all(file, SEGMENT_BLOCK_BYTES, self._block * SEGMENT_BLOCK_BYTES)
            if checksum(data) != index.block_sums[self._block]:
                # The index was wrong if this returns. The next call checks the block against
                # the rebuilt one.
                self._reader.settle_doubt(view, segment, again=False)
                break
            verified += len(data)
            self._block += 1
        if self._block >= len(index.block_sums):
            self._first_id, self._block = segment.last_id + 1, 0
        return verified
