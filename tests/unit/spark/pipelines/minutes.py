"""Count readings by sensor and minute the obvious way: one at a time, in plain Python.

The rollup's tests compare with it; it knows nothing of Spark or batches.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MINUTE_MS = 60_000


class Event(NamedTuple):
    """A reading in the log; its value is None if the payload is invalid."""

    offset: int
    sensor: str
    event_ms: int
    value: float | None


@dataclass
class Minutes:
    """Closed and open minutes, and the offsets of readings that are in neither."""

    closed: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    open: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    invalid: list[int] = field(default_factory=list)
    newest_ms: int | None = None


def count(events: Iterable[Event], watermark_ms: int, *, close: bool = False) -> Minutes:
    """Count events in log order; with *close*, no minute is left open."""
    found = Minutes()
    kept: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        newest_ms = found.newest_ms
        if event.value is None:
            found.invalid.append(event.offset)
        elif newest_ms is not None and event.event_ms < newest_ms - watermark_ms:
            found.late.append(event.offset)
        else:
            found.newest_ms = max(event.event_ms, newest_ms or 0)
            minute = event.event_ms // MINUTE_MS * MINUTE_MS
            kept.setdefault((event.sensor, minute), []).append(event)
    for (sensor, minute), members in kept.items():
        assert found.newest_ms is not None
        is_closed = close or minute + MINUTE_MS <= found.newest_ms - watermark_ms
        minutes = found.closed if is_closed else found.open
        minutes[sensor, minute] = _row(members)
    return found


def _row(members: list[Event]) -> dict[str, Any]:
    values = [event.value for event in members if event.value is not None]
    latest = max(members, key=lambda event: (event.event_ms, event.offset))
    return {
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "mean": math.fsum(values) / len(values),
        "last": latest.value,
    }
