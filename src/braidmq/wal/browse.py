"""Browsing: finding records backwards and by time, from the index alone.

It works on a view, as every reader does, from any thread. It reads no record, so what it finds
is verified by the index's checksums only. Timestamps never decrease along the log but where the
clock was set back; rows of records that are not messages have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from braidmq.wal.format import ROW_BYTES
from braidmq.wal.reading import LogView, Reader
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.tables import BLOCK_ROWS

_WORDS: Final = ROW_BYTES // 4
_LENGTH_WORD: Final = 5
_TOPIC_WORD: Final = 6
_LONGS: Final = ROW_BYTES // 8
_TIME_LONG: Final = 1


@dataclass(slots=True)
class FoundIds:
    """Ids of one topic, newest first; complete down to `reached_id`."""

    ids: list[int] = field(default_factory=list)
    payload_bytes: int = 0
    rows: int = 0
    reached_id: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a search ends: ids found, bytes of their payloads, rows searched.

    The first id is returned whatever its payload's size, or a page could stay empty for ever.
    """

    count_max: int
    bytes_max: int
    rows_max: int


class Browser:
    """Searches views of one log."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def before(self, view: LogView, before_id: int, topic: bytes, bounds: Bounds) -> FoundIds:
        """Return the newest ids of *topic* below *before_id*, within *bounds*.

        Raises:
            DamagedLogError: An index and its segment do not agree.
            LogFullError, LogPoisonedError: An index cannot be rebuilt.
            FileNotFoundError: A segment was deleted meanwhile: take a new view.
        """
        found = FoundIds(reached_id=min(before_id, view.committed_id + 1))
        for segment in reversed((*view.sealed, view.active)):
            if segment.first_id < found.reached_id and self._in_segment(
                view, segment, topic, bounds, found
            ):
                break
        return found

    def first_at(self, view: LogView, time_us: int, step_ids: Sequence[int] = ()) -> int:
        """Return the lowest id from which on no message is older than *time_us*.

        Between two of *step_ids*, at which the clock was set, times do not decrease.

        Raises:
            as `before`.
        """
        first, end = view.first_id, view.committed_id + 1
        edges = [first, *(one for one in step_ids if first < one < end), end]
        for low, high in reversed(list(pairwise(edges))):
            found = self._first_between(view, time_us, low, high)
            if found > low:
                return found
        return first

    def _first_between(self, view: LogView, time_us: int, low: int, high: int) -> int:
        # A binary search over ids; records that are not messages have no time and are skipped.
        while low < high:
            middle = (low + high) // 2
            at_us, at_id = self._time_from(view, middle, high)
            # A message from `high` on was stamped by another setting of the clock.
            if at_us >= time_us or at_id >= high:
                high = middle  # not `at_id`: the records between the two have no time
            else:
                low = at_id + 1
        return low

    def _in_segment(
        self, view: LogView, segment: SegmentInfo, topic: bytes, bounds: Bounds, found: FoundIds
    ) -> bool:
        """Add the ids of *segment* to *found*; return whether a bound is reached."""
        _, index = self._reader.opened(view, segment)
        number = index.topics.get(topic)
        row = index.row_after(found.reached_id - 1) if number is not None else 0
        # From the newest block to the oldest; `row` is where the part to be searched ends.
        while row > 0:
            block = (row - 1) // BLOCK_ROWS
            rows = self._reader.rows(view, segment, block)[
                : (row - block * BLOCK_ROWS) * ROW_BYTES
            ]
            if _choose(rows, number, bounds, found):
                return True
            row = block * BLOCK_ROWS
        found.reached_id = segment.first_id
        return found.rows >= bounds.rows_max

    def _time_from(self, view: LogView, from_id: int, end_id: int) -> tuple[int, int]:
        """Return time and id of the first message from *from_id* on.

        If there is none before *end_id*, the answer is a time later than any, at *end_id*.
        """
        for segment in (*view.sealed, view.active):
            if segment.last_id < from_id:
                continue
            _, index = self._reader.opened(view, segment)
            row = index.row_after(max(from_id, segment.first_id) - 1)
            while row < index.rows:
                block, skipped = divmod(row, BLOCK_ROWS)
                longs = memoryview(self._reader.rows(view, segment, block)).cast("Q")
                times = longs[_TIME_LONG::_LONGS].tolist()
                for at in range(skipped, len(times)):
                    if times[at]:
                        return times[at], longs[at * _LONGS]
                row = (block + 1) * BLOCK_ROWS
            if segment.last_id + 1 >= end_id:
                break
        return 2**64, end_id


def _choose(rows: bytes, number: int | None, bounds: Bounds, found: FoundIds) -> bool:
    words = memoryview(rows).cast("I")
    topics = words[_TOPIC_WORD::_WORDS].tolist()
    lengths = words[_LENGTH_WORD::_WORDS].tolist()
    ids = memoryview(rows).cast("Q")[::_LONGS].tolist()
    for at in range(len(topics) - 1, -1, -1):
        if topics[at] != number or ids[at] >= found.reached_id:
            continue
        is_full = len(found.ids) >= bounds.count_max
        if is_full or (found.ids and found.payload_bytes + lengths[at] > bounds.bytes_max):
            found.reached_id = ids[at] + 1
            return True
        found.ids.append(ids[at])
        found.payload_bytes += lengths[at]
    found.rows += len(topics)
    found.reached_id = min(found.reached_id, ids[0])
    return found.rows >= bounds.rows_max
