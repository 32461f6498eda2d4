"""Which sealed segments may be deleted: a pure decision, no file, no clock.

A segment is deleted once no reader needs it and *either* limit is exceeded: it was sealed more
than `retention_hours` ago, or the log is larger than `retention_bytes`. A limit of 0 is off;
with both off nothing is ever deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from braidmq.base.ids import ID_MAX
from braidmq.wal.segment import SegmentInfo

_HOUR_US: Final = 3_600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits; with `force` they also apply to segments that a reader still needs."""

    hours: float = 168.0
    bytes: int = 0
    force: bool = False

    def expired(
        self,
        segments: Sequence[SegmentInfo],
        *,
        needed_id: int,
        now_us: int,
        recovery_id: int = ID_MAX,
    ) -> list[SegmentInfo]:
        """Return the segments to delete: the oldest ones, up to the first that must stay.

        *segments* are all of the log's, the active one last; that one always stays. Readers
        need the ids from *needed_id* on; recovery needs those from *recovery_id* on, and
        `force` never overrides recovery: without them the broker could not start.
        """
        total = sum(segment.size for segment in segments)
        gone: list[SegmentInfo] = []
        for segment, successor in pairwise(segments):
            # Every reason to keep a segment stops the loop: deleting a younger one instead
            # would leave a hole, which recovery rightly calls damage.
            if not segment.sealed or segment.last_id >= recovery_id:
                break
            if segment.last_id >= needed_id and not self.force:
                break
            # A segment is sealed at the moment its successor is created.
            age_us = now_us - successor.created_us
            too_old = self.hours > 0 and age_us > self.hours * _HOUR_US
            too_much = 0 < self.bytes < total
            if not (too_old or too_much):
                break
            gone.append(segment)
            total -= segment.size
        return gone
