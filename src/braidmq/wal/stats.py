"""What the log counts of itself; one thread adds, any may look."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.histogram import Histogram

FSYNCS_KEPT: Final = 4_096
"""Times of single fsyncs that are kept for whoever watches."""

FSYNC_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)
"""From a write cache that is safe to a disk that is about to fail."""

BATCH_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Records of one commit."""


@dataclass(slots=True)
class WalStats:
    """Counters since the log was opened."""

    appends: int = 0
    records: int = 0
    bytes: int = 0
    commits: int = 0
    fsyncs: int = 0
    fsync_seconds_last: float = 0.0
    fsync_seconds_total: float = 0.0
    fsync_seconds_lately: deque[float] = field(
        default_factory=lambda: deque(maxlen=FSYNCS_KEPT)
    )  # whoever watches takes them
    fsync_seconds: Histogram = field(default_factory=lambda: Histogram(FSYNC_BOUNDS_S))
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS))  # in records
    rotations: int = 0
    rotations_postponed: int = 0
    refused_full: int = 0
    urgent_from_reserve: int = 0
    marks_skipped: int = 0
    segments_deleted: int = 0
    segments_forced: int = 0

    def count_fsync(self, seconds: float) -> None:
        """Note that an fsync took so long."""
        self.fsyncs += 1
        self.fsync_seconds_last = seconds
        self.fsync_seconds_total += seconds
        self.fsync_seconds_lately.append(seconds)
        self.fsync_seconds.add(seconds)
