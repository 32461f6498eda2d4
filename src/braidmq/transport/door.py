"""The door: every connection of every listener takes a place at accept, before a TLS handshake.

    pool      holds                                     when it is full
    strands   Blip, Vibe, Qumbed, Flight                a stranger leaves for the newcomer;
                                                        without strangers it is refused
    http      HTTP                                      a stranger leaves for the newcomer; then
                                                        an idle peer; then a place in `health`
    health    HTTP that found no other place            the oldest leaves for the newcomer

A *stranger* has not authenticated yet. Strangers have a bound of their own, so that peers with
a key always find a place, and the oldest stranger leaves for a newcomer: peers that hold
sockets without a word cannot keep others out. An address with more than its share of strangers
makes room among its own, so that one address cannot drive out the handshakes of others.

Nor can one principal keep the others out: of the strands' places one in `SHARE` is left for
principals that hold fewer than `OWN_PLACES`, and of the idle peers of HTTP one leaves whose
principal has the most of them.

The door counts and chooses; it has no socket. It belongs to the event loop's thread.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

STRANDS: Final = "strands"
HTTP: Final = "http"
HEALTH: Final = "health"

HTTP_PLACES: Final = 128
"""Enough for dashboards and scrapers."""

HEALTH_PLACES: Final = 16
"""Enough for health checks, each of which takes a place for a moment."""

OWN_PLACES: Final = 16
"""Connections that a principal finds places for when others hold all that they may."""

SHARE: Final = 16
"""One in so many places is for principals that hold fewer than `OWN_PLACES`."""


class Place:
    """One connection at the door; `refusal` names the limit that kept it out, if any.

    Whoever owns the connection sets `evict`, which must close it at once, calls `known` when
    the peer has authenticated, and `leave` when it is closed, in any case.
    """

    __slots__ = ("_pool", "address", "evict", "is_evicted", "is_for_health", "name", "refusal")

    def __init__(self, pool: "_Pool | None", address: str, refusal: str = "") -> None:
        self._pool = pool
        self.address = address
        self.name = ""  # of the principal, once it is known
        self.is_for_health = pool is not None and pool.name == HEALTH
        self.refusal = refusal
        self.evict: Callable[[], None] = _do_nothing
        self.is_evicted = False

    def known(self, name: str = "") -> bool:
        """Count the peer as known: it has authenticated, and does not leave for a newcomer.

        *name* is its principal's. Returns False if that principal holds more than its share
        while places are scarce: then the peer stays a stranger, and must be refused.
        """
        if self._pool is None:
            return True
        if not self._pool.name_place(self, name):
            return False
        self._pool.idle.pop(self, None)
        self._pool.forget_stranger(self)
        return True

    def rest(self, name: str) -> None:
        """Count the peer as idle: it leaves for a newcomer if no stranger can."""
        if self._pool is not None and self.known(name):
            self._pool.idle[self] = None

    def strange(self) -> None:
        """Count the peer as a stranger again, as the newest of them."""
        if self._pool is not None:
            self._pool.idle.pop(self, None)
            self._pool.forget_stranger(self)
            self._pool.add_stranger(self)

    def leave(self) -> None:
        """Give the place back; again does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.idle.pop(self, None)
            pool.forget_stranger(self)
            pool.left(self)


class _Pool:
    """Places of one kind."""

    def __init__(
        self,
        name: str,
        places: int,
        strangers_max: int,
        *,
        per_address: int = 0,
        share: int = 0,
    ) -> None:
        assert places > 0
        assert strangers_max > 0
        self.name = name
        self.places = places
        self.count = 0
        self.strangers: dict[Place, None] = {}  # the oldest first
        self.idle: dict[Place, None] = {}  # known, and between two requests; the oldest first
        self._kept = places // share if share else 0  # for principals that hold few
        self._held: Counter[str] = Counter()  # by the principal's name
        self._strangers_max = min(strangers_max, places)
        self._strangers_of: dict[str, dict[Place, None]] = {}  # by address
        self._per_address_max = per_address
        self._per_address: Counter[str] = Counter()

    def enter(self, address: str) -> Place:
        if self._per_address_max and self._per_address[address] >= self._per_address_max:
            return Place(None, address, "connections_per_ip")
        if self.count >= self.places and not self.strangers and not self.idle:
            return Place(None, address, "connections")
        if self.count >= self.places or len(self.strangers) >= self._strangers_max:
            self.evict(self._victim(address) if self.strangers else self._idle_victim())
        place = Place(self, address)
        self.count += 1
        if self._per_address_max:
            self._per_address[address] += 1
        self.add_stranger(place)
        return place

    def _victim(self, address: str) -> Place:
        own = self._strangers_of.get(address)
        share = len(self.strangers) // max(1, len(self._strangers_of))
        return next(iter(own if own and len(own) > share else self.strangers))

    def _idle_victim(self) -> Place:
        return max(self.idle, key=lambda place: self._held[place.name])

    def name_place(self, place: Place, name: str) -> bool:
        """Count a place as held by the principal called *name*; return whether it may be."""
        if not name or place.name == name:
            return True
        # Strangers leave for whoever authenticates, so their places are as good as free.
        is_scarce = self.count - len(self.strangers) >= self.places - self._kept
        if is_scarce and self._held[name] >= OWN_PLACES:
            return False
        self._forget_name(place)
        place.name = name
        self._held[name] += 1
        return True

    def _forget_name(self, place: Place) -> None:
        name, place.name = place.name, ""
        if name:
            self._held[name] -= 1
            if not self._held[name]:  # or the table would keep every name ever seen
                del self._held[name]

    def evict(self, victim: Place | None) -> None:
        if victim is not None:
            victim.leave()
            victim.is_evicted = True
            victim.evict()

    def add_stranger(self, place: Place) -> None:
        self.strangers[place] = None
        self._strangers_of.setdefault(place.address, {})[place] = None

    def forget_stranger(self, place: Place) -> None:
        if place in self.strangers:
            del self.strangers[place]
            own = self._strangers_of[place.address]
            del own[place]
            if not own:  # or the table would keep every address ever seen
                del self._strangers_of[place.address]

    def left(self, place: Place) -> None:
        self.count -= 1
        self._forget_name(place)
        if self._per_address_max:
            self._per_address[place.address] -= 1
            if self._per_address[place.address] <= 0:
                del self._per_address[place.address]


class Door:
    """The places of all listeners together.

    *connections* and *strangers* bound the pool of the strands, *per_address* its connections
    from one address; 0 is no bound.
    """

    def __init__(self, *, connections: int, strangers: int, per_address: int = 0) -> None:
        pools = (
            _Pool(STRANDS, connections, strangers, per_address=per_address, share=SHARE),
            _Pool(HTTP, HTTP_PLACES, HTTP_PLACES),
            _Pool(HEALTH, HEALTH_PLACES, HEALTH_PLACES),
        )
        self._pools = {pool.name: pool for pool in pools}

    def enter(self, address: str, pool: str = STRANDS) -> Place:
        """Return a place for a connection that was just accepted, or one with a refusal."""
        return self._pools[pool].enter(address)

    def count(self, pool: str = STRANDS) -> int:
        """Return how many places of a pool are taken."""
        return self._pools[pool].count

    def strangers(self, pool: str = STRANDS) -> int:
        """Return how many of them belong to peers that have not authenticated."""
        return len(self._pools[pool].strangers)

    def shed(self) -> None:
        """Close the oldest stranger of each pool: the process has run out of descriptors."""
        for pool in self._pools.values():
            pool.evict(next(iter(pool.strangers), None))

    def close(self) -> None:
        """Close the connections of all strangers, which no listener may know yet."""
        for pool in self._pools.values():
            for place in list(pool.strangers):
                pool.evict(place)


def _do_nothing() -> None:
    """Do nothing, until the connection's owner says what is to be done."""
