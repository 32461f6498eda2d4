"""Calls to the Flight endpoint: authentication, how many run at a time, and how they fail.

Every call needs an API key, and takes a place of `places` for what it does. A call that waits
for its peer says so, because that must not take for ever (`visitors`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl
import structlog

from braidmq.base.errors import BraidError, LogScarceError, NotAllowedError, QuotaError
from braidmq.base.refusals import by_bound
from braidmq.broker.authorize import Principal
from braidmq.columnar.flight.failures import (
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    encode_failure,
    shortened,
)
from braidmq.server.engine.requests import SHUTTING_DOWN
from braidmq.server.flight.places import Places
from braidmq.wal.disk import SCARCE_ERRNOS

CALLS_MAX: Final = 256
"""Calls at a time, each on a thread of its own; one more is told to try again."""

CALLS_OWN: Final = 8
"""Calls that every principal may have besides, however many others have."""

STREAMS_MAX: Final = 32
"""Reads at a time; each holds a batch or two, and its place while its reader is slow."""

STAGES_MAX: Final = 32
"""Stages that are written at a time. Apart from reads: one task may read and write."""

SCANS_MAX: Final = 2
"""Scans of the index at a time: offsets, counts, splits."""

WORKERS_MAX: Final = 2
"""Batches that are made at a time: more threads would keep the event loop from the GIL."""

STREAMS_OWN: Final = 2
"""Reads, and stages, that every principal may have besides."""

RECOVERING: Final = "the broker is recovering its log"
CALL: Final = "call"
"""The name that handlers find a call's middleware by."""

_KINDS: Final[dict[type[BraidError], type[fl.FlightError]]] = {
    UnauthenticatedError: fl.FlightUnauthenticatedError,
    NotAllowedError: fl.FlightUnauthorizedError,
    QuotaError: fl.FlightUnauthorizedError,
    UnavailableError: fl.FlightUnavailableError,
    EndpointFailedError: fl.FlightInternalError,
}

_log = structlog.get_logger(__name__)

assert STREAMS_MAX + STAGES_MAX + SCANS_MAX < CALLS_MAX
assert 2 * STREAMS_OWN <= CALLS_OWN


@contextmanager
def flight_errors() -> Iterator[None]:
    """Raise errors of the block as what Flight carries to the peer: typed, one line."""
    try:
        yield
    except fl.FlightError:
        raise
    except (LogScarceError, MemoryError) as error:
        raise _as_flight_error(_scarcity(str(error))) from None
    except BraidError as error:
        raise _as_flight_error(error) from None
    except Exception as error:  # noqa: BLE001 - Flight would send the peer our traceback
        if isinstance(error, OSError) and error.errno in SCARCE_ERRNOS:
            raise _as_flight_error(_scarcity(error.strerror or str(error))) from None
        reason = f"{type(error).__name__}: {error}"
        _log.error("a Flight call failed", reason=reason)
        problem = EndpointFailedError("internal error; see the log of the broker")
        raise _as_flight_error(problem) from None


def _scarcity(reason: str) -> UnavailableError:
    return UnavailableError(
        f"the broker has no descriptor or memory to spare ({reason}); try again"
    )


def _as_flight_error(error: BraidError) -> fl.FlightError:
    # A text for people, and JSON for our client.
    known = (kind for ours, kind in _KINDS.items() if isinstance(error, ours))
    kind = next(known, fl.FlightServerError)
    return kind(shortened(str(error)), encode_failure(error))


class Call(fl.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    """One call, its principal, and whether it waits for its peer."""

    def __init__(self, principal: Principal, completed: Callable[["Call"], None]) -> None:
        self.principal = principal
        self._version = principal.version
        self._completed = completed
        self._began_at = 0.0
        self._waits_since: float | None = None
        self.left: Callable[[Call], None] = _do_nothing
        """Is called at the end."""

    def begins(self) -> None:
        """Mark the call as one that its handler works on."""
        self._began_at = monotonic()

    @contextmanager
    def peers_turn(self) -> Iterator[None]:
        """Mark the block as one that waits for the peer: to read, or to send."""
        self.hand_over()
        try:
            yield
        finally:
            self.take_back()

    def hand_over(self) -> None:
        """Mark what follows as the peer's turn: Flight sends what the handler returns."""
        self._waits_since = monotonic()

    def take_back(self) -> None:
        """Mark what follows as the handler's work again."""
        self._waits_since = None

    def is_at_work(self, now: float, limit_s: float) -> bool:
        """Return whether its stream may have been silent for *limit_s* because of a handler.

        A call that has just begun is not the reason. One that waits for its peer is, until it
        has waited for so long itself.
        """
        if now - self._began_at < limit_s / 2:
            return False
        since = self._waits_since
        return since is None or now - since < limit_s

    def check_standing(self) -> None:
        """Check that the principal is what it was when the call began.

        Raises:
            UnauthenticatedError: Its key was revoked.
            UnavailableError: Its permissions changed; the call may be repeated.
        """
        if self.principal.gone:
            raise UnauthenticatedError("the API key was revoked")
        if self.principal.version != self._version:
            raise UnavailableError("the permissions of the API key have changed; try again")

    def call_completed(self, exception: Exception | None) -> None:  # noqa: ARG002 - Flight's own
        """Count the call as ended, whatever its outcome."""
        self.left(self)  # an answer may still wait for the peer, which is no handler's work
        self._completed(self)


class Calls(fl.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Authenticates calls and counts those that run."""

    def __init__(self, find: Callable[[str], Principal | None]) -> None:
        self._find = find
        self._lock = Lock()
        self._closed = RECOVERING
        self._running: dict[Call, None] = {}
        self._counts: Counter[str] = Counter()  # by the principal's name
        self.refused: Counter[str] = Counter()  # by reason
        self.streams = Places("reads", STREAMS_MAX, own=STREAMS_OWN, by_quota=True)
        self.stages = Places("stages", STAGES_MAX, own=STREAMS_OWN, by_quota=True)
        self.scans = Places("scans of the log", SCANS_MAX)
        self.workers = Places("batches", WORKERS_MAX)
        self.arrived: Callable[[Call, str], None] = _not_told
        """Is told by which connection a call has come: the name of its peer's socket."""

    @property
    def count(self) -> int:
        """How many calls run."""
        return len(self._running)

    def open(self) -> None:
        """Accept calls."""
        self._closed = ""

    def close(self) -> None:
        """Accept no more calls, and refuse those that wait."""
        self._closed = SHUTTING_DOWN
        for places in (self.streams, self.stages, self.scans, self.workers):
            places.close()

    def give_memory_back(self) -> None:
        """Have Arrow's pool free what it does not need, once no call streams."""
        if not self.streams.taken and not self.stages.taken:
            pa.default_memory_pool().release_unused()

    def start_call(self, info: fl.CallInfo, headers: dict[str, list[Any]]) -> Call:  # noqa: ARG002 - Flight's own
        """Accept a call; runs on a thread of Flight."""
        with flight_errors():
            # First: a peer without a key learns nothing about the broker's state.
            principal = self._principal(headers)
            call = Call(principal, self._completed)
            with self._lock:
                if self._closed:
                    raise UnavailableError(self._closed)
                if self.count >= CALLS_MAX and self._counts[principal.name] >= CALLS_OWN:
                    self.refused["flight_calls"] += 1
                    problem = by_bound("try again: too many calls", CALLS_MAX, "at a time")
                    raise UnavailableError(problem)
                self._running[call] = None
                self._counts[principal.name] += 1
            return call

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
        with self._lock:
            self.refused["unauthenticated"] += 1

    def _completed(self, call: Call) -> None:
        with self._lock:
            del self._running[call]
            self._counts[call.principal.name] -= 1
            if not self._counts[call.principal.name]:
                del self._counts[call.principal.name]


def _not_told(_call: Call, _peer: str) -> None:
    """Do nothing, until the listener says which connections there are."""


def _do_nothing(_call: Call) -> None:
    """Do nothing: the call's connection is not known."""
