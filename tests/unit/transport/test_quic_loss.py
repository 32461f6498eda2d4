"""QUIC over a bad network: the transport keeps its promises when datagrams are lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from braidmq.base.limits import KIB, MIB
from braidmq.testing.udp_proxy import BAD_WEATHER, Counts, UdpProxy, Weather, udp_proxy
from braidmq.transport.binding import bind_udp
from braidmq.transport.certificates import load_or_make
from braidmq.transport.quic_client import QuicClient, Trust, connect
from braidmq.transport.quic_server import QuicListener
from braidmq.transport.quic_streams import StreamWire
from tests.unit.transport import quic_peers

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ECHO_BYTES = 2 * MIB
PIECE_BYTES = 16 * KIB
PATIENCE_S = 100

# A handshake may be lost four times in a row, with a longer delay before each retry.
LIMITS = replace(quic_peers.LIMITS, handshake_timeout_s=PATIENCE_S)

WEATHERS = {
    "loss": Weather(loss=0.1),
    "loss and reordering": Weather(loss=0.1, reordered=0.1),
    "all of it": BAD_WEATHER,
}


class Peaks:
    """The most bytes that one end held, as sampled by :meth:`look`."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.unread_bytes = 0

    def look(self, wire: StreamWire) -> None:
        self.unsent_bytes = max(self.unsent_bytes, wire.unsent_bytes())
        self.unread_bytes = max(self.unread_bytes, wire.carrier.quic.unread_bytes())


class Echo:
    """Echoes what it receives, and pauses reading while the output is full."""

    def __init__(self, wire: StreamWire, peaks: Peaks) -> None:
        self.received = bytearray()
        self._wire = wire
        self._peaks = peaks
        wire.greeted("tests")

    def receive(self, data: bytes) -> None:
        self._peaks.look(self._wire)
        self.received += data
        self._wire.write(data)
        self._peaks.look(self._wire)

    def finish_input(self) -> None:
        self._wire.close()

    def set_writable(self, writable: bool) -> None:
        if writable:
            self._wire.resume_reading()
        else:
            self._wire.pause_reading()

    def lost(self) -> None:
        pass


class Talker:
    """Sends *data* as fast as the stream takes it, and keeps the echo until its end."""

    def __init__(self, wire: StreamWire, data: bytes, peaks: Peaks) -> None:
        self.received = bytearray()
        self.finished = asyncio.Event()
        self.pauses = 0
        self._wire = wire
        self._data = data
        self._peaks = peaks
        self._sent = 0
        self._is_writable = True

    def receive(self, data: bytes) -> None:
        self._peaks.look(self._wire)
        self.received += data

    def finish_input(self) -> None:
        self.finished.set()

    def set_writable(self, writable: bool) -> None:
        self._is_writable = writable
        self.pauses += not writable
        self.talk()

    def lost(self) -> None:
        self.finished.set()

    def talk(self) -> None:
        """Send as much as the stream takes."""
        while self._is_writable and self._sent < len(self._data):
            self._wire.write(self._data[self._sent : self._sent + PIECE_BYTES])
            self._sent += PIECE_BYTES
            self._peaks.look(self._wire)
            if self._sent >= len(self._data):
                self._wire.finish_output()


class Served:
    """A listener that echoes, behind a proxy."""

    def __init__(self, directory: Path) -> None:
        self.peaks = Peaks()
        self.echoes: list[Echo] = []
        self._files = load_or_make("qumbed", directory)

    def start(self) -> QuicListener:
        return QuicListener(
            bind_udp("quic", "127.0.0.1", 0),
            certificate=self._files.certificate,
            key=self._files.key,
            make_stream=self._make,
            limits=LIMITS,
        )

    def _make(self, wire: StreamWire) -> Echo:
        self.echoes.append(Echo(wire, self.peaks))
        return self.echoes[-1]

    async def connect(self, port: int) -> QuicClient:
        trust = Trust(fingerprint=self._files.fingerprint)
        return await connect("127.0.0.1", port, trust=trust, limits=LIMITS)


@asynccontextmanager
async def served(
    directory: Path, *, seed: int, weather: Weather
) -> AsyncIterator[tuple[Served, UdpProxy]]:
    """Run a server behind a bad network inside the block."""
    server = Served(directory)
    listener = server.start()
    try:
        async with udp_proxy(
            ("127.0.0.1", int(listener.address[1])), seed=seed, weather=weather
        ) as proxy:
            yield server, proxy
    finally:
        listener.close()


def talk(client: QuicClient, data: bytes, peaks: Peaks) -> Talker:
    """Open a stream and send *data* on it."""
    wire = client.open_stream(lambda wire: Talker(wire, data, peaks))
    assert isinstance(wire.carried, Talker)
    wire.carried.talk()
    return wire.carried


def assert_within_bounds(peaks: Peaks) -> None:
    """Check that an end held no more than its limits plus the write under way."""
    written_at_once = max(PIECE_BYTES, LIMITS.stream_window_bytes)
    assert 0 < peaks.unsent_bytes <= LIMITS.output_buffer_bytes + written_at_once
    assert peaks.unread_bytes <= LIMITS.connection_window_bytes


def share_lost(counts: Counts) -> float:
    return counts.lost / counts.received


@pytest.mark.parametrize("name", WEATHERS)
async def test_two_mebibytes_are_echoed_complete_and_in_order(
    tmp_path: Path, name: str
) -> None:
    """Through a network that loses a tenth in each direction, within the memory bounds."""
    weather = WEATHERS[name]
    data, peaks = Random(1).randbytes(ECHO_BYTES), Peaks()
    async with served(tmp_path, seed=1, weather=weather) as (server, proxy):
        client = await server.connect(proxy.port)
        talker = talk(client, data, peaks)
        async with asyncio.timeout(PATIENCE_S):
            await talker.finished.wait()
        await client.close()

        (echo,) = server.echoes
        assert (data == echo.received, data == talker.received) == (True, True)
        assert talker.pauses
        for counts in (proxy.to_server, proxy.to_client):
            assert 0.1 == pytest.approx(share_lost(counts), abs=0.04)
            assert bool(weather.reordered) == bool(counts.reordered)
            assert bool(weather.doubled) == bool(counts.doubled)
        assert_within_bounds(peaks)
        assert_within_bounds(server.peaks)


async def test_streams_of_one_connection_do_not_mix(tmp_path: Path) -> None:
    """Eight of them share the losses; each gets its own bytes, in order, and its own end."""
    sent = [Random(number).randbytes(100_000 + number) for number in range(8)]
    async with served(tmp_path, seed=2, weather=BAD_WEATHER) as (server, proxy):
        client = await server.connect(proxy.port)
        talkers = [talk(client, data, Peaks()) for data in sent]
        async with asyncio.timeout(PATIENCE_S):
            for talker in talkers:
                await talker.finished.wait()
        await client.close()

        assert [True] * 8 == [
            data == talker.received for data, talker in zip(sent, talkers, strict=True)
        ]
        assert set(sent) == {bytes(echo.received) for echo in server.echoes}


async def test_many_connections_get_through(tmp_path: Path) -> None:
    """Handshakes are lost and repeated too, each client's over its own port of the proxy."""
    sent = [Random(number).randbytes(10_000) for number in range(10)]
    weather = replace(BAD_WEATHER, loss=0.2)
    async with served(tmp_path, seed=3, weather=weather) as (server, proxy):
        async with asyncio.timeout(PATIENCE_S):
            clients = await asyncio.gather(*(server.connect(proxy.port) for _ in sent))
            talkers = [
                talk(client, data, Peaks()) for client, data in zip(clients, sent, strict=True)
            ]
            for talker in talkers:
                await talker.finished.wait()
        for client in clients:
            await client.close()

        assert [True] * 10 == [
            data == talker.received for data, talker in zip(sent, talkers, strict=True)
        ]
        assert 10 == len(proxy)
