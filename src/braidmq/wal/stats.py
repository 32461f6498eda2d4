"""Counters of a log since it was opened, for the pages and the metrics."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.histogram import Histogram

FSYNCS_KEPT: Final = 4_096
"""How many of the latest fsync times are kept for live charts."""

FSYNC_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5),
)
"""From a disk with a safe write cache to one that is about to fail."""

BATCH_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Records of one append."""


@dataclass(slots=True)
class WalStats:
    """Counters since the log was opened."""

    records: int = 0
    bytes: int = 0
    commits: int = 0
    fsyncs: int = 0
    fsync_seconds_last: float = 0.0
    fsync_seconds_total: float = 0.0
    # The reader of the chart empties it.
    fsync_seconds_lately: deque[float] = field(
        default_factory=lambda: deque(maxlen=FSYNCS_KEPT)
    )
    fsync_seconds: Histogram = field(default_factory=lambda: Histogram(FSYNC_BOUNDS_S))
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS))  # in records

    def count_batch(self, records: int, size: int) -> None:
        """Count one append of *size* bytes."""
        self.records += records
        self.bytes += size
        self.batches.add(records)

    def count_fsync(self, seconds: float) -> None:
        """Count one fsync and how long it took."""
        self.fsyncs += 1
        self.fsync_seconds_last = seconds
        self.fsync_seconds_total += seconds
        self.fsync_seconds_lately.append(seconds)
        self.fsync_seconds.add(seconds)
