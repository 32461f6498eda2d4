"""Counting the messages that the log holds of many topics, by the index alone.

    Tally       what is counted: one topic, and where
    Count       one pass over the log for many tallies, in slices
    RowCounter  reads the rows

One pass serves all tallies. It may go over a log of hundreds of millions of rows, so it stops
after a number of them, for the caller to do something else before it goes on.
"""

from typing import Final

from braidmq.base.ids import ID_MAX
from braidmq.wal.format import PRIORITY_AT, ROW_BYTES
from braidmq.wal.index import IndexView
from braidmq.wal.reading import LogView, Reader
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.tables import BLOCK_ROWS

_NO_RANGE: Final = ID_MAX + 1, ID_MAX + 1
"""Behind the last range: no id is in it."""


class Tally:
    """How many messages of a topic have an id in one of some ranges, ends included.

    The ranges rise. Only messages of *priority* count, unless that is -1.
    """

    __slots__ = ("_at", "count", "first", "last", "priority", "ranges", "topic")

    def __init__(
        self, topic: bytes, ranges: list[tuple[int, int]], *, priority: int = -1
    ) -> None:
        self.topic = topic
        self.ranges = ranges
        self.priority = priority
        self.count = 0
        self._at = 0  # the first range that does not end below the ids so far
        self.first, self.last = ranges[0] if ranges else (0, -1)

    def reach(self, message_id: int) -> None:
        """Go on to the first range that does not end below an id; ids rise."""
        ranges = self.ranges
        while self.last < message_id:
            self._at += 1
            self.first, self.last = ranges[self._at] if self._at < len(ranges) else _NO_RANGE


class Count:
    """One pass over the log for many tallies; `Wal.count` goes on with it."""

    def __init__(self, tallies: list[Tally]) -> None:
        self.tallies = tallies
        ranges = [bound for tally in tallies for bound in tally.ranges]
        self.reached_id = min((first for first, _ in ranges), default=1) - 1
        self.last_id = max((last for _, last in ranges), default=0)
        self.rows = 0  # that were looked at so far
        self._by_topic: dict[bytes, list[Tally]] = {}
        for tally in tallies:
            self._by_topic.setdefault(tally.topic, []).append(tally)
        self._numbered: dict[int, list[Tally]] = {}
        self._numbered_for = -1, -1

    def by_number(self, index: IndexView) -> dict[int, list[Tally]]:
        """Return the tallies by the number that their topic has in a segment."""
        # Kept from slice to slice, unless the segment has grown: it may have new topics then.
        key = index.first_id, index.rows
        if self._numbered_for != key:
            self._numbered = {}
            for topic, tallies in self._by_topic.items():
                number = index.topics.get(topic)
                if number is not None:
                    self._numbered[number] = tallies
            self._numbered_for = key
        return self._numbered


class RowCounter:
    """Counts rows of views."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def go_on(self, view: LogView, count: Count, rows_max: int) -> bool:
        """Look at about *rows_max* more rows; return whether those were the last.

        Raises:
            DamagedLogError: An index and its segment do not agree.
            LogScarceError, LogReadError, LogPoisonedError: It cannot be read.
            FileNotFoundError: A segment was deleted meanwhile: take a new view.
        """
        end = count.rows + rows_max
        for segment in (*view.sealed, view.active):
            last_id = min(segment.last_id, view.committed_id, count.last_id)
            while count.reached_id < last_id:
                if count.rows >= end:
                    return False
                self._count_block(view, segment, count, last_id)
        return True

    def _count_block(
        self, view: LogView, segment: SegmentInfo, count: Count, last_id: int
    ) -> None:
        """Count from where the pass has come to, up to the end of that block of rows."""
        _, index = self._reader.opened(view, segment)
        wanted = count.by_number(index)
        row = index.row_after(count.reached_id)
        if not wanted or row >= index.rows:
            count.rows += 1  # not free either: a log may have very many segments
            count.reached_id = last_id
            return
        block, skipped = divmod(row, BLOCK_ROWS)
        rows = self._reader.rows(view, segment, block)[skipped * ROW_BYTES :]
        # Slice whole columns in C: only rows of wanted topics are then looked at one by one.
        topics: list[int] = memoryview(rows).cast("I")[6::8].tolist()
        ids: list[int] = memoryview(rows).cast("Q")[::4].tolist()
        priorities = rows[PRIORITY_AT::ROW_BYTES]
        for i in [i for i, number in enumerate(topics) if number in wanted]:
            message_id = ids[i]
            for tally in wanted[topics[i]]:
                if message_id > tally.last:
                    tally.reach(message_id)
                if message_id >= tally.first and (
                    tally.priority < 0 or tally.priority == priorities[i]
                ):
                    tally.count += 1
        # Only now: if reading fails before this, the same block is read again.
        count.rows += len(ids)
        count.reached_id = min(ids[-1], last_id)
