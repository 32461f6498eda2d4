"""Counting the messages that the log holds of a topic, by the index alone."""

from typing import Final

from braidmq.base.ids import ID_MAX
from braidmq.wal.format import ROW_BYTES, select_rows
from braidmq.wal.reading import LogView, Reader
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.tables import BLOCK_ROWS

_ANY_NUMBER: Final = 2**62


class RowCounter:
    """Counts rows of views."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def count(
        self, view: LogView, topic: bytes, ranges: list[tuple[int, int]], priority: int
    ) -> int:
        """Return how many messages of *topic* have an id in one of *ranges*, ends included.

        Only those of *priority*, unless that is -1.

        Raises:
            DamagedLogError: An index and its segment do not agree.
            LogScarceError, LogReadError, LogPoisonedError: It cannot be read.
            FileNotFoundError: A segment was deleted meanwhile: take a new view.
        """
        found = 0
        for segment in (*view.sealed, view.active):
            last_id = min(segment.last_id, view.committed_id)
            for first, last in ranges:
                if first <= last_id and segment.first_id <= last:
                    bounds = max(first, segment.first_id), min(last, last_id)
                    found += self._in_segment(view, segment, topic, bounds, priority)
        return found

    def _in_segment(
        self,
        view: LogView,
        segment: SegmentInfo,
        topic: bytes,
        bounds: tuple[int, int],
        priority: int,
    ) -> int:
        _, index = self._reader.opened(view, segment)
        number = index.topics.get(topic)
        found = 0
        after_id = bounds[0] - 1
        row = index.row_after(after_id)
        while number is not None and row < index.rows and after_id < bounds[1]:
            block, skipped = divmod(row, BLOCK_ROWS)
            rows = self._reader.rows(view, segment, block)[skipped * ROW_BYTES :]
            chosen = select_rows(
                rows, 0, number, after_id, bounds[1], _ANY_NUMBER, ID_MAX, priority
            )
            found += len(chosen.ids)
            after_id = max(after_id, chosen.reached_id)
            row += len(rows) // ROW_BYTES
        return found
