"""Unfinished input: what peers have sent and the broker has not handled, and its bounds.

The bytes of a frame are held until its end arrives, so they are counted: towards the quota
`unfinished_bytes` of the principal, and over all principals towards half of the memory budget.
Whoever exceeds its quota is refused and disconnected; of all principals together, a connection
of the one that holds the most. So is a peer whose unfinished frame makes no progress: it must
send `PROGRESS_BYTES` in each `PROGRESS_US`, or come to the end of the frame.

Input that is *held up* waits because the broker cannot handle it yet: a queue is full, or the
log lags behind. It is counted as well, and not held against its sender: none is disconnected
for it, and it keeps no other principal from sending. Instead the broker stops reading from
connections that are held up, once their principal's quota or half of the budget is used up.
What had been read by then is held above that; with very many connections even that is too much:

    of one principal   > twice its quota and `SLACK_BYTES`   refused, held up or not
    not held up        > half of the budget                  the greediest is refused
    all of it          > the budget                          the greediest, held up or not
"""

from typing import TYPE_CHECKING, Final, final

from braidmq.base import refusals
from braidmq.broker.broker import Broker
from braidmq.broker.quotas import UNFINISHED_BYTES, Account, refusal

if TYPE_CHECKING:
    from braidmq.server.engine.connection import Connection

PROGRESS_US: Final = 30_000_000
PROGRESS_BYTES: Final = 64 * 1024
"""About two kilobytes a second: a slow line is far faster, a silent peer is not."""

SLACK_BYTES: Final = 1024 * 1024
"""A few reads: what comes with the command that is held up."""


@final
class _Mark:
    """What was noted of one connection, and whose quota counts it."""

    def __init__(self, at_us: int) -> None:
        self.at_us: int = at_us  # when it last made progress, and how much there was then
        self.from_size: int = 0
        self.size: int = 0
        self.held_up: bool = False
        self.account: Account | None = None  # None while the peer has not proven who it is


class UnfinishedInput:
    """The unhandled input of all connections that have more than a little, or are held up."""

    def __init__(self, broker: Broker) -> None:
        self.bytes: int = 0
        self.held_up_bytes: int = 0  # of those
        self._accounts = broker.topics.accounts
        self._budget: int = broker.settings.memory_bytes
        self._bytes_max: int = broker.settings.memory_bytes // 2
        self._marks: dict[Connection, _Mark] = {}
        # Those that are held up and still read, so that they can be stopped without a search.
        self._reading: dict[Account | None, set[Connection]] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def note(
        self, connection: "Connection", size: int, now_us: int, *, held_up: bool = False
    ) -> str:
        """Note how many bytes of a connection are unhandled; return why they are too many."""
        mark = self._marks.get(connection)
        if mark is None:
            mark = _Mark(now_us)
            self._marks[connection] = mark
            connection.is_noted = True
        grew = size > mark.size
        # The time in which the peer was held up does not count.
        if size < mark.size or size >= mark.from_size + PROGRESS_BYTES or mark.held_up:
            mark.at_us = now_us
            mark.from_size = size
        payer = connection.principal or connection.vouched_for
        account = None if payer is None else self._accounts.of(payer.name)
        # The first input of a peer may come before the broker knows who it is.
        is_known_now = account is not mark.account
        self._count(mark, -1)
        self._stop_following(connection, mark)
        mark.size, mark.held_up, mark.account = size, held_up, account
        self._count(mark, 1)
        is_over = False
        if account is not None and payer is not None:
            limit = payer.quotas.limit(UNFINISHED_BYTES)
            is_over = account.used(UNFINISHED_BYTES) > limit
            if is_over:
                self._stop_reading(account)
                hard = 2 * limit + SLACK_BYTES if held_up else limit
                if account.used(UNFINISHED_BYTES) > hard and (grew or is_known_now):
                    self._accounts.refused[UNFINISHED_BYTES] += 1
                    return refusal(UNFINISHED_BYTES, limit, payer.name)
        if self.bytes > self._bytes_max:
            is_over = True
            for others in list(self._reading):
                self._stop_reading(others)
        if held_up:
            if is_over:
                connection.intake.stop()
            else:
                self._reading.setdefault(account, set()).add(connection)
        elif size == 0:
            del self._marks[connection]
            connection.is_noted = False
        return self._shared_refusal(connection) if grew else ""

    def must_wait(self, connection: "Connection") -> bool:
        """Say whether a connection that is held up may not read on yet."""
        payer = connection.principal or connection.vouched_for
        if payer is not None:
            used = self._accounts.of(payer.name).used(UNFINISHED_BYTES)
            if used > payer.quotas.limit(UNFINISHED_BYTES):
                return True
        return self.bytes > self._bytes_max

    def forget(self, connection: "Connection") -> None:
        """Count nothing of a connection any more: its input is gone."""
        mark = self._marks.pop(connection, None)
        if mark is not None:
            self._count(mark, -1)
            self._stop_following(connection, mark)
            connection.is_noted = False

    def refuse_overdue(self, now_us: int) -> None:
        """Refuse the peers whose unfinished frames make no progress."""
        overdue = [
            connection
            for connection, mark in self._marks.items()
            if mark.at_us + PROGRESS_US <= now_us and not _is_held_up(connection, mark)
        ]
        for connection in overdue:
            connection.refuse_unfinished(
                f"an unfinished frame must grow by {PROGRESS_BYTES} bytes in "
                f"{PROGRESS_US // 1_000_000} s; send it again"
            )

    def _shared_refusal(self, connection: "Connection") -> str:
        """Refuse connections until what all hold fits; return why, if it is this one."""
        what = f"the unfinished frames of all peers have more than {self._bytes_max} bytes"
        text = refusals.by_setting(what, "limits.max_memory_bytes", self._budget)
        while connection in self._marks:
            if self.bytes > self._budget:
                greediest = self._greediest(held_up=True)
            elif self.bytes - self.held_up_bytes > self._bytes_max:
                greediest = self._greediest(held_up=False)
            else:
                break
            if greediest is None or greediest is connection:
                return text if greediest is connection else ""
            greediest.refuse_unfinished(text)
            self.forget(greediest)
        return ""

    def _greediest(self, *, held_up: bool) -> "Connection | None":
        """Return the largest of the principal that holds the most; with *held_up* of all."""
        found: Connection | None = None
        most = (-1, -1)
        strangers = sum(mark.size for mark in self._marks.values() if mark.account is None)
        for connection, mark in self._marks.items():
            if held_up or not _is_held_up(connection, mark):
                account = mark.account
                all_of_it = strangers if account is None else account.used(UNFINISHED_BYTES)
                if (all_of_it, mark.size) > most:
                    most = (all_of_it, mark.size)
                    found = connection
        return found

    def _count(self, mark: _Mark, sign: int) -> None:
        size = sign * mark.size
        self.bytes += size
        if mark.held_up:
            self.held_up_bytes += size
        if mark.account is not None and size:
            mark.account.add(UNFINISHED_BYTES, size)

    def _stop_reading(self, account: Account | None) -> None:
        """Stop reading from all connections of a principal that are held up."""
        for connection in self._reading.pop(account, ()):
            connection.intake.stop()

    def _stop_following(self, connection: "Connection", mark: _Mark) -> None:
        if mark.held_up:
            reading = self._reading.get(mark.account)
            if reading is not None:
                reading.discard(connection)
                if not reading:
                    del self._reading[mark.account]


def _is_held_up(connection: "Connection", mark: _Mark) -> bool:
    # What it does not read of its output may hold it up from one moment to the next.
    return mark.held_up or not connection.writable
