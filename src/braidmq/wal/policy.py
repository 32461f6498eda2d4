"""When a commit syncs: the four fsync policies, and what a power cut can take under each.

A policy is a pure answer; `braidmq.wal.wal` does the syncing.
"""

from dataclasses import dataclass
from typing import Final

from braidmq.base.errors import ConfigError

_KEY: Final = "wal.fsync"
_ALWAYS_LOSS: Final = "nothing that was acknowledged"


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
            _KEY,
            f"{text!r} is none of always, every_n:N, interval_ms:M, none (N, M at least 1)",
        )

    def wants_sync(self, unsynced_records: int) -> bool:
        """Return whether a commit with this many unsynced records must sync."""
        return 0 < self.every_records <= unsynced_records

    @property
    def can_lose(self) -> str:
        """What a power cut can take of the acknowledged records, as the rest of a sentence."""
        if self.every_records == 1:
            return _ALWAYS_LOSS
        if self.every_records:
            return f"up to {self.every_records - 1} acknowledged records"
        if self.interval_ms:
            lag = f"in the last {self.interval_ms} ms, and more if the disk lags"
            return f"what was acknowledged {lag}"
        return "everything acknowledged since the last snapshot"

    @property
    def is_strict(self) -> bool:
        """Whether no acknowledged record can be lost."""
        return self.every_records == 1
