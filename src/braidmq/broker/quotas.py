"""Quotas: how much one principal may hold of what all principals share.

Memory, names and places are the broker's; without quotas one key could use them up for all
others. `DEFAULTS` is the table of quotas, and the only list of them: the section `[quotas]`,
the overrides of a key and the API's answers are made from it. A quota joins with its line
there, and whoever counts asks :meth:`Quotas.limit`.

What a principal holds is counted in its :class:`Account`, which is known by a digest of the
principal's name: that has a fixed size in a record, and survives restarts. `topics` says what
is charged to whom.

The defaults are for a broker that several teams share: an application does not meet them, and
ten principals that use up theirs do not stop the eleventh, because ten times each default is
below the bound of the broker. Of unfinished bytes that is not so; there whoever holds the most
is refused (`unfinished`), and Flight keeps places for every key. 0 is a quota too: none at all.
"""

import hashlib
from typing import Final, final

TOPICS: Final = "topics"
TOPIC_NAME_BYTES: Final = "topic_name_bytes"
QUEUES: Final = "queues"
SUBSCRIPTIONS: Final = "subscriptions"
CURSORS: Final = "cursors"
UNFINISHED_BYTES: Final = "unfinished_bytes"
FLIGHT_STREAMS: Final = "flight_streams"
SINK_QUERIES: Final = "sink_queries"

DEFAULTS: Final[dict[str, int]] = {
    TOPICS: 90_000,  # names that its publishes, subscriptions and queues have made
    TOPIC_NAME_BYTES: 16 * 1024 * 1024,  # of those names together
    QUEUES: 9_000,  # that it has declared, queues of dead letters included
    SUBSCRIPTIONS: 9_000,  # of Blip and Qumbed, connected or not
    CURSORS: 90,  # places of readers outside the broker
    UNFINISHED_BYTES: 128 * 1024 * 1024,  # of frames that have begun and not ended
    FLIGHT_STREAMS: 16,  # calls of Arrow Flight that run at the same time
    SINK_QUERIES: 1_000,  # streaming queries that write through the sink, of all time
}
"""Every quota with its default, in the order in which they are shown."""


ACCOUNT_ID_BYTES: Final = 16

_NAME_SHOWN_MAX: Final = 64


class Quotas:
    """The quotas of one principal; *own* are those that differ from the defaults."""

    def __init__(self, own: dict[str, int] | None = None) -> None:
        assert own is None or own.keys() <= DEFAULTS.keys()
        self._limits: dict[str, int] = dict(DEFAULTS)
        if own is not None:
            self._limits.update(own)

    def limit(self, quota: str) -> int:
        """Return how much the principal may hold of *quota*, one of `DEFAULTS`."""
        return self._limits[quota]

    def limits(self) -> dict[str, int]:
        """Return every quota by its name."""
        return dict(self._limits)


def refusal(quota: str, limit: int, principal: str) -> str:
    """Return what a principal is told that has met *quota*; the same words on every way in."""
    return (
        f"quota {quota} = {limit} of {principal[:_NAME_SHOWN_MAX]!r} is used up; "
        f"whoever runs the broker may raise quotas.{quota}"
    )


@final
class Account:
    """What one principal holds, by quota; `name` is empty if only the digest is known."""

    def __init__(self, account_id: bytes, name: str) -> None:
        self.id: bytes = account_id
        self.name: str = name
        self._used: dict[str, int] = {}

    def used(self, quota: str) -> int:
        """Return how much of *quota* is in use."""
        return self._used.get(quota, 0)

    def is_charged(self) -> bool:
        """Say whether anything is in use."""
        return any(self._used.values())

    def add(self, quota: str, count: int) -> None:
        """Charge *count* more, or fewer if it is below 0."""
        self._used[quota] = self._used.get(quota, 0) + count


@final
class Accounts:
    """Every account, by its id and by the principal's name."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, Account] = {}
        self._by_name: dict[str, Account] = {}
        self.refused: dict[str, int] = dict.fromkeys(DEFAULTS, 0)  # refusals so far, by quota

    def of(self, name: str) -> Account:
        """Return the account of the principal called *name*."""
        account = self._by_name.get(name)
        if account is None:
            account = self.by_id(hashlib.sha256(name.encode()).digest()[:ACCOUNT_ID_BYTES])
            account.name = name
            self._by_name[name] = account
        return account

    def by_id(self, account_id: bytes) -> Account:
        """Return the account that a record names."""
        account = self._by_id.get(account_id)
        if account is None:
            account = Account(account_id, "")
            self._by_id[account_id] = account
        return account

    def all(self) -> list[Account]:
        """Return every account, oldest first."""
        return list(self._by_id.values())

    def refusal(self, name: str, quotas: Quotas, quota: str, more: int = 1) -> str:
        """Return why the principal called *name* may not hold *more* of a quota; else ""."""
        limit = quotas.limit(quota)
        if self.of(name).used(quota) + more <= limit:
            return ""
        self.refused[quota] += 1
        return refusal(quota, limit, name)
