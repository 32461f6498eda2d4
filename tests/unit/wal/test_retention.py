"""Which segments may go."""

import pytest

from braidmq.wal.retention import Retention
from braidmq.wal.segment import SegmentInfo

HOUR_US = 3_600_000_000
SEGMENTS = [
    SegmentInfo(1, 10, 100, 0 * HOUR_US, sealed=True),
    SegmentInfo(11, 20, 100, 1 * HOUR_US, sealed=True),
    SegmentInfo(21, 30, 100, 2 * HOUR_US, sealed=True),
    SegmentInfo(31, 40, 100, 3 * HOUR_US, sealed=False),
]
ALL = 10**9


@pytest.mark.parametrize(
    ("limits", "needed_id", "recovery_id", "now_hours", "gone"),
    [
        (Retention(0.0, 0), ALL, ALL, 1000, []),
        (Retention(1.0, 0), ALL, ALL, 2, []),
        (Retention(1.0, 0), ALL, ALL, 2.5, [1]),
        (Retention(1.0, 0), ALL, ALL, 1000, [1, 11, 21]),
        (Retention(1.0, 0), 21, ALL, 1000, [1, 11]),
        (Retention(1.0, 0), 20, ALL, 1000, [1]),
        (Retention(0.0, 400), ALL, ALL, 1000, []),
        (Retention(0.0, 399), ALL, ALL, 0, [1]),
        (Retention(0.0, 1), ALL, ALL, 0, [1, 11, 21]),
        (Retention(0.0, 1), 11, ALL, 0, [1]),
        (Retention(1000.0, 250), ALL, ALL, 0, [1, 11]),
        (Retention(1.0, 0, force=True), 1, ALL, 1000, [1, 11, 21]),
        (Retention(1.0, 0, force=True), 1, 15, 1000, [1]),
        (Retention(0.0, 0, force=True), 1, ALL, 1000, []),
    ],
)
def test_the_oldest_go_first(
    limits: Retention, needed_id: int, recovery_id: int, now_hours: float, gone: list[int]
) -> None:
    """Limits, readers, force and recovery decide; the growing segment always stays."""
    expired = limits.expired(
        SEGMENTS,
        needed_id=needed_id,
        now_us=int(now_hours * HOUR_US),
        recovery_id=recovery_id,
    )

    assert gone == [segment.first_id for segment in expired]


def test_an_unsealed_segment_never_goes() -> None:
    """Not even if it were not the last."""
    unsealed = [SegmentInfo(1, 10, 100, 0, sealed=False), *SEGMENTS[1:]]

    assert [] == Retention(0.0, 1, force=True).expired(unsealed, needed_id=ALL, now_us=0)
