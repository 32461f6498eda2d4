"""Visitors: the connections of the Flight endpoint, and what they hold of what all share.

    held                     by                          when it is too much
    bytes in gRPC            a principal: its quota      the connection that adds to it
                                                         is closed
                             all together                the one that holds the most is
    open calls               a principal                 the connection that adds to it is
                             all strangers together      the stranger with the most is
    connections              all together                see `to_leave` and `to_yield`

gRPC holds what it has got of a message until its end, and messages until a handler takes them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, NamedTuple

from braidmq.base.refusals import OPERATOR, by_bound
from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import UNFINISHED_BYTES, refusal
from braidmq.server.flight.calls import CALLS_MAX, Call
from braidmq.server.flight.inspection import FLIGHT_STREAMS, Inspection
from braidmq.server.flight.messages import MESSAGE_BYTES_MAX
from braidmq.transport.door import Place
from braidmq.transport.relay import RefusedBytesError, Relayed

PRINCIPAL_STREAMS_MAX: Final = 2 * CALLS_MAX
"""Open calls of a principal: those that run, and some that are being refused or answered."""

STRANGERS_STREAMS_MAX: Final = CALLS_MAX
"""Open calls of all strangers together."""

HELD_SHARE: Final = 4
"""One in so many bytes of `limits.max_memory_bytes` is for what gRPC holds, which takes it two
or three times their size."""

FLIGHT_MEMORY: Final = "flight_memory"
"""The reason of a refusal for what gRPC holds for all together."""


class _Charge(NamedTuple):
    """What a visitor holds, and for whom."""

    principal: str | None
    streams: int
    held_bytes: int


_NOTHING: Final = _Charge(None, 0, 0)


class Visitor:
    """One connection of the endpoint's address; *make* connects its inspection to a relay."""

    def __init__(
        self, ledger: "Ledger", place: Place, peer: str, make: Callable[["Visitor"], Relayed]
    ) -> None:
        self.place = place
        self.peer = peer
        self.number = 0
        self.since_us = 0
        self.principal: Principal | None = None  # of its last call
        self.calls: set[Call] = set()
        self.deadline: asyncio.TimerHandle | None = None
        self.inspection = Inspection()
        self.relayed = make(self)
        self._ledger = ledger
        self._seen_bytes = -1
        self._seen_at = 0.0

    @property
    def name(self) -> str | None:
        """The name of its principal; None for a stranger."""
        return None if self.principal is None else self.principal.name

    def up(self, data: memoryview) -> None:
        """Look at what the peer sends; on the relay's thread."""
        self.inspection.up(data)
        self._ledger.charge(self)

    def down(self, data: memoryview) -> None:
        """Look at what gRPC sends; on the relay's thread."""
        self.inspection.down(data)
        self._ledger.charge(self)

    def silent_s(self, now: float) -> float:
        """Return for how long no call has moved anything; called again and again."""
        if self.inspection.moved != self._seen_bytes:
            self._seen_bytes, self._seen_at = self.inspection.moved, now
        return now - self._seen_at

    def stalled(self, now: float, limit_s: float) -> int:
        """Return how many calls wait for the peer, which does nothing; called again and again.

        Which call is which stream is not known. But those that a handler works on are no more
        than the streams that are silent because of it, so the rest are the peer's.
        """
        streams = list(self.inspection.streams.values())
        silent = sum([stream.silent_s(now) >= limit_s for stream in streams])
        working = sum(call.is_at_work(now, limit_s) for call in list(self.calls))
        return max(0, silent - working)


class Ledger:
    """What visitors hold; used by the threads of relays."""

    def __init__(self, memory_bytes: int) -> None:
        # The largest batch must fit, however small the memory is.
        self._bytes_max = max(memory_bytes // HELD_SHARE, MESSAGE_BYTES_MAX)
        self._lock = Lock()
        self._charges: dict[Visitor, _Charge] = {}
        self._streams: Counter[str | None] = Counter()  # by the principal's name
        self._bytes: Counter[str | None] = Counter()
        self._bytes_of_all = 0

    def enter(self, visitor: Visitor) -> None:
        """Count a visitor from now on."""
        with self._lock:
            self._charges[visitor] = _NOTHING

    def leave(self, visitor: Visitor) -> None:
        """Forget a visitor; again does nothing."""
        with self._lock:
            self._forget(visitor)

    def charge(self, visitor: Visitor) -> None:
        """Count what a visitor holds now; another may be closed for it.

        Raises:
            RefusedBytesError: It, or its principal, holds too much.
        """
        inspection = visitor.inspection
        now = _Charge(visitor.name, len(inspection.streams), inspection.held_bytes)
        before = self._charges.get(visitor)
        if before is None or before == now:  # it was closed for another, or nothing is new
            return
        with self._lock:
            if visitor not in self._charges:
                return
            self._add(before, -1)
            self._charges[visitor] = now
            self._add(now, 1)
            if now.streams > before.streams:
                self._judge_streams(visitor, now)
            if now.held_bytes > before.held_bytes:
                self._judge_bytes(visitor, now)

    def _add(self, charge: _Charge, sign: int) -> None:
        for counts, count in (
            (self._streams, charge.streams),
            (self._bytes, charge.held_bytes),
        ):
            counts[charge.principal] += sign * count
            if not counts[charge.principal]:
                del counts[charge.principal]
        self._bytes_of_all += sign * charge.held_bytes

    def _forget(self, visitor: Visitor) -> None:
        charge = self._charges.pop(visitor, None)
        if charge is not None:
            self._add(charge, -1)

    def _judge_streams(self, visitor: Visitor, now: _Charge) -> None:
        most = STRANGERS_STREAMS_MAX if now.principal is None else PRINCIPAL_STREAMS_MAX
        if self._streams[now.principal] <= most:
            return
        if now.principal is not None:
            problem = f"too many calls of {now.principal!r}"
            raise RefusedBytesError(FLIGHT_STREAMS, by_bound(problem, most, "at a time"))
        strangers = [one for one, charge in self._charges.items() if charge.principal is None]
        greediest = max(strangers, key=lambda one: self._charges[one].streams)
        problem = by_bound("too many calls without a known key", most, "at a time")
        self._close(greediest, visitor, RefusedBytesError(FLIGHT_STREAMS, problem))

    def _judge_bytes(self, visitor: Visitor, now: _Charge) -> None:
        if visitor.principal is not None:
            limit = visitor.principal.quotas.limit(UNFINISHED_BYTES)
            if self._bytes[now.principal] > limit:
                text = refusal(UNFINISHED_BYTES, limit, visitor.principal.name)
                raise RefusedBytesError(UNFINISHED_BYTES, text)
        if self._bytes_of_all > self._bytes_max:
            greediest = max(self._charges, key=lambda one: self._charges[one].held_bytes)
            text = (
                f"messages that no handler has taken have more than {self._bytes_max} bytes, "
                "a share of limits.max_memory_bytes, and this connection has the most; "
                f"{OPERATOR}"
            )
            self._close(greediest, visitor, RefusedBytesError(FLIGHT_MEMORY, text))

    def _close(self, victim: Visitor, visitor: Visitor, problem: RefusedBytesError) -> None:
        if victim is visitor:
            raise problem
        # At once: until its relay has closed it, others must not be closed for the same.
        self._forget(victim)
        victim.relayed.refuse(problem)


def to_leave(visitors: Iterable[Visitor]) -> Visitor | None:
    """Return the one of all *visitors* that leaves for a newcomer, the oldest given first.

    A stranger, of the address that has the most; else one without calls, of the principal that
    has the most connections. Clients connect again for their next call.
    """
    everyone = list(visitors)
    strangers = [one for one in everyone if one.principal is None]
    if strangers:
        at = Counter(one.place.address for one in strangers)
        return max(strangers, key=lambda one: at[one.place.address])
    held = Counter(one.name for one in everyone)
    idle = (one for one in everyone if not one.calls and not one.inspection.streams)
    return max(idle, key=lambda one: held[one.name], default=None)


def to_yield(visitors: Iterable[Visitor], newcomer: Visitor) -> Visitor:
    """Return the one that leaves when *newcomer* has shown a key and there are too many.

    One without calls, of the principal that has the most connections; else the newest of that
    principal's, so that none holds all of them with calls that do not end.
    """
    known = [one for one in visitors if one.principal is not None]
    held = Counter(one.name for one in known)
    idle = (
        one
        for one in known
        if one is not newcomer and not one.calls and not one.inspection.streams
    )
    victim = max(idle, key=lambda one: held[one.name], default=None)
    if victim is not None:
        return victim
    most = max(held.values(), default=0)
    if held[newcomer.name] >= most:
        return newcomer
    return next(one for one in reversed(known) if held[one.name] == most)
