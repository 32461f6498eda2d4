"""Calls to the Flight endpoint: who comes in, and how many."""

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


def calls() -> Calls:
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
    door = calls()
    first, second = door.start_call(None, HEADERS), door.start_call(None, HEADERS)
    assert ANNA is first.principal
    assert 2 == door.count
    first.call_completed(None)
    second.call_completed(ValueError("x"))

    assert 0 == door.count


NEEDED = "UnauthenticatedError: an API key is needed, in the header 'authorization: Bearer KEY'"
UNKNOWN = "UnauthenticatedError: the API key is not known"
STRANGERS: list[tuple[dict[str, list[Any]], str]] = [
    ({}, NEEDED),
    ({"authorization": []}, NEEDED),
    ({"authorization": ["anna's key"]}, NEEDED),
    ({"authorization": ["Bearer"]}, NEEDED),
    ({"authorization": ["Bearer "]}, NEEDED),
    ({"authorization": ["Basic anna's key"]}, NEEDED),
    ({"authorization": 2 * HEADERS["authorization"]}, NEEDED),
    ({"authorization": [b"Bearer \xff"]}, NEEDED),
    ({"authorization": ["Bearer nobody's"]}, UNKNOWN),
    ({"authorization": ["Bearer \ud800"]}, UNKNOWN),
]


@pytest.mark.parametrize(("headers", "line"), STRANGERS)
def test_without_a_known_key_nobody_comes_in(headers: dict[str, list[Any]], line: str) -> None:
    """The line says what is needed, and the refusal is counted."""
    door = calls()

    assert line == refusal(lambda: door.start_call(None, headers))
    assert (0, 1) == (door.count, door.refused["unauthenticated"])


def test_the_scheme_is_read_without_regard_to_case() -> None:
    """As HTTP has it."""
    door = calls()

    assert ANNA is door.start_call(None, {"authorization": ["bearer anna's key"]}).principal


def test_calls_beyond_the_limit_are_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit they are let in; when one is over, the next is."""
    monkeypatch.setattr(flight_calls, "CALLS_MAX", 2)
    door = calls()
    first, _ = door.start_call(None, HEADERS), door.start_call(None, HEADERS)
    line = refusal(lambda: door.start_call(None, HEADERS))
    assert "UnavailableError: there are 2 calls already; try again" == line
    assert 1 == door.refused["flight_calls"]
    first.call_completed(None)

    assert ANNA is door.start_call(None, HEADERS).principal


def test_the_door_is_shut_before_recovery_and_at_the_end() -> None:
    """A stranger is not even told that; a friend is told to come back."""
    door = Calls({"anna's key": ANNA}.get)
    line = refusal(lambda: door.start_call(None, HEADERS))
    assert "UnavailableError: the broker is recovering its log" == line
    door.open()
    door.close()
    line = refusal(lambda: door.start_call(None, HEADERS))
    assert "UnavailableError: the broker is shutting down" == line
    assert NEEDED == refusal(lambda: door.start_call(None, {}))

    assert 0 == door.count


def test_a_place_is_given_back_however_it_was_used() -> None:
    """Also by an error."""
    slots = Slots("looks", 1)
    with slots.one():
        assert 1 == slots.taken
    with pytest.raises(ZeroDivisionError), slots.one():
        raise ZeroDivisionError

    assert 0 == slots.taken


def test_who_finds_no_place_is_told_so_after_a_while() -> None:
    """The line names what there are too few of."""
    slots = Slots("looks", 2, wait_s=0)
    with ExitStack() as held:
        held.enter_context(slots.one())
        held.enter_context(slots.one())
        with pytest.raises(UnavailableError, match="all 2 slots for looks are taken"):
            held.enter_context(slots.one())
    with slots.one():
        assert 1 == slots.taken


def test_who_waits_gets_the_place_that_is_given_back() -> None:
    """In the end everybody has had one, and never two at a time."""
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


def test_who_is_gone_waits_no_longer() -> None:
    """Nobody works for a peer that has hung up."""
    slots = Slots("looks", 1)
    with (
        slots.one(),
        pytest.raises(UnavailableError, match="slots for looks are taken"),
        slots.one(lambda: True),
    ):
        raise AssertionError
    with slots.one(lambda: True):
        assert 1 == slots.taken


def test_closing_sends_those_away_who_wait() -> None:
    """They need not wait for their time to end, and nobody comes in behind them."""
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
