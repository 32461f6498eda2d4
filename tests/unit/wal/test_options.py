"""The log's options: sync policy and retention."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.wal.options import FsyncPolicy, WalOptions
from braidmq.wal.segment import SegmentInfo


def test_invalid_options_are_refused() -> None:
    """Sizes out of range, negative limits and unknown policies are ConfigErrors."""
    for invalid in (
        {"segment_bytes": 4095},
        {"segment_bytes": 2**31},
        {"retention_hours": -1.0},
        {"retention_bytes": -1},
        {"fsync": "sometimes"},
    ):
        with pytest.raises(ConfigError):
            WalOptions(**invalid)


POLICIES = {
    "always": (FsyncPolicy(1, 0), True, "nothing"),
    "every_n:1": (FsyncPolicy(1, 0), True, "nothing"),
    "every_n:64": (FsyncPolicy(64, 0), False, "up to 63 acknowledged"),
    "interval_ms:5": (FsyncPolicy(0, 5), False, "last 5 ms"),
    "none": (FsyncPolicy(0, 0), False, "everything"),
}


@pytest.mark.parametrize("text", POLICIES)
def test_each_policy_says_what_it_can_lose(text: str) -> None:
    """A policy is parsed from its text, and describes what a power cut can lose."""
    expected, strict, loss = POLICIES[text]
    policy = FsyncPolicy.parse(text)

    assert expected == policy
    assert strict == policy.is_strict
    assert loss in policy.can_lose


MISSPELT = (
    "Always every_n every_n: every_n:0 every_n:-1 every_n:x none:1 "
    "interval_ms:0 interval_ms:1.5 always:1 every_n:1:2"
)


@pytest.mark.parametrize("text", ["", *MISSPELT.split()])
def test_a_misspelt_policy_is_refused(text: str) -> None:
    """It is an error and never a default."""
    with pytest.raises(ConfigError, match=r"wal\.fsync"):
        FsyncPolicy.parse(text)


def test_a_commit_syncs_when_enough_is_unsynced() -> None:
    """`always` syncs after one record, `every_n` after N, the others never."""
    answers = {
        text: [POLICIES[text][0].wants_sync(unsynced) for unsynced in (0, 1, 63, 64, 65)]
        for text in POLICIES
    }

    assert [False, True, True, True, True] == answers["always"]
    assert [False, False, False, True, True] == answers["every_n:64"]
    assert [False] * 5 == answers["interval_ms:5"] == answers["none"]


HOUR_US = 3_600_000_000
SEGMENTS = [
    SegmentInfo(1, 10, 100, 0 * HOUR_US, sealed=True),
    SegmentInfo(11, 20, 100, 1 * HOUR_US, sealed=True),
    SegmentInfo(21, 30, 100, 2 * HOUR_US, sealed=True),
    SegmentInfo(31, 40, 100, 3 * HOUR_US, sealed=False),
]
ALL = 10**9


def limits(hours: float, size: int, *, force: bool = False) -> WalOptions:
    return WalOptions(retention_hours=hours, retention_bytes=size, retention_force=force)


@pytest.mark.parametrize(
    ("options", "needed_id", "recovery_id", "now_hours", "deleted"),
    [
        (limits(0.0, 0), ALL, ALL, 1000, []),
        (limits(1.0, 0), ALL, ALL, 2, []),
        (limits(1.0, 0), ALL, ALL, 2.5, [1]),
        (limits(1.0, 0), ALL, ALL, 1000, [1, 11, 21]),
        (limits(1.0, 0), 21, ALL, 1000, [1, 11]),
        (limits(1.0, 0), 20, ALL, 1000, [1]),
        (limits(0.0, 400), ALL, ALL, 1000, []),
        (limits(0.0, 399), ALL, ALL, 0, [1]),
        (limits(0.0, 1), ALL, ALL, 0, [1, 11, 21]),
        (limits(0.0, 1), 11, ALL, 0, [1]),
        (limits(1000.0, 250), ALL, ALL, 0, [1, 11]),
        (limits(1.0, 0, force=True), 1, ALL, 1000, [1, 11, 21]),
        (limits(1.0, 0, force=True), 1, 15, 1000, [1]),
        (limits(0.0, 0, force=True), 1, ALL, 1000, []),
    ],
)
def test_the_oldest_segments_expire_first(
    options: WalOptions, needed_id: int, recovery_id: int, now_hours: float, deleted: list[int]
) -> None:
    """Subject to limits, readers, force and recovery; the growing segment always stays."""
    expired = options.expired(
        SEGMENTS,
        needed_id=needed_id,
        now_us=int(now_hours * HOUR_US),
        recovery_id=recovery_id,
    )

    assert deleted == [segment.first_id for segment in expired]


class Stepped:
    """A clock that was set by some hours before the record of an id."""

    def __init__(self, step_id: int, hours: int) -> None:
        self.step_id = step_id
        self.hours = hours

    def moved_us(self, record_id: int) -> int:
        return self.hours * HOUR_US if record_id < self.step_id else 0

    def step_ids(self) -> list[int]:
        return [self.step_id]


@pytest.mark.parametrize(
    ("step_id", "hours", "now_hours", "deleted"),
    [
        (35, 1000, 1002, []),  # forwards: of the 1002 hours two have passed
        (35, 1000, 1005, [1, 11, 21]),
        (31, 1000, 1003.5, [1, 11]),  # the last segment was begun before its first record
        (25, 1000, 1001, []),
        (35, -100, -96.5, [1, 11]),  # back: their stamps are in the future now
        (35, -100, -97.5, [1]),
    ],
)
def test_a_wrong_clock_makes_no_segment_older_or_younger(
    step_id: int, hours: int, now_hours: float, deleted: list[int]
) -> None:
    """Age is the time that has passed, not the difference of two settings of a clock."""
    expired = limits(1.0, 0).expired(
        SEGMENTS,
        needed_id=ALL,
        now_us=int(now_hours * HOUR_US),
        steps=Stepped(step_id, hours),
    )

    assert deleted == [segment.first_id for segment in expired]


def test_an_unsealed_segment_never_expires() -> None:
    """Not even if it is not the last one."""
    unsealed = [SegmentInfo(1, 10, 100, 0, sealed=False), *SEGMENTS[1:]]

    assert [] == limits(0.0, 1, force=True).expired(unsealed, needed_id=ALL, now_us=0)
