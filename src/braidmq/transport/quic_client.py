"""The client's end of a QUIC connection: trust, the handshake, streams, keepalive."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioquic.quic.configuration import QuicConfiguration

from braidmq.base.errors import BraidError
from braidmq.transport.certificates import CertificateFiles
from braidmq.transport.quic import (
    ALPN,
    DATAGRAM_BYTES,
    BoundedConnection,
    QuicLimits,
    configuration,
)
from braidmq.transport.quic_endpoint import Address, Endpoint, prepare
from braidmq.transport.quic_streams import Carrier, StreamWire
from braidmq.transport.tcp import Carried

KEEPALIVE_S: Final = 20.0
"""How often a silent server is pinged: home routers forget a silent path after 30 s."""

IDLE_TIMEOUT_S: Final = 60.0
"""A server that answers no ping for so long is gone."""

BAD_CERTIFICATE: Final = 0x12A
"""What a handshake ends with when no CA vouches for the server: TLS's alert 42, in QUIC."""

REFUSALS_MAX: Final = 3
"""So many datagrams in a row that the other machine had no taker for: the server is gone."""

CLIENT_LIMITS: Final = QuicLimits(idle_timeout_s=IDLE_TIMEOUT_S)

assert KEEPALIVE_S * 2 < IDLE_TIMEOUT_S


class HandshakeError(BraidError, ConnectionError):
    """No connection came about."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"QUIC handshake failed: {reason} (code {code:#x})")
        self.code = code
        self.reason = reason


class UntrustedError(HandshakeError):
    """The server proved to hold a certificate, but not the pinned one."""


@dataclass(frozen=True)
class Trust:
    """Which servers a client trusts; by default those that a known CA vouches for."""

    ca_file: Path | None = None
    fingerprint: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        """Allow one way of trusting at a time."""
        assert sum((self.ca_file is not None, bool(self.fingerprint), self.insecure)) <= 1


class QuicClient(Endpoint):
    """One connection to a server, from :func:`connect`."""

    def __init__(
        self, sock: socket.socket, carrier_for: Callable[["QuicClient"], Carrier], trust: Trust
    ) -> None:
        super().__init__(sock)
        self._trust = trust
        self._shaken: asyncio.Future[None] = self.loop.create_future()
        self._ended = asyncio.Event()
        self._keepalive: asyncio.TimerHandle | None = None
        self._refusals = 0  # of the other machine, since the last datagram from there
        self.carrier = carrier_for(self)

    def open_stream(self, make: Callable[[StreamWire], Carried]) -> StreamWire:
        """Return a new stream, carried by what *make* makes of it."""
        wire = self.carrier.open_stream()
        wire.carried = make(wire)
        return wire

    @property
    def is_ended(self) -> bool:
        """Whether the connection is over."""
        return self.carrier.is_ended

    @property
    def end_code(self) -> int:
        """The code that the connection was closed with, by either end."""
        return self.carrier.end_code

    async def close(self, code: int = 0, reason: str = "") -> None:
        """Close the connection at once, and the socket."""
        self.carrier.close(code, reason)
        self.close_socket()
        self.carrier.end(code, reason)

    async def wait_ended(self) -> None:
        """Wait until the connection is over."""
        await self._ended.wait()

    async def shake_hands(
        self, address: Address, *, timeout_s: float, keepalive_s: float
    ) -> None:
        """Wait for the server, and check that it is the one.

        Raises:
            HandshakeError: It is not there, does not answer, or refuses.
            UntrustedError: It is another.
        """
        self.carrier.quic.connect(address, time.monotonic())
        self.transmit_soon(self.carrier)
        try:
            async with asyncio.timeout(timeout_s):
                await self._shaken
        except TimeoutError:
            raise HandshakeError(0, "no answer in time") from None
        pinned = self._trust.fingerprint.lower().replace(":", "")
        if pinned and self.carrier.quic.peer_fingerprint() != pinned:
            raise UntrustedError(0, "the certificate's fingerprint is not the pinned one")
        self._keep_alive(keepalive_s)

    # What the endpoint asks.

    def route(self, data: bytes, address: Address, now: float) -> None:
        """Give the carrier its datagram."""
        self._refusals = 0
        if self.carrier.is_shaken and self.carrier.quic.is_reset_by(data):
            self.carrier.end(0, "the server knows this connection no more")
        else:
            self.carrier.receive(data, address, now)

    def unreachable(self) -> None:
        """Give up when nothing listens; a single refusal may be a passing network fault."""
        self._refusals += 1
        if not self.carrier.is_shaken or self._refusals >= REFUSALS_MAX:
            self.carrier.end(0, "nothing listens there")

    def handshake_done(self, carrier: Carrier) -> None:
        """Let the caller of :func:`connect` go on."""
        del carrier
        if not self._shaken.done():
            self._shaken.set_result(None)

    def carrier_ended(self, carrier: Carrier) -> None:
        """Wake the callers that wait."""
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self._shaken.done():
            reason = carrier.end_reason or "refused"
            self._shaken.set_exception(HandshakeError(carrier.end_code, reason))
            self._shaken.exception()  # there may be no waiter left to retrieve it
        self._ended.set()

    def _keep_alive(self, every_s: float) -> None:
        self._keepalive = self.loop.call_later(every_s, self._ping, every_s)

    def _ping(self, every_s: float) -> None:
        if not self.carrier.is_ended:
            self.carrier.quic.send_ping(0)
            self.transmit_soon(self.carrier)
            self._keep_alive(every_s)


async def connect(
    host: str,
    port: int,
    *,
    trust: Trust,
    alpn: str = ALPN,
    limits: QuicLimits = CLIENT_LIMITS,
    keepalive_s: float = KEEPALIVE_S,
    certificate: CertificateFiles | None = None,
) -> QuicClient:
    """Return a connection whose handshake is done and whose server is trusted.

    With *certificate* we show who we are, when the server asks.

    Raises:
        HandshakeError: None came about at any of the host's addresses.
        OSError: The host's name is unknown.
    """
    loop = asyncio.get_running_loop()
    failure = HandshakeError(0, "the host has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM
    ):
        sock = socket.socket(family, kind, protocol)
        prepare(sock)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = HandshakeError(0, error.strerror or "unreachable")
            continue
        client = _client(
            sock,
            settings=_settings(host, trust, alpn, limits, certificate),
            address=sock.getpeername(),
            trust=trust,
            limits=limits,
        )
        try:
            await client.shake_hands(
                sock.getpeername(),
                timeout_s=limits.handshake_timeout_s,
                keepalive_s=keepalive_s,
            )
        except UntrustedError:
            await client.close()
            raise
        except HandshakeError as error:
            await client.close()
            failure = error
        except asyncio.CancelledError:
            await client.close()
            raise
        else:
            return client
    raise failure


def _settings(
    host: str,
    trust: Trust,
    alpn: str,
    limits: QuicLimits,
    certificate: CertificateFiles | None,
) -> QuicConfiguration:
    settings = configuration(limits, is_client=True, alpn=alpn, datagram_bytes=DATAGRAM_BYTES)
    settings.server_name = host
    if trust.fingerprint or trust.insecure:
        settings.verify_mode = ssl.CERT_NONE  # a pinned one is checked after the handshake
    elif trust.ca_file is not None:
        settings.load_verify_locations(cafile=str(trust.ca_file))
    if certificate is not None:
        settings.load_cert_chain(certificate.certificate, certificate.key)
    return settings


def _client(
    sock: socket.socket,
    *,
    settings: QuicConfiguration,
    address: Address,
    trust: Trust,
    limits: QuicLimits,
) -> QuicClient:
    def carrier(client: QuicClient) -> Carrier:
        quic = BoundedConnection(settings, streams_max=0)
        return Carrier(client, quic, limits, address=address, make_stream=None)

    return QuicClient(sock, carrier, trust)
