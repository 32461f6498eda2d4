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
from typing import Final, NamedTuple

from braidmq.base.limits import MIB
from braidmq.columnar.segments.segments import KnownTopics, Segment

HELD_SEGMENTS_MAX: Final = 64
"""Each has two files open."""

HELD_BYTES_MAX: Final = 8192 * MIB
"""Pages of files, which the system takes back when it needs memory, and counts until then."""


class _Held(NamedTuple):
    segment: Segment
    read: int
    """The read that it was used by."""


class HeldSegments:
    """Segments of one log that nobody reads at the moment; for any thread.

    Their files have at most *bytes_max* together. `growing` is what is known of the segment
    that is not sealed.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._held: dict[int, _Held] = {}  # in the order in which they were used
        self._read = 0
        self.growing: KnownTopics | None = None

    def begin_read(self, first_ids: Collection[int]) -> None:
        """Let go of segments that are not listed any more, so that their files can be freed."""
        with self._lock:
            self._read += 1
            self._held = {
                first_id: held for first_id, held in self._held.items() if first_id in first_ids
            }

    def take(self, first_id: int, last_id: int) -> Segment | None:
        """Return a segment for one read, if it is held and its files are still the same."""
        with self._lock:
            held = self._held.pop(first_id, None)
        if held is None or held.segment.last_id != last_id or not held.segment.is_current():
            return None
        return held.segment

    def give(self, segment: Segment) -> None:
        """Keep a segment, whose read is over, for the next one."""
        if not segment.renew():
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
                # All were used by this read, and the next one like it begins with the first.
                first_id = next(reversed(self._held))
            size -= self._held.pop(first_id).segment.mapped_bytes

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._held = {}
        self.growing = None
