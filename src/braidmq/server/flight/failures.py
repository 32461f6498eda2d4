"""What goes wrong in a Flight call, as its peer is told: typed, in a line, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow.flight as fl
import structlog

from braidmq.base.errors import BraidError, NotAllowedError
from braidmq.columnar.flight.failures import (
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    encode_failure,
    shortened,
)

_KINDS: Final[dict[type[BraidError], type[fl.FlightError]]] = {
    UnauthenticatedError: fl.FlightUnauthenticatedError,
    NotAllowedError: fl.FlightUnauthorizedError,
    UnavailableError: fl.FlightUnavailableError,
    EndpointFailedError: fl.FlightInternalError,
}

_log = structlog.get_logger(__name__)


@contextmanager
def told() -> Iterator[None]:
    """Raise what happens inside as the error that Flight carries to the peer."""
    try:
        yield
    except fl.FlightError:
        raise
    except BraidError as error:
        raise as_flight_error(error) from None
    except Exception as error:  # noqa: BLE001 - Flight would send the peer our traceback
        reason = f"{type(error).__name__}: {error}"
        _log.error("a Flight call failed", reason=reason)
        problem = EndpointFailedError("the broker has failed to answer; its log says why")
        raise as_flight_error(problem) from None


def as_flight_error(error: BraidError) -> fl.FlightError:
    """Return the error that Flight carries: a text for people, JSON for our client."""
    known = (kind for ours, kind in _KINDS.items() if isinstance(error, ours))
    kind = next(known, fl.FlightServerError)
    return kind(shortened(str(error)), encode_failure(error))
