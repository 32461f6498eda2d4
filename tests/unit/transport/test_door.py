"""The door: who gets a place, who is refused, and who leaves for a newcomer."""

from functools import partial

import pytest

from braidmq.transport.door import (
    HEALTH,
    HEALTH_PLACES,
    HTTP,
    HTTP_PLACES,
    OWN_PLACES,
    SHARE,
    Door,
    Place,
)


class Visitors:
    """A door, and who was evicted, in order."""

    def __init__(
        self, *, connections: int = 100, strangers: int = 100, per_ip: int = 0
    ) -> None:
        self.door = Door(connections=connections, strangers=strangers, per_address=per_ip)
        self.evicted: list[str] = []

    def come(self, name: str, address: str = "a", *, known: bool = False) -> Place:
        """Let a visitor in, who notes its name when it is evicted."""
        place = self.door.enter(address)
        place.evict = lambda: self.evicted.append(name)
        if known:
            place.known()
        return place

    @property
    def counts(self) -> tuple[int, int]:
        return self.door.count(), self.door.strangers()


def test_the_limit_on_connections_counts_all_of_them() -> None:
    """A connection that leaves makes room for another, from any address."""
    visitors = Visitors(connections=2)
    places = [visitors.come("", address, known=True) for address in ("a", "b")]
    refusals = [visitors.come("", "c", known=True).refusal]
    places[0].leave()
    refusals += [visitors.come("", address, known=True).refusal for address in ("c", "a")]

    assert ["connections", "", "connections"] == refusals
    assert (2, 0) == visitors.counts
    assert [] == visitors.evicted


def test_the_limit_per_address_leaves_others_alone() -> None:
    """An address at its limit is refused; refused connections do not count, nor evict."""
    visitors = Visitors(per_ip=1)
    first = visitors.come("", "a")
    refusals = [first.refusal, visitors.come("", "a").refusal, visitors.come("", "b").refusal]
    first.leave()
    refusals += [visitors.come("", "a").refusal]

    assert ["", "connections_per_ip", "", ""] == refusals
    assert [] == visitors.evicted


def test_the_oldest_stranger_leaves_for_a_newcomer() -> None:
    """The bound on strangers holds, and nobody who waits at the door is kept out."""
    visitors = Visitors(connections=10, strangers=2)
    places = [visitors.come(name) for name in "abcd"]

    assert ["a", "b"] == visitors.evicted
    assert [True, True, False, False] == [place.is_evicted for place in places]
    assert (2, 2) == visitors.counts


def test_a_known_peer_never_leaves_for_a_newcomer() -> None:
    """Strangers make room for each other, and for those that turn out to have a key."""
    visitors = Visitors(connections=3, strangers=2)
    for name in ("A", "B"):
        visitors.come(name, known=True)
    for name in "abc":
        visitors.come(name)
    assert (3, 1) == visitors.counts
    visitors.come("C", known=True)

    assert ["a", "b", "c"] == visitors.evicted
    assert (3, 0) == visitors.counts
    assert "connections" == visitors.come("d").refusal


def test_an_address_with_more_than_its_share_makes_room_among_its_own() -> None:
    """A flood from one address does not drive out another's handshake."""
    visitors = Visitors(strangers=4)
    honest = visitors.come("honest", "b")
    for number in range(100):
        visitors.come(str(number), "a")

    assert not honest.is_evicted
    assert (4, 4) == visitors.counts


def test_a_peer_that_is_a_stranger_again_is_the_newest_of_them() -> None:
    """As one that was just answered over HTTP, without a key."""
    visitors = Visitors(strangers=2)
    first = visitors.come("first")
    visitors.come("second")
    first.known()
    first.strange()
    visitors.come("third")

    assert ["second"] == visitors.evicted


def test_leaving_twice_gives_one_place_back() -> None:
    """As does being evicted, and being lost afterwards."""
    visitors = Visitors(strangers=1, per_ip=9)
    first, second = visitors.come("first"), visitors.come("second")
    for place in (first, second, second, first):
        place.leave()
        place.known()
        place.strange()

    assert (0, 0) == visitors.counts


@pytest.mark.parametrize(("pool", "places"), [(HTTP, HTTP_PLACES), (HEALTH, HEALTH_PLACES)])
def test_http_has_places_of_its_own(pool: str, places: int) -> None:
    """They are there when the strands have used up theirs, and the other way round."""
    visitors = Visitors(connections=1)
    visitors.come("", known=True)
    for _ in range(places):
        assert "" == visitors.door.enter("a", pool).refusal
    victim_count = visitors.door.count(pool)
    visitors.door.enter("a", pool)

    assert (places, places) == (victim_count, visitors.door.count(pool))
    assert (1, 0) == visitors.counts
    assert "connections" == visitors.door.enter("a").refusal


def test_http_is_refused_when_all_its_places_are_in_use() -> None:
    """A place for health is then found by evicting the oldest one there."""
    door = Door(connections=1, strangers=1)
    for _ in range(HTTP_PLACES):
        door.enter("a", HTTP).known()

    assert "connections" == door.enter("a", HTTP).refusal
    assert [True] * 99 == [door.enter("a", HEALTH).is_for_health for _ in range(99)]
    assert HEALTH_PLACES == door.count(HEALTH)


def test_a_process_without_descriptors_sheds_strangers() -> None:
    """The oldest first; known peers stay."""
    visitors = Visitors()
    visitors.come("known", known=True)
    for name in "ab":
        visitors.come(name)
    visitors.door.shed()
    assert ["a"] == visitors.evicted
    visitors.door.close()

    assert ["a", "b"] == visitors.evicted
    assert (1, 0) == visitors.counts


def test_one_principal_leaves_places_for_the_others() -> None:
    """When few are left, only principals that hold few find one; a refused peer can go on."""
    visitors = Visitors(connections=64, strangers=64)
    few = 64 // SHARE
    greedy = [visitors.come("").known("greedy") for _ in range(64 - few)]
    refused = visitors.come("refused")
    others = [visitors.come("").known(name) for name in "ab"]

    assert all(greedy)
    assert not refused.known("greedy")
    assert [True, True] == others
    assert (63, 1) == visitors.counts  # refused, and still a stranger, who leaves for another
    refused.leave()
    assert visitors.come("").known("c")


def test_a_principal_may_use_what_others_do_not() -> None:
    """A broker with one key gives it nearly all places, and again those that it gave back."""
    visitors = Visitors(connections=64)
    places = [visitors.come("") for _ in range(60)]
    assert all(place.known("only") for place in places)
    for place in places:
        place.leave()
    places = [visitors.come("") for _ in range(60)]

    assert all(place.known("only") for place in places)


def test_a_peer_that_authenticates_again_is_counted_once() -> None:
    """A connection belongs to the principal that it authenticated as last."""
    visitors = Visitors(connections=64, strangers=64)
    place = visitors.come("")
    for name in ("a", "b", "a", "b"):
        assert place.known(name)
    more = [visitors.come("").known("a") for _ in range(OWN_PLACES)]
    crowd = [visitors.come("").known(f"one of {n}") for n in range(64 - OWN_PLACES - 4)]

    assert all(more)
    assert all(crowd)
    assert not visitors.come("").known("a")


def test_idle_peers_of_http_leave_for_newcomers_the_greediest_first() -> None:
    """Busy peers stay; of the idle ones leaves the oldest of the principal with the most."""
    door = Door(connections=1, strangers=1)
    evicted: list[str] = []
    places: list[Place] = []
    for number in range(HTTP_PLACES):
        name = "few" if number == 0 else "busy" if number == 1 else "many"
        place = door.enter("a", HTTP)
        place.evict = partial(evicted.append, f"{name} {number}")
        places.append(place)
        if name == "busy":
            place.known()
        else:
            place.rest(name)
    for _ in range(2):
        door.enter("b", HTTP).known()

    assert ["many 2", "many 3"] == evicted
    places[4].known()  # a request arrives: it is not idle now
    door.enter("b", HTTP).known()
    assert "many 5" == evicted[-1]
