"""Calls to the Flight endpoint: authentication, how many run at a time, and how they fail.

Every call needs an API key. What a call holds while it runs (a stream, a stage, a scan of the
log) is one of a few slots. A call without a slot waits for one: a peer that reads slowly must
not make another fail.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from braidmq.base.errors import BraidError, NotAllowedError
from braidmq.broker.authorize import Principal
from braidmq.columnar.flight.failures import (
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    encode_failure,
    shortened,
)
from braidmq.server.engine.requests import SHUTTING_DOWN

CALLS_MAX: Final = 256
"""Calls at a time, each on a thread of its own; one more is told to try again."""

STREAMS_MAX: Final = 32
"""Reads at a time; each holds a batch or two, and its slot while its reader is slow."""

STAGES_MAX: Final = 32
"""Stages that are written at a time. Apart from reads: one task may read and write."""

SCANS_MAX: Final = 2
"""Scans of the index at a time: offsets, counts, splits."""

WORKERS_MAX: Final = 2
"""Batches that are made at a time: more threads would keep the event loop from the GIL."""

SLOT_WAIT_S: Final = 1800.0
"""How long a call waits for a slot; then it is told to try again."""

PEER_CHECK_S: Final = 0.5
"""How often a waiting call checks its peer: Flight has no event for one that disconnects."""

RECOVERING: Final = "the broker is recovering its log"
CALL: Final = "call"
"""The name that handlers find a call's middleware by."""

_KINDS: Final[dict[type[BraidError], type[fl.FlightError]]] = {
    UnauthenticatedError: fl.FlightUnauthenticatedError,
    NotAllowedError: fl.FlightUnauthorizedError,
    UnavailableError: fl.FlightUnavailableError,
    EndpointFailedError: fl.FlightInternalError,
}

_log = structlog.get_logger(__name__)

assert STREAMS_MAX + STAGES_MAX + SCANS_MAX < CALLS_MAX


@contextmanager
def flight_errors() -> Iterator[None]:
    """Raise errors of the block as what Flight carries to the peer: typed, one line."""
    try:
        yield
    except fl.FlightError:
        raise
    except BraidError as error:
        raise _as_flight_error(error) from None
    except Exception as error:  # noqa: BLE001 - Flight would send the peer our traceback
        reason = f"{type(error).__name__}: {error}"
        _log.error("a Flight call failed", reason=reason)
        problem = EndpointFailedError("internal error; see the log of the broker")
        raise _as_flight_error(problem) from None


def _as_flight_error(error: BraidError) -> fl.FlightError:
    # A text for people, and JSON for our client.
    known = (kind for ours, kind in _KINDS.items() if isinstance(error, ours))
    kind = next(known, fl.FlightServerError)
    return kind(shortened(str(error)), encode_failure(error))


class Slots:
    """A number of slots of one kind."""

    def __init__(self, kind: str, count_max: int, *, wait_s: float = SLOT_WAIT_S) -> None:
        self._kind = kind
        self._count_max = count_max
        self._wait_s = wait_s
        self._changed = Condition()
        self._closing = False
        self.taken = 0

    @contextmanager
    def one(self, is_gone: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold a slot, once one is free; *is_gone* says that the peer has gone.

        Raises:
            UnavailableError: There is none, the peer is gone, or the broker ends.
        """
        with self._changed:
            checks = -(-self._wait_s // PEER_CHECK_S)  # rounded up
            while not self._changed.wait_for(self._may_go_on, PEER_CHECK_S):
                checks -= 1
                if checks <= 0 or is_gone():
                    problem = f"all {self._count_max} slots for {self._kind} are taken"
                    raise UnavailableError(f"{problem}; try again")
            if self._closing:
                raise UnavailableError(SHUTTING_DOWN)
            self.taken += 1
        try:
            yield
        finally:
            with self._changed:
                self.taken -= 1
                self._changed.notify()

    def _may_go_on(self) -> bool:
        return self._closing or self.taken < self._count_max

    def close(self) -> None:
        """Refuse every call that waits, and every later one."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()


class Call(fl.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    """One call, and its principal."""

    def __init__(self, principal: Principal, completed: Callable[[], None]) -> None:
        self.principal = principal
        self._completed = completed

    def call_completed(self, exception: Exception | None) -> None:  # noqa: ARG002 - Flight's own
        """Count the call as ended, whatever its outcome."""
        self._completed()


class Calls(fl.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Authenticates calls and counts those that run."""

    def __init__(self, find: Callable[[str], Principal | None]) -> None:
        self._find = find
        self._changed = Condition()
        self._closed = RECOVERING
        self.count = 0
        self.refused: Counter[str] = Counter()  # by reason
        self.streams = Slots("reads", STREAMS_MAX)
        self.stages = Slots("stages", STAGES_MAX)
        self.scans = Slots("scans of the log", SCANS_MAX)
        self.workers = Slots("batches", WORKERS_MAX)

    def open(self) -> None:
        """Accept calls."""
        self._closed = ""

    def close(self) -> None:
        """Accept no more calls, and refuse those that wait."""
        self._closed = SHUTTING_DOWN
        for slots in (self.streams, self.stages, self.scans, self.workers):
            slots.close()

    def give_memory_back(self) -> None:
        """Have Arrow's pool free what it does not need, once no call streams."""
        if not self.streams.taken and not self.stages.taken:
            pa.default_memory_pool().release_unused()

    def start_call(self, info: fl.CallInfo, headers: dict[str, list[Any]]) -> Call:  # noqa: ARG002 - Flight's own
        """Accept a call; runs on a thread of Flight."""
        with flight_errors():
            # First: a peer without a key learns nothing about the broker's state.
            principal = self._principal(headers)
            with self._changed:
                if self._closed:
                    raise UnavailableError(self._closed)
                if self.count >= CALLS_MAX:
                    self.refused["flight_calls"] += 1
                    raise UnavailableError(f"there are {CALLS_MAX} calls already; try again")
                self.count += 1
            return Call(principal, self._completed)

    def _principal(self, headers: dict[str, list[Any]]) -> Principal:
        given = [str(value) for value in headers.get("authorization", ())]
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not key:
            self._refuse()
            problem = "an API key is needed, in the header 'authorization: Bearer KEY'"
            raise UnauthenticatedError(problem)
        principal = self._find(key.strip())
        if principal is None:
            self._refuse()
            raise UnauthenticatedError("the API key is not known")
        return principal

    def _refuse(self) -> None:
        with self._changed:
            self.refused["unauthenticated"] += 1

    def _completed(self) -> None:
        with self._changed:
            self.count -= 1
