"""Calls to the Flight endpoint: authentication and limits."""

import errno
from collections.abc import Callable
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq.base.errors import LogScarceError
from braidmq.broker.authorize import Principal
from braidmq.columnar.flight.failures import decode_failure
from braidmq.server.flight import calls as flight_calls
from braidmq.server.flight.calls import Calls

ANNA = Principal("anna", publish=[], subscribe=[])
BERT = Principal("bert", publish=[], subscribe=[])
HEADERS: dict[str, list[Any]] = {"authorization": ["Bearer anna's key"]}
BERTS: dict[str, list[Any]] = {"authorization": ["Bearer bert's key"]}


def opened_calls() -> Calls:
    found = Calls({"anna's key": ANNA, "bert's key": BERT}.get)
    found.open()
    return found


def refusal(call: Callable[[], object]) -> str:
    """Return the text of a refusal as clients read it."""
    with pytest.raises(fl.FlightError) as caught:
        call()
    error = decode_failure(caught.value.extra_info, "address")
    assert error is not None
    return f"{type(error).__name__}: {error}"


def test_a_call_has_a_principal_and_is_counted_until_it_is_over() -> None:
    """However it ends."""
    calls = opened_calls()
    first, second = calls.start_call(None, HEADERS), calls.start_call(None, HEADERS)
    assert ANNA is first.principal
    assert 2 == calls.count
    first.call_completed(None)
    second.call_completed(ValueError("x"))

    assert 0 == calls.count


NEEDED = "UnauthenticatedError: an API key is needed, in the header 'authorization: Bearer KEY'"
UNKNOWN = "UnauthenticatedError: the API key is not known"
UNAUTHENTICATED: list[tuple[dict[str, list[Any]], str]] = [
    ({}, NEEDED),
    ({"authorization": []}, NEEDED),
    ({"authorization": ["anna's key"]}, NEEDED),
    ({"authorization": ["Bearer"]}, NEEDED),
    ({"authorization": ["Bearer "]}, NEEDED),
    ({"authorization": ["Basic anna's key"]}, NEEDED),
    ({"authorization": 2 * HEADERS["authorization"]}, NEEDED),
    ({"authorization": [b"Bearer \xff"]}, NEEDED),
    ({"authorization": ["Bearer unknown"]}, UNKNOWN),
    ({"authorization": ["Bearer \ud800"]}, UNKNOWN),
]


@pytest.mark.parametrize(("headers", "line"), UNAUTHENTICATED)
def test_a_call_without_a_known_key_is_refused(
    headers: dict[str, list[Any]], line: str
) -> None:
    """The error says what is needed, and the refusal is counted."""
    calls = opened_calls()

    assert line == refusal(lambda: calls.start_call(None, headers))
    assert (0, 1) == (calls.count, calls.refused["unauthenticated"])


def test_the_scheme_is_case_insensitive() -> None:
    """As in HTTP."""
    calls = opened_calls()

    assert ANNA is calls.start_call(None, {"authorization": ["bearer anna's key"]}).principal


def test_calls_beyond_the_limit_are_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls up to the limit are accepted; when one of them ends, another is."""
    monkeypatch.setattr(flight_calls, "CALLS_MAX", 2)
    monkeypatch.setattr(flight_calls, "CALLS_OWN", 0)
    calls = opened_calls()
    first, _ = calls.start_call(None, HEADERS), calls.start_call(None, HEADERS)
    line = refusal(lambda: calls.start_call(None, HEADERS))
    assert (
        "UnavailableError: try again: too many calls: at most 2 at a time; no setting raises it"
    ) == line
    assert 1 == calls.refused["flight_calls"]
    first.call_completed(None)

    assert ANNA is calls.start_call(None, HEADERS).principal


def test_calls_are_refused_during_recovery_and_shutdown() -> None:
    """Only a caller with a known key is told the reason."""
    calls = Calls({"anna's key": ANNA}.get)
    line = refusal(lambda: calls.start_call(None, HEADERS))
    assert "UnavailableError: the broker is recovering its log" == line
    calls.open()
    calls.close()
    line = refusal(lambda: calls.start_call(None, HEADERS))
    assert "UnavailableError: the broker is shutting down" == line
    assert NEEDED == refusal(lambda: calls.start_call(None, {}))

    assert 0 == calls.count


def test_another_key_has_calls_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls one key has begun."""
    monkeypatch.setattr(flight_calls, "CALLS_MAX", 3)
    monkeypatch.setattr(flight_calls, "CALLS_OWN", 2)
    calls = opened_calls()
    for _ in range(3):
        calls.start_call(None, HEADERS)
    refusal(lambda: calls.start_call(None, HEADERS))
    others = [calls.start_call(None, BERTS) for _ in range(2)]
    assert [BERT, BERT] == [call.principal for call in others]
    refusal(lambda: calls.start_call(None, BERTS))
    others[0].call_completed(None)

    assert BERT is calls.start_call(None, BERTS).principal
    assert 2 == calls.refused["flight_calls"]


def test_a_call_is_at_work_unless_it_waits_for_its_peer() -> None:
    """For the limit; each turn begins anew, and a call that has just begun explains nothing."""
    call = opened_calls().start_call(None, HEADERS)
    call.begins()
    now = monotonic()
    assert not call.is_at_work(now, 10.0)
    assert call.is_at_work(now + 100.0, 10.0)
    with call.peers_turn():
        assert call.is_at_work(now + 9.0, 10.0)
        assert not call.is_at_work(now + 100.0, 10.0)
    assert call.is_at_work(now + 100.0, 10.0)
    call.hand_over()
    assert not call.is_at_work(now + 100.0, 10.0)
    call.take_back()
    assert call.is_at_work(now + 100.0, 10.0)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 1"),
        LogScarceError("reading wal/1", "Too many open files"),
    ],
)
def test_a_lack_of_descriptors_or_memory_is_passing(error: Exception) -> None:
    """The client is told to try again; it is no failure of the broker."""

    def fail() -> None:
        with flight_calls.flight_errors():
            raise error

    line = refusal(fail)
    assert line.startswith("UnavailableError: the broker has no descriptor or memory to spare")
    assert line.endswith("try again")
