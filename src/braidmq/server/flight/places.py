"""Places: how much of the endpoint runs at a time, shared fairly among principals.

What a call holds while it runs (a stream, a stage, a scan of the log) is one of a few places. A
call that finds none waits: a reader that is slow must not make another fail. Yet one principal
must not keep all others waiting, so

- no principal holds more than its quota;
- a principal that holds fewer than `own` finds a place even when all others are taken;
- a place that becomes free goes to the waiting principal that holds the fewest, and among
  those to the call that has waited longest.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Final

from braidmq.base import refusals
from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import FLIGHT_STREAMS, refusal
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.server.engine.requests import SHUTTING_DOWN

PLACE_WAIT_S: Final = 1800.0
"""How long a call waits for a place; then it is told to try again."""

PEER_CHECK_S: Final = 0.5
"""How often a waiting call checks its peer: Flight has no event for one that disconnects."""


class _Waiting:
    """A call that waits for a place."""

    def __init__(self, principal: Principal, lock: Lock) -> None:
        self.principal = principal
        self.may_go_on = Condition(lock)
        self.has_place = False


class Places:
    """The places of one kind: *shared* for all, and *own* for each principal beyond those.

    With *by_quota*, a principal holds at most its quota of streams.
    """

    def __init__(
        self,
        kind: str,
        shared: int,
        *,
        own: int = 0,
        by_quota: bool = False,
        wait_s: float = PLACE_WAIT_S,
    ) -> None:
        self._kind = kind
        self._shared = shared
        self._own = own
        self._by_quota = by_quota
        self._wait_s = wait_s
        self._lock = Lock()
        self._closing = False
        self._held: Counter[str] = Counter()  # by the principal's name
        self._waiting: list[_Waiting] = []  # the longest first
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._waiting)

    @contextmanager
    def one(
        self, principal: Principal, is_gone: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Hold a place, once there is one; *is_gone* says that the peer has gone.

        Raises:
            UnavailableError: There is none, the peer is gone, or the broker ends.
        """
        with self._lock:
            self._take(principal, is_gone)
        try:
            yield
        finally:
            with self._lock:
                self._give_back(principal)

    def close(self) -> None:
        """Refuse every call that waits, and every later one."""
        with self._lock:
            self._closing = True
            for waiting in self._waiting:
                waiting.may_go_on.notify()

    def _take(self, principal: Principal, is_gone: Callable[[], bool]) -> None:
        self._refuse_if_closing()
        # A newcomer does not overtake a call of its own that waits.
        if not self._waits(principal.name) and self._is_free(principal):
            self._count(principal.name)
            return
        if self._quota(principal) == 0:
            raise UnavailableError(self._problem(principal))
        waiting = _Waiting(principal, self._lock)
        self._waiting.append(waiting)
        try:
            self._wait(waiting, is_gone)
        finally:
            self._waiting.remove(waiting)

    def _wait(self, waiting: _Waiting, is_gone: Callable[[], bool]) -> None:
        checks = -(-self._wait_s // PEER_CHECK_S)  # rounded up
        while checks > 0 and not is_gone():
            is_told = waiting.may_go_on.wait(PEER_CHECK_S)
            if waiting.has_place:
                return
            self._refuse_if_closing()
            checks -= not is_told
        raise UnavailableError(self._problem(waiting.principal))

    def _give_back(self, principal: Principal) -> None:
        self.taken -= 1
        self._held[principal.name] -= 1
        if not self._held[principal.name]:
            del self._held[principal.name]
        # One place may let several go on: what is free to one principal is not to another.
        while (chosen := self._next()) is not None:
            chosen.has_place = True
            self._count(chosen.principal.name)
            chosen.may_go_on.notify()

    def _next(self) -> _Waiting | None:
        able = (one for one in self._waiting if not one.has_place)
        free = (one for one in able if self._is_free(one.principal))
        # The first of those that hold equally many: it has waited longest.
        return min(free, key=lambda one: self._held[one.principal.name], default=None)

    def _count(self, name: str) -> None:
        self.taken += 1
        self._held[name] += 1

    def _waits(self, name: str) -> bool:
        return any(one.principal.name == name and not one.has_place for one in self._waiting)

    def _is_free(self, principal: Principal) -> bool:
        held = self._held[principal.name]
        quota = self._quota(principal)
        if quota is not None and held >= quota:
            return False
        return self.taken < self._shared or held < self._own

    def _quota(self, principal: Principal) -> int | None:
        return principal.quotas.limit(FLIGHT_STREAMS) if self._by_quota else None

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise UnavailableError(SHUTTING_DOWN)

    def _problem(self, principal: Principal) -> str:
        quota = self._quota(principal)
        if quota is not None and self._held[principal.name] >= quota:
            return f"{self._kind}: {refusal(FLIGHT_STREAMS, quota, principal.name)}"
        taken = f"all {self._shared} places for {self._kind} are taken; try again"
        return f"{taken}; {refusals.FOR_GOOD}"
