"""What peers are told."""

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
def test_an_error_of_ours_is_carried_by_flight(
    error: BraidError, kind: type[fl.FlightError]
) -> None:
    """As the status that fits, with a text for people and JSON for our client."""
    with pytest.raises(kind) as caught, flight_errors():
        raise error

    assert str(error) == str(caught.value)
    found = decode_failure(caught.value.extra_info, "address")
    assert type(error) is type(found)


def test_a_mistake_of_ours_is_a_line_in_the_log_and_no_secret_for_the_peer() -> None:
    """Neither sees a traceback; the log says what it was."""
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


def test_what_is_an_error_of_flight_already_passes() -> None:
    """It was told before, further inside."""
    with pytest.raises(fl.FlightCancelledError, match=r"^x$"), flight_errors():
        raise fl.FlightCancelledError("x")
