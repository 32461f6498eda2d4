"""The errors that Flight peers receive."""

import pyarrow.flight as fl
import pytest
import structlog

from braidmq.base.errors import BraidError, ConfigError, NotAllowedError
from braidmq.columnar.flight.failures import (
    BrokenStreamError,
    EndpointFailedError,
    UnauthenticatedError,
    UnavailableError,
    decode_failure,
)
from braidmq.server.flight.calls import flight_errors

ERRORS: list[tuple[BraidError, type[fl.FlightError]]] = [
    (ConfigError("start", "no"), fl.FlightServerError),
    (UnauthenticatedError("who"), fl.FlightUnauthenticatedError),
    (NotAllowedError("subscribe", "t"), fl.FlightUnauthorizedError),
    (UnavailableError("later"), fl.FlightUnavailableError),
    (BrokenStreamError("gone"), fl.FlightUnavailableError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_a_braidmq_error_becomes_a_flight_error(
    error: BraidError, kind: type[fl.FlightError]
) -> None:
    """It has the matching status, a text for people and JSON for our client."""
    with pytest.raises(kind) as caught, flight_errors():
        raise error

    assert str(error) == str(caught.value)
    found = decode_failure(caught.value.extra_info, "address")
    assert type(error) is type(found)


def test_a_bug_is_logged_and_its_details_are_hidden_from_the_peer() -> None:
    """Neither shows a traceback; the log says what went wrong."""
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(fl.FlightInternalError) as caught, flight_errors():
            raise KeyError("/srv/secret")

        found = decode_failure(caught.value.extra_info, "address")
    assert isinstance(found, EndpointFailedError)
    assert "secret" not in str(caught.value)
    assert [
        {
            "event": "a Flight call failed",
            "log_level": "error",
            "reason": "KeyError: '/srv/secret'",
        }
    ] == logs


def test_a_flight_error_passes_unchanged() -> None:
    """Code further inside has translated it."""
    with pytest.raises(fl.FlightCancelledError, match=r"^x$"), flight_errors():
        raise fl.FlightCancelledError("x")
