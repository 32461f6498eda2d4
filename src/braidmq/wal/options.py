"""The log's settings, and what they decide: when a commit syncs, which segments may go.

The decisions are pure answers, without a file or a clock; `braidmq.wal.wal` acts on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

from braidmq.base.errors import ConfigError
from braidmq.base.ids import ID_MAX
from braidmq.base.limits import KIB, MIB
from braidmq.wal.segment import SegmentInfo

SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 1024 * MIB
"""Far below the 4 GiB that index rows can address, because the last batch may overshoot it."""

_HOUR_US: Final = 3_600 * 1_000_000


class Steps(Protocol):
    """What the owner of a log knows about steps of the clock that stamped it."""

    def moved_us(self, record_id: int) -> int:
        """Return what to add to a time that was written with this record, to compare it now."""

    def step_ids(self) -> list[int]:
        """Return the ids at which times may go back, oldest first."""


class NoSteps:
    """A clock that has never been set."""

    def moved_us(self, record_id: int) -> int:  # noqa: ARG002 - no time was moved
        """Return 0."""
        return 0

    def step_ids(self) -> list[int]:
        """Return no id."""
        return []


@dataclass(frozen=True, slots=True)
class FsyncPolicy:
    """One of ``always``, ``every_n:N``, ``interval_ms:M``, ``none``.

    `every_records` is 1 for ``always``, N for ``every_n:N`` and 0 if commits do not sync.
    `interval_ms` is how often the owner of the log must call `Wal.sync`; 0 is never.
    """

    every_records: int
    interval_ms: int

    @classmethod
    def parse(cls, text: str) -> "FsyncPolicy":
        """Return the policy that *text* names.

        Raises:
            ConfigError: *text* is not a policy.
        """
        name, colon, number = text.partition(":")
        if text == "always":
            return cls(1, 0)
        if text == "none":
            return cls(0, 0)
        if name in {"every_n", "interval_ms"} and colon and number.isdecimal() and int(number):
            return cls(int(number), 0) if name == "every_n" else cls(0, int(number))
        raise ConfigError(
            "wal.fsync",
            f"{text!r} is none of always, every_n:N, interval_ms:M, none (N, M at least 1)",
        )

    def wants_sync(self, unsynced_records: int) -> bool:
        """Return whether a commit with this many unsynced records must sync."""
        return 0 < self.every_records <= unsynced_records

    @property
    def can_lose(self) -> str:
        """What a power cut can take of the acknowledged records, as the rest of a sentence."""
        if self.every_records == 1:
            return "nothing that was acknowledged"
        if self.every_records:
            return f"up to {self.every_records - 1} acknowledged records"
        if self.interval_ms:
            last = f"in the last {self.interval_ms} ms"
            return f"what was acknowledged {last}, and more if the disk lags"
        return "everything acknowledged since the last snapshot"

    @property
    def is_strict(self) -> bool:
        """Whether no acknowledged record can be lost."""
        return self.every_records == 1


NO_STEPS: Final = NoSteps()


@dataclass(frozen=True, slots=True)
class WalOptions:
    """The settings of ``[wal]`` that the log itself obeys.

    `segment_bytes`: the commit that reaches this size seals the segment. A segment is deleted
    once no reader needs it and *either* retention limit is exceeded: it was sealed more than
    `retention_hours` ago, or the log is larger than `retention_bytes`. A limit of 0 is off;
    with both off nothing is ever deleted. With `retention_force` the limits also apply to
    segments that a reader still needs.
    """

    fsync: str = "always"
    segment_bytes: int = 64 * MIB
    retention_hours: float = 168.0
    retention_bytes: int = 0
    retention_force: bool = False
    policy: FsyncPolicy = field(init=False)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: A setting is out of range.
        """
        object.__setattr__(self, "policy", FsyncPolicy.parse(self.fsync))
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            bounds = f"must be between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"
            raise ConfigError("wal.segment_bytes", f"{self.segment_bytes} {bounds}")
        if self.retention_hours < 0 or self.retention_bytes < 0:
            raise ConfigError("wal.retention", "limits must not be negative; 0 is off")

    def expired(
        self,
        segments: Sequence[SegmentInfo],
        *,
        needed_id: int,
        now_us: int,
        recovery_id: int = ID_MAX,
        steps: Steps = NO_STEPS,
    ) -> list[SegmentInfo]:
        """Return the segments to delete: the oldest ones, up to the first that must stay.

        *segments* are all of the log's, the active one last; that one always stays. Readers
        need the ids from *needed_id* on; recovery needs those from *recovery_id* on, and
        `retention_force` never overrides recovery: without them the broker could not start.
        *steps* keeps a clock that was wrong for a while from making segments older or younger.
        """
        total = sum(segment.size for segment in segments)
        gone: list[SegmentInfo] = []
        for segment, successor in pairwise(segments):
            # Every reason to keep a segment stops the loop: deleting a younger one instead
            # would leave a hole, which recovery rightly calls damage.
            if not segment.sealed or segment.last_id >= recovery_id:
                break
            if segment.last_id >= needed_id and not self.retention_force:
                break
            # A segment is sealed at the moment its successor is created, just before the first
            # record of that one.
            sealed_us = successor.created_us + steps.moved_us(successor.first_id - 1)
            age_us = now_us - sealed_us
            too_old = self.retention_hours > 0 and age_us > self.retention_hours * _HOUR_US
            too_much = 0 < self.retention_bytes < total
            if not (too_old or too_much):
                break
            gone.append(segment)
            total -= segment.size
        return gone
