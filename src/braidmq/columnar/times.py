"""From times to ids.

Timestamps never decrease along the log, so a binary search over the segments finds the one in
which a moment lies, and only that one is searched.
"""

import numpy as np

from braidmq.columnar.segments.segments import Segment
from braidmq.columnar.segments.views import DurableView


def offset_at(view: DurableView, moment_us: int) -> int:
    """Return the id of the first durable message that was accepted at *moment_us* or later.

    If there is none, it is the id behind the last durable one.

    Raises:
        DamagedLogError: The log is damaged.
    """
    first_ids = view.first_ids(0, view.latest)
    low, high = 0, len(first_ids)  # every segment from `high` on starts at the moment or later
    while low < high:
        middle = (low + high) // 2
        begins_us = _first_time(view, first_ids, middle)
        if begins_us is None or begins_us >= moment_us:
            high = middle
        else:
            low = middle + 1
    # All segments before `low` start before the moment, so it can only lie in the last of them.
    if low:
        segment = view.open(first_ids[low - 1])
        found = None if segment is None else _first_since(segment, moment_us)
        if found is not None:
            return found[0]
    return first_ids[low] if low < len(first_ids) else view.latest


def _first_time(view: DurableView, first_ids: list[int], number: int) -> int | None:
    """Return when the first message of a segment, or of a later one, was accepted."""
    for first_id in first_ids[number:]:
        segment = view.open(first_id)
        if segment is None:
            return 0  # retention deleted it meanwhile, so it was older than all the others
        found = _first_since(segment, 0)
        if found is not None:
            return found[1]
    return None


def _first_since(segment: Segment, moment_us: int) -> tuple[int, int] | None:
    """Return id and time of the first message of a segment at or after a moment."""
    for first, last in segment.windows(segment.first_id, segment.last_id + 1):
        rows = segment.rows[first:last]
        later = (rows["topic"] != 0) & (rows["timestamp_us"] >= np.uint64(max(moment_us, 0)))
        if later.any():
            row = rows[int(np.argmax(later))]
            return int(row["id"]), int(row["timestamp_us"])
    return None
