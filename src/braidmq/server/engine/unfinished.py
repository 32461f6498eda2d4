"""Unfinished input: frames that peers have begun and not ended, and how long they may take.

The bytes of such a frame are held until its end arrives, so they are counted: towards the quota
`unfinished_bytes` of the principal, and over all principals towards half of the memory budget.
Whoever exceeds either is refused and disconnected. So is a peer whose unfinished frame makes no
progress: it must send `PROGRESS_BYTES` in each `PROGRESS_US`, or come to the end of the frame.
Input that waits because the broker cannot handle it yet is counted, and not held against it.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from braidmq.base import refusals
from braidmq.broker.broker import Broker
from braidmq.broker.quotas import UNFINISHED_BYTES, Account, refusal

if TYPE_CHECKING:
    from braidmq.server.engine.connection import Connection

PROGRESS_US: Final = 30_000_000
PROGRESS_BYTES: Final = 64 * 1024
"""About two kilobytes a second: a slow line is far faster, a silent peer is not."""


class _Mark(NamedTuple):
    """What was unfinished at some moment, and whose quota counts it."""

    at_us: int
    size: int
    account: Account | None


class UnfinishedInput:
    """The unfinished input of all connections that have more than a little of it."""

    def __init__(self, broker: Broker) -> None:
        self.bytes: int = 0
        self._accounts = broker.topics.accounts
        self._bytes_max: int = broker.settings.memory_bytes // 2
        self._marks: dict[Connection, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def note(self, connection: "Connection", size: int, now_us: int) -> str:
        """Note how many bytes of a connection are unfinished; return why they are too many."""
        before = connection.unfinished_bytes
        connection.unfinished_bytes = size
        self.bytes += size - before
        mark = self._marks.get(connection)
        if mark is None:
            principal = connection.principal
            account = None if principal is None else self._accounts.of(principal.name)
            mark = _Mark(now_us, size, account)
            self._marks[connection] = mark
        elif size < before or size >= mark.size + PROGRESS_BYTES:
            mark = _Mark(now_us, size, mark.account)
            self._marks[connection] = mark
        if mark.account is not None:
            mark.account.add(UNFINISHED_BYTES, size - before)
        if size == 0:
            del self._marks[connection]
        return self._refusal(connection, mark.account) if size > before else ""

    def _refusal(self, connection: "Connection", account: Account | None) -> str:
        principal = connection.principal
        if principal is not None and account is not None:
            limit = principal.quotas.limit(UNFINISHED_BYTES)
            if account.used(UNFINISHED_BYTES) > limit:
                self._accounts.refused[UNFINISHED_BYTES] += 1
                return refusal(UNFINISHED_BYTES, limit, principal.name)
        if self.bytes > self._bytes_max:
            return (
                f"the broker holds {self._bytes_max} bytes of unfinished frames, half of "
                f"limits.max_memory_bytes; {refusals.OPERATOR}"
            )
        return ""

    def refuse_overdue(self, now_us: int) -> None:
        """Refuse the peers whose unfinished frames make no progress."""
        overdue = [
            connection
            for connection, mark in self._marks.items()
            if mark.at_us + PROGRESS_US <= now_us
        ]
        for connection in overdue:
            connection.refuse_unfinished(
                f"an unfinished frame must grow by {PROGRESS_BYTES} bytes in "
                f"{PROGRESS_US // 1_000_000} s; send it again"
            )
