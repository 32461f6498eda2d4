"""The UDP proxy: what it does to datagrams, in what order, and its counters."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import cast

import pytest
import uvloop

from braidmq.testing import udp_proxy as module
from braidmq.testing.udp_proxy import (
    BAD_WEATHER,
    Counts,
    Dice,
    Fate,
    Lane,
    UdpProxy,
    Weather,
    udp_proxy,
)
from tests.integration.blip.peer import until

FAIR = Weather()
ONE, TWO = Fate(overtakers=1), Fate(overtakers=2)
NOW = Fate()
LONG_S = 1_000.0

NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Socket(asyncio.DatagramProtocol):
    """A UDP socket that keeps what it receives, and can echo it."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.received: list[bytes] = []
        self.peers: set[tuple[str, int]] = set()
        self._echoes = echoes
        self._is_closed = asyncio.Event()
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed.set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received.append(data)
        self.peers.add(addr)
        if self._echoes:
            self.transport.sendto(data, addr)

    @property
    def port(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])

    def send(self, data: bytes) -> None:
        self.transport.sendto(data)

    async def close(self) -> None:
        self.transport.close()
        await self._is_closed.wait()


@asynccontextmanager
async def sockets() -> AsyncIterator[Callable[..., Awaitable[Socket]]]:
    """Yield a function that opens a socket: a client of *port*, or a server if it is 0."""
    loop = asyncio.get_running_loop()
    opened: list[Socket] = []

    async def open_one(port: int = 0, *, echoes: bool = False, local: int = 0) -> Socket:
        remote = ("127.0.0.1", port) if port else None
        transport, made = await loop.create_datagram_endpoint(
            lambda: Socket(echoes=echoes),
            local_addr=("127.0.0.1", local),
            remote_addr=remote,
        )
        # On a busy machine delayed datagrams may arrive in a burst that the kernel would drop.
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, module.SOCKET_BUFFER_BYTES)
        opened.append(made)
        return made

    try:
        yield open_one
    finally:
        for one in opened:
            await one.close()


class Script(Dice):
    """Dice that give the scripted fates, then let everything pass."""

    def __init__(self, *fates: list[Fate]) -> None:
        super().__init__("", FAIR)
        self._fates = iter(fates)

    def throw(self) -> list[Fate]:
        return next(self._fates, [NOW])


def numbers(count: int) -> Iterator[bytes]:
    return (number.to_bytes(4, "big") for number in range(count))


def is_accounted_for(counts: Counts, held: int = 0) -> bool:
    """Return whether each received datagram was lost, passed on, dropped or is still held."""
    copies = counts.received - counts.lost + counts.doubled
    return copies == counts.passed + counts.dropped + held


async def until_received(counts: Counts, count: int) -> None:
    await until(lambda: counts.received >= count)


# --- the dice -------------------------------------------------------------------------------


def test_one_seed_always_gives_the_same_fates() -> None:
    """In every run; another seed gives others."""
    runs = [
        [dice.throw() for _ in range(1_000)]
        for dice in (Dice("7", BAD_WEATHER), Dice("7", BAD_WEATHER), Dice("8", BAD_WEATHER))
    ]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_shares_are_as_configured() -> None:
    """In ten thousand throws, to within one percent."""
    weather = Weather(loss=0.1, doubled=0.2, reordered=0.3, overtakers=3, delayed=0.1)
    dice = Dice("1", weather)
    throws = [dice.throw() for _ in range(10_000)]
    kept = [fates for fates in throws if fates]
    copies = [fate for fates in kept for fate in fates]
    overtakers = Counter(fate.overtakers for fate in copies if fate.overtakers)

    assert 0.1 == pytest.approx(1 - len(kept) / len(throws), abs=0.01)
    assert 0.2 == pytest.approx(sum(len(f) - 1 for f in kept) / len(kept), abs=0.01)
    assert 0.3 == pytest.approx(overtakers.total() / len(copies), abs=0.01)
    assert {1, 2, 3} == set(overtakers)
    delays = [fate.delay_s for fate in copies if fate.delay_s]
    assert 0.1 == pytest.approx(len(delays) / len(copies), abs=0.01)
    assert max(delays) <= weather.delay_s


def test_fair_weather_does_nothing() -> None:
    """By default every datagram passes."""
    dice = Dice("1", FAIR)

    assert 1_000 * [[NOW]] == [dice.throw() for _ in range(1_000)]


def test_a_storm_lets_nothing_pass() -> None:
    """Like a cut cable."""
    dice = Dice("1", replace(BAD_WEATHER, loss=1.0))

    assert 1_000 * [[]] == [dice.throw() for _ in range(1_000)]


# --- a lane ---------------------------------------------------------------------------------

ORDERS: dict[str, tuple[list[list[Fate]], str]] = {
    "all pass": ([], "abcdef"),
    "one is lost": ([[NOW], []], "acdef"),
    "one is doubled": ([[NOW], [NOW, NOW]], "abbcdef"),
    "one is overtaken by one": ([[ONE]], "bacdef"),
    "one is overtaken by two": ([[TWO]], "bcadef"),
    "its double is overtaken": ([[NOW, ONE]], "abacdef"),
    "two are overtaken by one and the same": ([[ONE], [ONE]], "cabdef"),
    "an overtaken one overtakes": ([[ONE], [TWO]], "cabdef"),
    "one waits for one that is lost": ([[ONE], []], "cadef"),
    "one is delayed": ([[Fate(delay_s=LONG_S)]], "bcdef"),
    "one waits for more than arrive": ([[NOW], [Fate(overtakers=9)]], "acdef"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("case", ORDERS)
async def test_datagrams_leave_in_the_order_of_their_fates(case: str) -> None:
    """A datagram that waits to be overtaken does not wait for the clock."""
    fates, order = ORDERS[case]
    passed: list[bytes] = []
    counts = Counts()
    lane = Lane(Script(*fates), counts, passed.append, hold_s=LONG_S)
    for letter in "abcdef":
        lane.take(letter.encode())
    held = lane.held
    lane.close()

    assert order == b"".join(passed).decode()
    counts.passed = len(passed)  # the sender counts it
    assert is_accounted_for(counts)
    assert (held, 0) == (counts.dropped, lane.held)


@pytest.mark.asyncio
async def test_a_datagram_that_nothing_overtakes_passes_after_a_while() -> None:
    """Otherwise the very last datagram would be lost."""
    passed: list[bytes] = []
    lane = Lane(Script([ONE], [Fate(delay_s=0.001)]), Counts(), passed.append, hold_s=LONG_S)
    lane.take(b"overtaken by the next, once that is due")
    lane.take(b"delayed")
    await until(lambda: 2 == len(passed))
    assert b"delayed" == passed[0]

    alone = Lane(Script([ONE]), Counts(), passed.append, hold_s=0.001)
    alone.take(b"alone")
    await until(lambda: b"alone" == passed[-1])
    assert 0 == alone.held


@pytest.mark.asyncio
async def test_a_long_chain_of_waiting_datagrams_is_released() -> None:
    """Each waits for the one before it; releasing them does not overflow the stack."""
    passed: list[bytes] = []
    fates = [[Fate(overtakers=number)] for number in range(1, 1_501)]
    lane = Lane(Script(*fates), Counts(), passed.append, hold_s=LONG_S)
    for data in numbers(1_500):
        lane.take(data)
    lane.take(b"last")

    assert [b"last", *numbers(1_500)] == passed


@pytest.mark.asyncio
async def test_the_number_of_held_datagrams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are dropped and counted."""
    monkeypatch.setattr(module, "HELD_MAX", 2)
    passed: list[bytes] = []
    counts = Counts()
    lane = Lane(Script([TWO], [TWO], [TWO], [ONE]), counts, passed.append, hold_s=LONG_S)
    for data in numbers(4):
        lane.take(data)

    assert (2, 2, 4) == (lane.held, counts.dropped, counts.reordered)
    lane.close()


# --- on the loopback ------------------------------------------------------------------------


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_each_client_has_its_own_port_at_the_server(new_loop: NewLoop) -> None:
    """So each gets its own answers."""

    async def run() -> None:
        async with sockets() as open_one:
            server = await open_one(echoes=True)
            async with udp_proxy(("127.0.0.1", server.port), seed=1, weather=FAIR) as proxy:
                clients = [await open_one(proxy.port) for _ in range(3)]
                for data in numbers(10):
                    for number, client in enumerate(clients):
                        client.send(data + bytes([number]))
                await until(lambda: all(len(client.received) == 10 for client in clients))

                for number, client in enumerate(clients):
                    sent = [data + bytes([number]) for data in numbers(10)]
                    assert sent == client.received
                assert (3, 3) == (len(proxy), len(server.peers))
                expected = Counts(received=30, passed=30)
                assert (expected, expected) == (proxy.to_server, proxy.to_client)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


async def exchange(seed: int, weather: Weather) -> tuple[list[bytes], list[bytes], UdpProxy]:
    """Send 500 datagrams to an echo server; return what arrived there and what came back."""
    async with sockets() as open_one:
        server = await open_one(echoes=True)
        async with udp_proxy(("127.0.0.1", server.port), seed=seed, weather=weather) as proxy:
            client = await open_one(proxy.port)
            for number, data in enumerate(numbers(500), 1):
                client.send(data)
                if number % 50 == 0:  # the kernel's buffers are bounded
                    await until_received(proxy.to_server, number)
            await until(lambda: not proxy.held)
            await until(lambda: proxy.to_server.passed == len(server.received))
            await until(lambda: len(server.received) == proxy.to_client.received)
            await until(lambda: not proxy.held)
            await until(lambda: proxy.to_client.passed == len(client.received))
        return server.received, client.received, proxy


@pytest.mark.asyncio
async def test_every_datagram_is_counted() -> None:
    """In both directions; no datagram is altered."""
    sent = list(numbers(500))
    there, back, proxy = await exchange(3, BAD_WEATHER)

    for arrived, counts in ((there, proxy.to_server), (back, proxy.to_client)):
        assert set(arrived) <= set(sent)
        assert len(arrived) == counts.passed
        assert arrived != sorted(arrived)
        assert 0 == counts.dropped
        assert is_accounted_for(counts)
        for what, count in asdict(counts).items():
            assert count or what == "dropped", what
    assert len(set(there)) == 500 - proxy.to_server.lost


@pytest.mark.asyncio
async def test_one_seed_loses_the_same_datagrams() -> None:
    """So that a failing run can be reproduced."""
    runs = [await exchange(seed, replace(BAD_WEATHER, loss=0.3)) for seed in (5, 5, 6)]
    arrived = [set(there) for there, _, _ in runs]

    assert arrived[0] == arrived[1]
    assert arrived[0] != arrived[2]


@pytest.mark.asyncio
async def test_a_server_may_be_down_for_a_while() -> None:
    """Datagrams sent meanwhile are lost; the client keeps its port at the server."""
    async with sockets() as open_one:
        server = await open_one(echoes=True)
        port = server.port
        async with udp_proxy(("127.0.0.1", port), seed=1, weather=FAIR) as proxy:
            client = await open_one(proxy.port)
            client.send(b"1")
            await until(lambda: client.received)
            ports = set(server.peers)
            await server.close()
            for number in range(2, 10):
                client.send(b"lost")
                await until_received(proxy.to_server, number)
            again = await open_one(local=port, echoes=True)
            while b"2" != client.received[-1]:
                client.send(b"2")
                await until_received(proxy.to_server, proxy.to_server.received + 1)

            assert ports == again.peers
            assert {b"2"} == set(again.received)
            assert {b"1", b"2"} == set(client.received)


@pytest.mark.asyncio
async def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that was silent longest is forgotten, and may return under another port."""
    monkeypatch.setattr(module, "CLIENTS_MAX", 2)
    async with sockets() as open_one:
        server = await open_one(echoes=True)
        async with udp_proxy(("127.0.0.1", server.port), seed=1, weather=FAIR) as proxy:
            first, second, third = [await open_one(proxy.port) for _ in range(3)]
            for count, client in enumerate((first, second, first, third), 1):
                client.send(b"x")
                await until_received(proxy.to_client, count)
            assert (2, 1, 3) == (len(proxy), proxy.forgotten, len(server.peers))
            first.send(b"x")
            await until(lambda: 3 == len(first.received))
            assert 3 == len(server.peers)
            second.send(b"x")
            await until(lambda: 2 == len(second.received))
            assert (2, 2, 4) == (len(proxy), proxy.forgotten, len(server.peers))


@pytest.mark.asyncio
async def test_a_closed_proxy_holds_nothing() -> None:
    """Held datagrams are dropped and counted, and no timer is left behind."""
    async with sockets() as open_one:
        server = await open_one()
        weather = Weather(delayed=1.0, delay_s=LONG_S)
        async with udp_proxy(("127.0.0.1", server.port), seed=1, weather=weather) as proxy:
            client = await open_one(proxy.port)
            for data in numbers(20):
                client.send(data)
            await until(lambda: 20 == proxy.held)

    assert (0, 0, 20) == (proxy.held, len(proxy), proxy.to_server.dropped)
    assert [] == server.received


IMPOSSIBLE = [
    {"loss": 1.1},
    {"doubled": -0.1},
    {"reordered": 0.6, "delayed": 0.6},
    {"overtakers": 0},
    {"delay_s": -1.0},
]


@pytest.mark.parametrize("settings", IMPOSSIBLE, ids=str)
def test_impossible_weather_is_an_error(settings: dict[str, float]) -> None:
    """The mistake is in the test, and is reported at once."""
    with pytest.raises(AssertionError):
        replace(FAIR, **settings)  # type: ignore[arg-type] # the types are right, the values not
