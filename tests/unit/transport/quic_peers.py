"""QUIC peers for tests: a listener and clients on the loopback, and a lossy proxy."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from aioquic.asyncio.client import connect as connect_aioquic
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent

from braidmq.transport.binding import bind_udp
from braidmq.transport.certificates import CertificateFiles, load_or_make
from braidmq.transport.door import Door, Place
from braidmq.transport.quic import ALPN, QuicLimits
from braidmq.transport.quic_client import KEEPALIVE_S, QuicClient, Trust, connect
from braidmq.transport.quic_server import QuicListener
from braidmq.transport.quic_streams import StreamWire
from tests.integration.blip.peer import until

LIMITS = QuicLimits(
    output_buffer_bytes=100_000, stream_window_bytes=64_000, connection_window_bytes=128_000
)


class Recorder:
    """A connection that keeps its data and events, and can echo."""

    def __init__(self, wire: StreamWire, *, greets: bool = True, echoes: bool = False) -> None:
        self.wire = wire
        self.received = bytearray()
        self.events: list[str] = []
        self._echoes = echoes
        if greets:
            wire.greeted("tests")

    def receive(self, data: bytes) -> None:
        self.received += data
        if self._echoes:
            self.wire.write(data)

    def finish_input(self) -> None:
        self.events.append("finished")
        if self._echoes:
            self.wire.close()

    def set_writable(self, writable: bool) -> None:
        self.events.append("writable" if writable else "full")

    def lost(self) -> None:
        self.events.append("lost")


class Listening:
    """A listener whose streams are recorders."""

    def __init__(self, directory: Path, **options: bool) -> None:
        self.files: CertificateFiles = load_or_make("qumbed", directory)
        self.accepted: list[Recorder] = []
        self.door = Door(connections=1_000, strangers=1_000)
        self.listener: QuicListener
        self._asks = options.pop("asks_for_certificates", False)
        self._options = options

    def start(self, limits: QuicLimits = LIMITS, port: int = 0) -> None:
        self.listener = QuicListener(
            bind_udp("quic", "127.0.0.1", port),
            certificate=self.files.certificate,
            key=self.files.key,
            make_stream=self._make,
            limits=limits,
            admit=self._admit,
            asks_for_certificates=self._asks,
        )

    def die(self) -> int:
        """Disappear silently, like a killed process; return the port."""
        port = self.port
        self.listener.drop_socket()
        for carrier in list(self.listener.carriers):
            carrier.end(0, "")
        return port

    def _make(self, wire: StreamWire) -> Recorder:
        self.accepted.append(Recorder(wire, **self._options))
        return self.accepted[-1]

    def _admit(self, address: str) -> Place:
        return self.door.enter(address)  # a test may have replaced the door

    @property
    def port(self) -> int:
        return int(self.listener.address[1])

    async def connect(
        self, port: int = 0, limits: QuicLimits = LIMITS, keepalive_s: float = KEEPALIVE_S
    ) -> QuicClient:
        trust = Trust(fingerprint=self.files.fingerprint)
        return await connect(
            "127.0.0.1",
            port or self.port,
            trust=trust,
            limits=limits,
            keepalive_s=keepalive_s,
        )


@asynccontextmanager
async def listening(
    directory: Path, limits: QuicLimits = LIMITS, **options: bool
) -> AsyncIterator[Listening]:
    """Run a listener inside the block."""
    started = Listening(directory, **options)
    started.start(limits)
    try:
        yield started
    finally:
        started.listener.close()


def opened(client: QuicClient) -> Recorder:
    """Open a stream and return its recorder."""
    wire = client.open_stream(Recorder)
    assert isinstance(wire.carried, Recorder)
    return wire.carried


class Ends(NamedTuple):
    """One stream of a client, with both its ends."""

    server: Listening
    client: QuicClient
    stream: Recorder
    """The client's end."""
    served: Recorder
    """The server's end."""


@asynccontextmanager
async def one_stream(directory: Path) -> AsyncIterator[Ends]:
    """Serve a client that has opened one stream and sent the byte `x` on it."""
    async with listening(directory) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(b"x")
        await until(lambda: server.accepted)
        yield Ends(server, client, stream, server.accepted[0])
        await client.close()


class AioquicClient(QuicConnectionProtocol):
    """The client of aioquic itself, which can do what ours would not; it ignores all events."""

    @property
    def quic(self) -> QuicConnection:
        return self._quic

    def quic_event_received(self, event: QuicEvent) -> None:
        pass

    def open_stopped(self) -> int:
        """Send STOP_SENDING on a new stream that carries no data yet."""
        stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, b"")
        self.stop(stream_id)
        return stream_id

    def stop(self, stream_id: int) -> None:
        self.quic.stop_stream(stream_id, 0)
        self.transmit()

    def send(self, stream_id: int, data: bytes, *, ends: bool = False) -> None:
        self.quic.send_stream_data(stream_id, data, end_stream=ends)
        self.transmit()

    def reset(self, stream_id: int) -> None:
        self.quic.reset_stream(stream_id, 0)
        self.transmit()


@asynccontextmanager
async def aioquic_client(server: Listening) -> AsyncIterator[AioquicClient]:
    """Connect with the client of aioquic inside the block."""
    settings = QuicConfiguration(alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE)
    async with connect_aioquic(
        "127.0.0.1", server.port, configuration=settings, create_protocol=AioquicClient
    ) as peer:
        assert isinstance(peer, AioquicClient)
        yield peer


class Proxy(asyncio.DatagramProtocol):
    """Pass datagrams on between one client and a server, losing and reordering some."""

    def __init__(self, seed: int, loss: float, later: float) -> None:
        self._random = random.Random(seed)
        self._loss = loss
        self._later = later
        self.lost = 0
        self.reordered = 0
        self.pass_on: Callable[[bytes], None] = lambda _: None

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._random.random() < self._loss:
            self.lost += 1
        elif self._random.random() < self._later:
            self.reordered += 1
            asyncio.get_running_loop().call_later(0.003, self.pass_on, data)
        else:
            self.pass_on(data)


@asynccontextmanager
async def lossy(
    server_port: int, *, seed: int, loss: float, later: float
) -> AsyncIterator[tuple[int, Proxy, Proxy]]:
    """Yield a port that leads to the server over a bad network, and its two directions."""
    loop = asyncio.get_running_loop()
    peer: list[tuple[str, int]] = []

    class Front(Proxy):
        def datagram_received(self, data: bytes, addr: object) -> None:
            assert isinstance(addr, tuple)
            peer[:] = [addr]
            super().datagram_received(data, addr)

    front, to_client = await loop.create_datagram_endpoint(
        lambda: Front(seed, loss, later), local_addr=("127.0.0.1", 0)
    )
    back, from_server = await loop.create_datagram_endpoint(
        lambda: Proxy(seed + 1, loss, later), remote_addr=("127.0.0.1", server_port)
    )
    # A delayed datagram may come due after the network is gone.
    to_client.pass_on = lambda data: None if back.is_closing() else back.sendto(data)
    from_server.pass_on = lambda data: (
        None if front.is_closing() else front.sendto(data, peer[0])
    )
    try:
        yield front.get_extra_info("sockname")[1], to_client, from_server
    finally:
        front.close()
        back.close()
