"""Calls to the Flight endpoint: authentication and limits."""

from collections.abc import Callable
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pyarrow.flight as fl
import pytest

from braidmq.broker.authorize import Principal
from braidmq.columnar.flight.failures import UnavailableError, decode_failure
from braidmq.server.flight import calls as flight_calls
from braidmq.server.flight.calls import Calls, Slots

ANNA = Principal("anna", publish=[], subscribe=[])
HEADERS: dict[str, list[Any]] = {"authorization": ["Bearer anna's key"]}


def opened_calls() -> Calls:
    found = Calls({"anna's key": ANNA}.get)
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
    calls = opened_calls()
    first, _ = calls.start_call(None, HEADERS), calls.start_call(None, HEADERS)
    line = refusal(lambda: calls.start_call(None, HEADERS))
    assert "UnavailableError: there are 2 calls already; try again" == line
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


def test_a_slot_is_freed_however_its_use_ends() -> None:
    """Even by an error."""
    slots = Slots("looks", 1)
    with slots.one():
        assert 1 == slots.taken
    with pytest.raises(ZeroDivisionError), slots.one():
        raise ZeroDivisionError

    assert 0 == slots.taken


def test_a_call_that_finds_no_slot_is_refused_after_a_while() -> None:
    """The error says what the slots are for."""
    slots = Slots("looks", 2, wait_s=0)
    with ExitStack() as held:
        held.enter_context(slots.one())
        held.enter_context(slots.one())
        with pytest.raises(UnavailableError, match="all 2 slots for looks are taken"):
            held.enter_context(slots.one())
    with slots.one():
        assert 1 == slots.taken


def test_a_waiting_call_gets_the_slot_that_is_freed() -> None:
    """In the end every call has had one, and never two at a time."""
    slots = Slots("looks", 1)
    most: list[int] = []

    def look() -> None:
        with slots.one():
            most.append(slots.taken)

    with slots.one():
        threads = [Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()

    assert 8 * [1] == most


def test_a_call_whose_peer_is_gone_stops_waiting() -> None:
    """The broker does no work for a peer that has hung up."""
    slots = Slots("looks", 1)
    with (
        slots.one(),
        pytest.raises(UnavailableError, match="slots for looks are taken"),
        slots.one(lambda: True),
    ):
        raise AssertionError
    with slots.one(lambda: True):
        assert 1 == slots.taken


def test_closing_refuses_the_calls_that_wait() -> None:
    """They do not wait for their timeout, and later calls get no slot."""
    slots = Slots("looks", 1)
    waits, outcome = Event(), []

    def look() -> None:
        waits.set()
        try:
            with slots.one():
                outcome.append("in")
        except UnavailableError as error:
            outcome.append(str(error))

    with slots.one():
        thread = Thread(target=look)
        thread.start()
        waits.wait()
        slots.close()
        thread.join()

    assert ["the broker is shutting down"] == outcome
    with pytest.raises(UnavailableError), slots.one():
        pass
