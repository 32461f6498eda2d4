"""The log's own settings, checked when they are made."""

from dataclasses import dataclass, field
from typing import Final

from braidmq.base.errors import ConfigError
from braidmq.base.limits import KIB, MIB
from braidmq.wal.policy import FsyncPolicy

SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 1024 * MIB
"""Far below the 4 GiB that index rows can address, because the last batch may overshoot it."""


@dataclass(frozen=True, slots=True)
class WalOptions:
    """The settings of ``[wal]`` that the log itself obeys.

    `segment_bytes`: the commit that reaches this size seals the segment. A `retention_hours` or
    `retention_bytes` of 0 is off; with both off nothing is deleted.
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
