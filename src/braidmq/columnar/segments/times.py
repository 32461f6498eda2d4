"""Finding ids by time, also where the clock that stamped the messages was set.

Timestamps never decrease along the log but behind a CLOCK record, which a start of the broker
writes. A sealed index says whether its segment has one, so the log falls into runs of segments:

    ordered      many segments without a step: a binary search finds a moment
    not ordered  one segment with a step, or a gap that may have been one, or the one that
                 grows: all its rows are compared

In a log without a step that is one binary search, and a look at the last segment.
"""

from typing import NamedTuple

import numpy as np

from braidmq.columnar.segments.layout import Flags, Rows
from braidmq.columnar.segments.segments import Segment
from braidmq.columnar.segments.views import DurableView


class _Run(NamedTuple):
    """The first ids of some segments, and the first id behind them."""

    first_ids: list[int]
    end: int
    ordered: bool


class Times:
    """The times of a view; made for a query, which may ask for several moments.

    Raises:
        DamagedLogError: The log is damaged; so do all its methods.
    """

    def __init__(self, view: DurableView) -> None:
        self._view = view
        self._runs: list[_Run] = []
        self._growing: Segment | None = None
        first_ids = view.first_ids(0, view.latest)
        for first_id, end in zip(first_ids, [*first_ids[1:], view.latest], strict=True):
            ordered = view.has_order(first_id)
            if ordered and self._runs and self._runs[-1].ordered:
                before = self._runs.pop().first_ids
                self._runs.append(_Run([*before, first_id], end, ordered))
            else:
                self._runs.append(_Run([first_id], end, ordered))

    def at(self, moment_us: int) -> int:
        """Return the id of the first message that was stamped with *moment_us* or later.

        If there is none, it is the id after the last durable one.
        """
        for run in self._runs:
            found = self._first_since(run, moment_us)
            if found is not None:
                return found
        return self._view.latest

    def behind(self, moment_us: int) -> int:
        """Return the id behind the last message that was stamped before *moment_us*.

        It is never below that of `at`, and the same if the log is in order there. Otherwise
        messages from before the moment and from after it are mixed between the two.
        """
        at = self.at(moment_us)
        for run in reversed(self._runs):
            if run.end <= at:
                break
            if not run.ordered:
                last = self._last_before(run.first_ids[0], moment_us)
                if last is not None:
                    return max(at, last + 1)
            elif run.first_ids[0] <= at:
                break
            else:
                count = self._segments_before(run, moment_us)
                if count:
                    found = self._in_order(run, count, moment_us)
                    return run.end if found is None else found
        return at

    def _first_since(self, run: _Run, moment_us: int) -> int | None:
        if run.ordered:
            return self._in_order(run, self._segments_before(run, moment_us), moment_us)
        segment = self._opened(run.first_ids[0])
        found = None if segment is None else _first_since(segment, moment_us)
        return None if found is None else found[0]

    def _segments_before(self, run: _Run, moment_us: int) -> int:
        """Return how many segments of an ordered run have a message from before a moment."""
        low, high = 0, len(run.first_ids)  # every one from `high` on starts then or later
        while low < high:
            middle = (low + high) // 2
            begins_us = self._first_time(run, middle)
            if begins_us is None or begins_us >= moment_us:
                high = middle
            else:
                low = middle + 1
        return low

    def _in_order(self, run: _Run, count: int, moment_us: int) -> int | None:
        """Return the first id since a moment, before which *count* segments begin."""
        # They all start before the moment, so only the last of them can reach it.
        for first_id in run.first_ids[max(count - 1, 0) :]:
            segment = self._view.open(first_id)
            found = None if segment is None else _first_since(segment, moment_us)
            if found is not None:
                return found[0]
        return None

    def _first_time(self, run: _Run, number: int) -> int | None:
        """Return when the first message of a segment, or of a later one, was accepted."""
        for first_id in run.first_ids[number:]:
            segment = self._view.open(first_id)
            if segment is None:
                return 0  # retention deleted it meanwhile, so it was older than all the others
            found = _first_since(segment, 0)
            if found is not None:
                return found[1]
        return None

    def _last_before(self, first_id: int, moment_us: int) -> int | None:
        segment = self._opened(first_id)
        last = None
        if segment is not None:
            for first, behind in segment.windows(segment.first_id, segment.last_id + 1):
                rows = segment.rows[first:behind]
                earlier = np.nonzero(_messages(rows) & ~_since(rows, moment_us))[0]
                last = int(rows["id"][earlier[-1]]) if len(earlier) else last
        return last

    def _opened(self, first_id: int) -> Segment | None:
        # The segment that grows is looked at for each moment, and opening it reads all of it.
        if self._growing is None or self._growing.first_id != first_id:
            self._growing = self._view.open(first_id)
        return self._growing


def offset_at(view: DurableView, moment_us: int) -> int:
    """Return the id of the first durable message that was accepted at *moment_us* or later.

    If there is none, it is the id after the last durable one.

    Raises:
        DamagedLogError: The log is damaged.
    """
    return Times(view).at(moment_us)


def offset_behind(view: DurableView, moment_us: int) -> int:
    """Return the id behind the last durable message that was accepted before *moment_us*.

    That of `offset_at`, unless the clock was set back: then it may be a higher one.

    Raises:
        DamagedLogError: The log is damaged.
    """
    return Times(view).behind(moment_us)


def _first_since(segment: Segment, moment_us: int) -> tuple[int, int] | None:
    """Return id and time of the first message of a segment at or after a moment."""
    for first, last in segment.windows(segment.first_id, segment.last_id + 1):
        rows = segment.rows[first:last]
        later = _messages(rows) & _since(rows, moment_us)
        if later.any():
            row = rows[int(np.argmax(later))]
            return int(row["id"]), int(row["timestamp_us"])
    return None


def _messages(rows: Rows) -> Flags:
    flags: Flags = rows["topic"] != 0
    return flags


def _since(rows: Rows, moment_us: int) -> Flags:
    flags: Flags = rows["timestamp_us"] >= np.uint64(max(moment_us, 0))
    return flags
