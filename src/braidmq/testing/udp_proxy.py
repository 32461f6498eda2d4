"""A bad network for tests: a UDP proxy that loses, delays, reorders and doubles datagrams.

    client ──▶ front socket ──▶ Lane ──▶ a socket for each client ──▶ server
    client ◀── front socket ◀── Lane ◀── the same socket          ◀── server

What happens to a datagram is drawn from a seeded generator, one for each client and direction:
the n-th datagram of a lane has the same fate in every run with the same seed, whatever comes
meanwhile on other lanes. When it happens is up to the network and the loop. Payloads are passed
on as they are: to damage them is not this module's business.

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
from typing import Any, Final

CLIENTS_MAX: Final = 64
"""Clients that are remembered. Of more, the one that was silent the longest is forgotten, as a
router would; when it speaks again, the server sees it come from another port."""

HELD_MAX: Final = 4_096
"""Datagrams that a lane holds back; further ones are dropped and counted."""

HOLD_S_MAX: Final = 0.02
"""How long a datagram waits for others to overtake it: behind the last one nothing comes."""

DATAGRAMS_PER_TURN: Final = 64
DATAGRAM_BYTES_MAX: Final = 65_536
SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""The proxy itself shall lose nothing that it does not count."""

Address = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Weather:
    """What share of the datagrams suffers what, in each direction."""

    loss: float = 0.0
    doubled: float = 0.0
    """Passed on twice; the second one may be late or overtaken by itself."""
    reordered: float = 0.0
    """Held back until up to *overtakers* later ones have passed."""
    overtakers: int = 4
    delayed: float = 0.0
    """Passed on after up to *delay_s*."""
    delay_s: float = 0.01

    def __post_init__(self) -> None:
        """Shares are shares; a datagram can be reordered or delayed, not both."""
        for share in (self.loss, self.doubled, self.reordered + self.delayed):
            assert 0 <= share <= 1
        assert self.overtakers > 0
        assert self.delay_s >= 0


BAD_WEATHER: Final = Weather(loss=0.1, doubled=0.02, reordered=0.1, delayed=0.05)
"""A tenth is lost, more than a tenth comes late: worse than any network that is called one."""


@dataclass(slots=True)
class Counts:
    """What was done to the datagrams of one direction."""

    received: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    delayed: int = 0
    passed: int = 0
    """Handed to the kernel, the second of two included."""
    dropped: int = 0
    """For want of room here or in the kernel, or because nobody listens there."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to happen to one copy of a datagram."""

    overtakers: int = 0
    delay_s: float = 0.0


class Dice:
    """Decides about the datagrams of one lane, in the order in which they come."""

    def __init__(self, seed: str, weather: Weather) -> None:
        self._random = random.Random(seed)
        self._weather = weather

    def throw(self) -> list[Fate]:
        """Return the fates of the next datagram's copies: none when it is lost."""
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


class _Held:
    """A datagram that waits for others to overtake it, or, without any, for its time."""

    __slots__ = ("data", "overtakers", "timer")

    def __init__(self, data: bytes, overtakers: int) -> None:
        self.data = data
        self.overtakers = overtakers
        self.timer: asyncio.TimerHandle | None = None

    def let_one_pass(self) -> bool:
        """Count one that has overtaken; True when there is none left to wait for."""
        self.overtakers -= 1
        return self.overtakers == 0

    def forget_time(self) -> None:
        """Wait for the clock no more."""
        if self.timer is not None:
            self.timer.cancel()


class Lane:
    """One direction of one client: datagrams in, and out as the dice have it."""

    def __init__(
        self,
        dice: Dice,
        counts: Counts,
        send: Callable[[bytes], None],
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
        """Take a datagram in."""
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
            self._send(due.popleft())
            for held in [one for one in self._held if one.let_one_pass()]:
                del self._held[held]
                held.forget_time()
                due.append(held.data)


class _Client:
    """A client's socket towards the server, and its two lanes."""

    def __init__(self, upstream: socket.socket, to_server: Lane, to_client: Lane) -> None:
        self.upstream = upstream
        self.to_server = to_server
        self.to_client = to_client


class UdpProxy:
    """Stands before the server at *server*; clients send to :attr:`port` on the same host."""

    def __init__(self, server: tuple[str, int], *, seed: int, weather: Weather) -> None:
        self.to_server = Counts()
        self.to_client = Counts()
        self.forgotten = 0  # clients, for others
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
        """Where clients send to."""
        return int(self._front.getsockname()[1])

    @property
    def held(self) -> int:
        """How many datagrams are held back, of all lanes."""
        return sum(one.to_server.held + one.to_client.held for one in self._clients.values())

    def close(self) -> None:
        """Pass on no more."""
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
                self._clients[address] = client  # the last of them has spoken last
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

        def to_server(data: bytes) -> None:
            self._send(upstream, data, None, self.to_server)

        def to_client(data: bytes) -> None:
            self._send(self._front, data, address, self.to_client)

        client = _Client(
            upstream,
            Lane(self._dice(number, "to server"), self.to_server, to_server),
            Lane(self._dice(number, "to client"), self.to_client, to_client),
        )
        self._loop.add_reader(upstream.fileno(), self._read_upstream, client)
        return client

    def _forget_one(self) -> None:
        client = self._clients.pop(next(iter(self._clients)))
        client.to_server.close()
        client.to_client.close()
        self._loop.remove_reader(client.upstream.fileno())
        client.upstream.close()

    def _dice(self, client: int, direction: str) -> Dice:
        return Dice(f"{self._seed} {client} {direction}", self._weather)

    def _read_upstream(self, client: _Client) -> None:
        try:
            for _ in range(DATAGRAMS_PER_TURN):
                client.to_client.take(client.upstream.recv(DATAGRAM_BYTES_MAX))
        except OSError:
            return  # no more for now, or a server that is not there

    def _send(
        self, sock: socket.socket, data: bytes, address: Address | None, counts: Counts
    ) -> None:
        try:
            if address is None:
                sock.send(data)
            else:
                sock.sendto(data, address)
        except OSError:
            counts.dropped += 1
        else:
            counts.passed += 1


@asynccontextmanager
async def udp_proxy(
    server: tuple[str, int], *, seed: int, weather: Weather = BAD_WEATHER
) -> AsyncIterator[UdpProxy]:
    """Stand before a server for a while."""
    proxy = UdpProxy(server, seed=seed, weather=weather)
    try:
        yield proxy
    finally:
        proxy.close()
