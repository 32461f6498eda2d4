"""A bad network for tests: a UDP proxy that loses, delays, reorders and duplicates datagrams.

    client ──▶ front socket ──▶ Lane ──▶ a socket for each client ──▶ server
    client ◀── front socket ◀── Lane ◀── the same socket          ◀── server

Each lane, one per client and direction, has its own seeded generator: its n-th datagram has the
same fate in every run with the same seed, whatever happens on other lanes. The timing is up to
the network and the event loop. Payloads are never damaged.

    async with udp_proxy(("127.0.0.1", port), seed=7, weather=Weather(loss=0.1)) as proxy:
        ...  # connect to proxy.port instead
        assert proxy.to_server.lost
"""

import asyncio
import random
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

CLIENTS_MAX: Final = 64
"""Clients with a socket of their own. Beyond that the least recently active one loses it, as a
router's NAT entry would expire; its next datagram reaches the server from another port."""

HELD_MAX: Final = 4_096
"""Datagrams held back per lane; further ones are dropped and counted."""

HOLD_S_MAX: Final = 0.02
"""How long a datagram waits to be overtaken: after the last one nothing follows."""

DATAGRAMS_PER_TURN: Final = 64
DATAGRAM_BYTES_MAX: Final = 65_536
SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Large, so that the kernel drops nothing that the proxy does not count."""

Address = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Weather:
    """The share of datagrams that each fault hits, per direction."""

    loss: float = 0.0
    doubled: float = 0.0
    """Sent twice; the copy has a delay and order of its own."""
    reordered: float = 0.0
    """Held back until up to *overtakers* later ones have passed."""
    overtakers: int = 4
    delayed: float = 0.0
    """Sent up to *delay_s* later."""
    delay_s: float = 0.01

    def __post_init__(self) -> None:
        """Check the shares; a datagram is reordered or delayed, not both."""
        for share in (self.loss, self.doubled, self.reordered + self.delayed):
            assert 0 <= share <= 1
        assert self.overtakers > 0
        assert self.delay_s >= 0


BAD_WEATHER: Final = Weather(loss=0.1, doubled=0.02, reordered=0.1, delayed=0.05)
"""A tenth is lost and more than a tenth is late: worse than any usable network."""


@dataclass(slots=True)
class Counts:
    """Counts of the datagrams of one direction."""

    received: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    delayed: int = 0
    passed: int = 0
    """Handed to the kernel, including duplicates."""
    dropped: int = 0
    """Because a buffer was full, here or in the kernel, or the port was closed."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one copy of a datagram."""

    overtakers: int = 0
    delay_s: float = 0.0


class Dice:
    """Decides the fate of a lane's datagrams, in order of arrival."""

    def __init__(self, seed: str, weather: Weather) -> None:
        self._random = random.Random(seed)
        self._weather = weather

    def throw(self) -> list[Fate]:
        """Return the fates of the next datagram's copies: none if it is lost."""
        dice, weather = self._random, self._weather
        if dice.random() < weather.loss:
            return []
        copies = 2 if dice.random() < weather.doubled else 1
        return [self._fate() for _ in range(copies)]

    def _fate(self) -> Fate:
        dice, weather = self._random, self._weather
        number = dice.random()
        if number < weather.reordered:
            return Fate(overtakers=dice.randint(1, weather.overtakers))
        if number < weather.reordered + weather.delayed:
            return Fate(delay_s=dice.uniform(0, weather.delay_s))
        return Fate()


@dataclass(eq=False, slots=True)
class _Held:
    """A datagram that waits to be overtaken, or for a time to pass."""

    data: bytes
    overtakers: int
    timer: asyncio.TimerHandle | None = None

    def let_one_pass(self) -> bool:
        """Count one that has overtaken it; return whether it was the last."""
        self.overtakers -= 1
        return self.overtakers == 0

    def forget_time(self) -> None:
        """Cancel the timer."""
        assert self.timer is not None
        self.timer.cancel()


class Lane:
    """One direction of one client."""

    def __init__(
        self,
        dice: Dice,
        counts: Counts,
        send: Callable[[bytes], object],
        *,
        hold_s: float = HOLD_S_MAX,
    ) -> None:
        self._dice = dice
        self._counts = counts
        self._send = send
        self._hold_s = hold_s
        self._held: dict[_Held, None] = {}

    @property
    def held(self) -> int:
        """How many datagrams are held back."""
        return len(self._held)

    def take(self, data: bytes) -> None:
        """Accept a datagram."""
        counts = self._counts
        counts.received += 1
        fates = self._dice.throw()
        counts.lost += not fates
        counts.doubled += len(fates) > 1
        for fate in fates:
            if fate.overtakers:
                counts.reordered += 1
                self._hold(data, fate.overtakers, self._hold_s)
            elif fate.delay_s:
                counts.delayed += 1
                self._hold(data, 0, fate.delay_s)
            else:
                self._pass_on(data)

    def close(self) -> None:
        """Drop what is held back."""
        self._counts.dropped += len(self._held)
        for held in self._held:
            held.forget_time()
        self._held.clear()

    def _hold(self, data: bytes, overtakers: int, seconds: float) -> None:
        if len(self._held) >= HELD_MAX:
            self._counts.dropped += 1
            return
        held = _Held(data, overtakers)
        held.timer = asyncio.get_running_loop().call_later(seconds, self._release, held)
        self._held[held] = None

    def _release(self, held: _Held) -> None:
        del self._held[held]
        self._pass_on(held.data)

    def _pass_on(self, data: bytes) -> None:
        due = deque([data])
        while due:
            try:
                self._send(due.popleft())
            except OSError:
                self._counts.dropped += 1
            else:
                self._counts.passed += 1
            for held in [one for one in self._held if one.let_one_pass()]:
                del self._held[held]
                held.forget_time()
                due.append(held.data)


class _Client(NamedTuple):
    """A client's socket towards the server, and its two lanes."""

    upstream: socket.socket
    to_server: Lane
    to_client: Lane


class UdpProxy:
    """A proxy for *server*; clients send to :attr:`port` on the same host."""

    def __init__(self, server: tuple[str, int], *, seed: int, weather: Weather) -> None:
        self.to_server = Counts()
        self.to_client = Counts()
        self.forgotten = 0  # clients that lost their socket
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._seed = seed
        self._weather = weather
        self._clients: dict[Address, _Client] = {}
        self._clients_seen = 0
        self._front = self._bound((server[0], 0))
        self._loop.add_reader(self._front.fileno(), self._read_front)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def port(self) -> int:
        """The port that clients send to."""
        return int(self._front.getsockname()[1])

    @property
    def held(self) -> int:
        """How many datagrams all lanes hold back."""
        return sum(one.to_server.held + one.to_client.held for one in self._clients.values())

    def close(self) -> None:
        """Stop forwarding."""
        while self._clients:
            self._forget_one()
        self._loop.remove_reader(self._front.fileno())
        self._front.close()

    def _bound(self, address: tuple[str, int]) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)  # noqa: FBT003 - the socket's signature
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        sock.bind(address)
        return sock

    def _read_front(self) -> None:
        try:
            for _ in range(DATAGRAMS_PER_TURN):
                data, address = self._front.recvfrom(DATAGRAM_BYTES_MAX)
                client = self._clients.pop(address, None) or self._accept(address)
                self._clients[address] = client  # keeps the order of last activity
                client.to_server.take(data)
        except OSError:
            return  # no more for now, or a client that has gone

    def _accept(self, address: Address) -> _Client:
        if len(self._clients) >= CLIENTS_MAX:
            self._forget_one()
            self.forgotten += 1
        upstream = self._bound((self._server[0], 0))
        upstream.connect(self._server)
        number = self._clients_seen
        self._clients_seen += 1

        def lane(direction: str, counts: Counts, send: Callable[[bytes], object]) -> Lane:
            dice = Dice(f"{self._seed} {number} {direction}", self._weather)
            return Lane(dice, counts, send)

        client = _Client(
            upstream,
            lane("to server", self.to_server, upstream.send),
            lane("to client", self.to_client, lambda data: self._front.sendto(data, address)),
        )
        self._loop.add_reader(upstream.fileno(), self._read_upstream, client)
        return client

    def _forget_one(self) -> None:
        client = self._clients.pop(next(iter(self._clients)))
        client.to_server.close()
        client.to_client.close()
        self._loop.remove_reader(client.upstream.fileno())
        client.upstream.close()

    def _read_upstream(self, client: _Client) -> None:
        try:
            for _ in range(DATAGRAMS_PER_TURN):
                client.to_client.take(client.upstream.recv(DATAGRAM_BYTES_MAX))
        except OSError:
            return  # no more for now, or a server that is not there


@asynccontextmanager
async def udp_proxy(
    server: tuple[str, int], *, seed: int, weather: Weather = BAD_WEATHER
) -> AsyncIterator[UdpProxy]:
    """Run a proxy in front of a server."""
    proxy = UdpProxy(server, seed=seed, weather=weather)
    try:
        yield proxy
    finally:
        proxy.close()
