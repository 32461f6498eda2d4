"""Sealed segments that an open log keeps mapped from one read of few topics to the next.

Most of such a read is to map files, to have their pages found and to decode their tables. A
sealed segment does not change, so all of that is good for the next read as well, and where the
records of few topics are, for one that asks for the same ones. Of the segment that grows the
topics of its rows are kept, each of which was compared with its record: they say which of them
are wanted. What is not kept is trust in files: every read verifies for itself the records that
it uses.
"""

from collections.abc import Collection
from threading import Lock
from typing import Final

from braidmq.columnar.segments import KnownTopics, Segment

HELD_SEGMENTS_MAX: Final = 64
"""The ones that were used last are kept. Each has two files open."""


class HeldSegments:
    """Segments of one log that nobody reads at the moment; for any thread.

    `growing` is what is known of the one that is not sealed.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._segments: dict[int, Segment] = {}
        self.growing: KnownTopics | None = None

    def take(self, first_id: int, last_id: int) -> Segment | None:
        """Return a segment for one read, if it is held and its files are still the same."""
        with self._lock:
            found = self._segments.pop(first_id, None)
        if found is None or found.last_id != last_id or not found.is_current():
            return None
        return found

    def give(self, segment: Segment) -> None:
        """Keep a segment, whose read is over, for the next one."""
        if not segment.renew():
            if not segment.index.is_proof:
                self.growing = segment.known_topics()
            return
        with self._lock:
            self._segments[segment.first_id] = segment
            if len(self._segments) > HELD_SEGMENTS_MAX:
                del self._segments[next(iter(self._segments))]

    def keep_only(self, first_ids: Collection[int]) -> None:
        """Let go of segments that are not listed any more, so that their files can be freed."""
        with self._lock:
            self._segments = {
                first_id: segment
                for first_id, segment in self._segments.items()
                if first_id in first_ids
            }

    def clear(self) -> None:
        """Let go of all."""
        self.keep_only(())
        self.growing = None
