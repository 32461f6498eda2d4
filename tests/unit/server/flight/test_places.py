"""Places: limits, quotas, and who is next."""

from contextlib import ExitStack
from functools import partial
from threading import Event, Thread

import pytest

from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import FLIGHT_STREAMS, Quotas
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.server.flight.places import Places
from tests.unit.server.flight.waiting import until


def principal(name: str, quota: int = 16) -> Principal:
    return Principal(name, publish=[], subscribe=[], quotas=Quotas({FLIGHT_STREAMS: quota}))


def is_waited_for(places: Places, count: int) -> bool:
    return count == places.waiting


ANNA, BERT, CORA = principal("anna"), principal("bert"), principal("cora")


def test_a_place_is_freed_however_its_use_ends() -> None:
    """Even by an error."""
    places = Places("looks", 1)
    with places.one(ANNA):
        assert 1 == places.taken
    with pytest.raises(ZeroDivisionError), places.one(ANNA):
        raise ZeroDivisionError

    assert 0 == places.taken


def test_a_call_that_finds_no_place_is_refused_after_a_while() -> None:
    """The error says what the places are for."""
    places = Places("looks", 2, wait_s=0)
    with ExitStack() as held:
        held.enter_context(places.one(ANNA))
        held.enter_context(places.one(ANNA))
        with pytest.raises(UnavailableError, match="all 2 places for looks are taken; try"):
            held.enter_context(places.one(BERT))
    with places.one(BERT):
        assert 1 == places.taken


def test_no_principal_holds_more_than_its_quota() -> None:
    """The error names the quota and who may raise it; others find places."""
    places = Places("looks", 5, by_quota=True, wait_s=0)
    low, none = principal("low", 1), principal("none", 0)
    line = r"looks: quota flight_streams = 1 of 'low' is used up; whoever runs the broker may"
    with places.one(low):
        with pytest.raises(UnavailableError, match=line), places.one(low):
            raise AssertionError
        with places.one(BERT):
            assert 2 == places.taken
    with pytest.raises(UnavailableError, match="flight_streams = 0 of"), places.one(none):
        raise AssertionError


def test_a_principal_finds_a_place_of_its_own_when_others_hold_all() -> None:
    """At once, however long those keep theirs."""
    places = Places("looks", 3, own=1, wait_s=0)
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.one(ANNA))
        with places.one(BERT), places.one(CORA):
            assert 5 == places.taken
            with pytest.raises(UnavailableError), places.one(BERT):
                raise AssertionError
        with pytest.raises(UnavailableError), places.one(ANNA):
            raise AssertionError


def test_a_waiting_call_gets_the_place_that_is_freed() -> None:
    """In the end every call has had one, and never two at a time."""
    places = Places("looks", 1)
    most: list[int] = []

    def look() -> None:
        with places.one(ANNA):
            most.append(places.taken)

    with places.one(ANNA):
        threads = [Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()

    assert 8 * [1] == most


def test_the_principal_with_the_fewest_places_is_next() -> None:
    """A key that asks ten times waits behind one that asks once."""
    places = Places("looks", 2)
    order: list[str] = []
    may_end = {name: Event() for name in ("anna", "bert", "cora")}

    def look(one: Principal) -> None:
        with places.one(one):
            order.append(one.name)
            may_end[one.name].wait()

    threads = []
    with places.one(ANNA):
        with places.one(ANNA):
            # Anna's calls come first, then one of Bert's.
            for waits, one in enumerate([ANNA, ANNA, ANNA, BERT, CORA], start=1):
                threads.append(Thread(target=look, args=(one,)))
                threads[-1].start()
                until(partial(is_waited_for, places, waits))
        until(lambda: ["bert"] == order)
        may_end["bert"].set()
        until(lambda: ["bert", "cora"] == order)
    for event in may_end.values():
        event.set()
    for thread in threads:
        thread.join()

    assert ["bert", "cora", "anna", "anna", "anna"] == order


def test_a_call_whose_peer_is_gone_stops_waiting() -> None:
    """The broker does no work for a peer that has hung up."""
    places = Places("looks", 1)
    with (
        places.one(ANNA),
        pytest.raises(UnavailableError, match="places for looks are taken"),
        places.one(ANNA, lambda: True),
    ):
        raise AssertionError
    with places.one(ANNA, lambda: True):
        assert 1 == places.taken


def test_closing_refuses_the_calls_that_wait() -> None:
    """They do not wait for their timeout, and later calls get no place."""
    places = Places("looks", 1)
    outcome = []

    def look() -> None:
        try:
            with places.one(ANNA):
                outcome.append("in")
        except UnavailableError as error:
            outcome.append(str(error))

    with places.one(ANNA):
        thread = Thread(target=look)
        thread.start()
        until(lambda: 1 == places.waiting)
        places.close()
        thread.join()

    assert ["the broker is shutting down"] == outcome
    with pytest.raises(UnavailableError), places.one(ANNA):
        pass
