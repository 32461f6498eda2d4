"""Sealed segments that an open log keeps mapped from one read of few topics to the next.

Such a read spends most of its time mapping files, faulting in pages and decoding tables. A
sealed segment never changes, so the next read can reuse all of that, and, if it asks for the
same topics, the positions of their records as well. Of the active segment, the topic of each
verified row is kept: it tells which rows are wanted.

Trust is not kept: bytes can rot between two reads, so every read verifies the records it uses.
"""

from collections.abc import Collection
from threading import Lock
from typing import Final, NamedTuple

from braidmq.base.limits import MIB
from braidmq.columnar.segments.segments import KnownTopics, Segment

HELD_SEGMENTS_MAX: Final = 64
"""Each keeps two files mapped."""

HELD_BYTES_MAX: Final = 8192 * MIB
"""Mapped pages: the kernel reclaims them under pressure, but until then they count as ours."""


class _Held(NamedTuple):
    segment: Segment
    read: int
    """The number of the last read that used it."""


class HeldSegments:
    """Mapped segments of one log that no read is using at the moment; for any thread.

    Their files have at most *bytes_max* in total. `growing` holds the verified topics of the
    active segment. A read takes a segment out and gives it back, so no two reads share one.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._held: dict[int, _Held] = {}  # in the order in which they were used
        self._read = 0
        self.growing: KnownTopics | None = None

    def begin_read(self, first_ids: Collection[int]) -> None:
        """Drop segments that retention has deleted, so that their disk space can be freed."""
        with self._lock:
            self._read += 1
            self._held = {
                first_id: held for first_id, held in self._held.items() if first_id in first_ids
            }

    def take(self, first_id: int, last_id: int) -> Segment | None:
        """Return a segment for one read, if it is held and its files are unchanged."""
        with self._lock:
            held = self._held.pop(first_id, None)
        if held is None or held.segment.last_id != last_id or not held.segment.is_current():
            return None
        return held.segment

    def give(self, segment: Segment) -> None:
        """Keep a segment for the next read; its own read is over."""
        if not segment.renew():
            # No lock: a single assignment, and any of two reads' topics will do.
            if not segment.index.is_proof:
                self.growing = segment.known_topics()
            return
        with self._lock:
            self._held[segment.first_id] = _Held(segment, self._read)
            self._make_room()

    def _make_room(self) -> None:
        size = sum(held.segment.mapped_bytes for held in self._held.values())
        while len(self._held) > HELD_SEGMENTS_MAX or size > self._bytes_max:
            first_id = next(iter(self._held))
            if self._held[first_id].read == self._read:
                # This read used all of them, and a repeat will start with the first one. So
                # drop the last: dropping the first would leave the repeat nothing to reuse.
                first_id = next(reversed(self._held))
            size -= self._held.pop(first_id).segment.mapped_bytes

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._held = {}
        self.growing = None
