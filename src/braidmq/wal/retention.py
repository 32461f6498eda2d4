"""Which sealed segments may go: a pure decision, no file, no clock.

A segment is kept while a reader needs it, or while the limits ask for it: it is younger than
`retention_hours` (by the time it was sealed) and within the newest `retention_bytes`. A limit
of 0 is off; with both off nothing is ever deleted. A limit that is exceeded no longer asks,
whatever the other says.
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
    """The limits; `force` lets them win over readers that have not come so far."""

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

        *segments* are all there are, the growing one last; it always stays. Ids from
        *needed_id* on are needed by a reader, ids from *recovery_id* on by recovery, which
        even force respects.
        """
        total = sum(segment.size for segment in segments)
        gone: list[SegmentInfo] = []
        for segment, successor in pairwise(segments):
            if not segment.sealed or segment.last_id >= recovery_id:
                break
            if segment.last_id >= needed_id and not self.force:
                break
            age_us = now_us - successor.created_us
            too_old = self.hours > 0 and age_us > self.hours * _HOUR_US
            too_much = 0 < self.bytes < total
            if not (too_old or too_much):
                break
            gone.append(segment)
            total -= segment.size
        return gone
