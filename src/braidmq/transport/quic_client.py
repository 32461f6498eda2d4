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
from braidmq.transport.certificates import CertificateFiles, use_chain
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
"""How often the server is pinged: home routers forget a silent path after 30 s."""

IDLE_TIMEOUT_S: Final = 60.0
"""A server that answers no ping for this long is considered gone."""

BAD_CERTIFICATE: Final = 0x12A
"""The code of a handshake that fails because no CA vouches for the server: TLS's alert 42."""

REFUSALS_MAX: Final = 3
"""Datagrams in a row that the other machine refused before the server is considered gone."""

CLIENT_LIMITS: Final = QuicLimits(idle_timeout_s=IDLE_TIMEOUT_S)

assert KEEPALIVE_S * 2 < IDLE_TIMEOUT_S


class HandshakeError(BraidError, ConnectionError):
    """No connection could be made."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"QUIC handshake failed: {reason} (code {code:#x})")
        self.code = code
        self.reason = reason


class UntrustedError(HandshakeError):
    """The server proved to hold a certificate, but not the pinned one."""


@dataclass(frozen=True)
class Trust:
    """How a client verifies the server; by default a known CA must vouch for it."""

    ca_file: Path | None = None
    fingerprint: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        """Allow only one way."""
        assert sum((self.ca_file is not None, bool(self.fingerprint), self.insecure)) <= 1


class QuicClient(Endpoint):
    """One connection to a server, from :func:`connect`."""

    def __init__(
        self,
        sock: socket.socket,
        settings: QuicConfiguration,
        *,
        trust: Trust,
        limits: QuicLimits,
    ) -> None:
        super().__init__(sock)
        self._peer: Address = sock.getpeername()
        self._trust = trust
        self._timeout_s = limits.handshake_timeout_s
        self._shaken: asyncio.Future[None] = self.loop.create_future()
        self._keepalive: asyncio.TimerHandle | None = None
        self._refusals = 0  # of the other machine, since the last datagram from there
        quic = BoundedConnection(settings, streams_max=0)
        self.carrier = Carrier(self, quic, limits, address=self._peer, make_stream=None)

    def open_stream(self, make: Callable[[StreamWire], Carried]) -> StreamWire:
        """Return a new stream, carried by what *make* makes of it."""
        wire = self.carrier.open_stream()
        wire.carried = make(wire)
        return wire

    async def close(self) -> None:
        """Close the connection at once, and the socket; again does nothing."""
        self.carrier.close()
        self.close_socket()
        self.carrier.end(0, "")

    async def shake_hands(self, keepalive_s: float) -> None:
        """Wait for the server, and check its certificate if one is pinned.

        Raises:
            HandshakeError: It is not there, does not answer, or refuses.
            UntrustedError: It has another certificate.
        """
        self.carrier.quic.connect(self._peer, time.monotonic())
        self.transmit_soon(self.carrier)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._shaken
        except TimeoutError:
            raise HandshakeError(0, "no answer in time") from None
        pinned = self._trust.fingerprint.lower().replace(":", "")
        if pinned and self.carrier.quic.peer_fingerprint() != pinned:
            raise UntrustedError(0, "the certificate's fingerprint is not the pinned one")
        self._keep_alive(keepalive_s)

    # Called by the endpoint.

    def route(self, data: bytes, address: Address, now: float) -> None:
        """Give the carrier its datagram."""
        self._refusals = 0
        if self.carrier.is_shaken and self.carrier.quic.is_reset_by(data):
            self.carrier.end(0, "the server no longer knows this connection")
        else:
            self.carrier.receive(data, address, now)

    def unreachable(self) -> None:
        """Give up if nothing listens; one refusal alone may be a passing network fault."""
        self._refusals += 1
        if not self.carrier.is_shaken or self._refusals >= REFUSALS_MAX:
            self.carrier.end(0, "nothing listens there")

    def handshake_done(self, carrier: Carrier) -> None:
        """Let the caller of :func:`connect` continue."""
        del carrier
        if not self._shaken.done():
            self._shaken.set_result(None)

    def carrier_ended(self, carrier: Carrier) -> None:
        """Wake the waiting callers."""
        if self._keepalive is not None:
            self._keepalive.cancel()
        if not self._shaken.done():
            reason = carrier.end_reason or "refused"
            self._shaken.set_exception(HandshakeError(carrier.end_code, reason))
            self._shaken.exception()  # there may be no waiter left to retrieve it

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
    """Return a connection to a trusted server, after the handshake.

    *certificate* authenticates the client to a server that asks for one.

    Raises:
        HandshakeError: No connection could be made to any of the host's addresses.
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
        settings = _settings(host, trust, alpn, limits, certificate)
        client = QuicClient(sock, settings, trust=trust, limits=limits)
        try:
            await client.shake_hands(keepalive_s)
        except BaseException as error:
            await client.close()
            # A server with the wrong certificate is an answer: trying further addresses would
            # hide it.
            if isinstance(error, UntrustedError) or not isinstance(error, HandshakeError):
                raise
            failure = error  # another address may answer
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
        # A pinned certificate is checked after the handshake.
        settings.verify_mode = ssl.CERT_NONE
    elif trust.ca_file is not None:
        settings.load_verify_locations(cafile=str(trust.ca_file))
    if certificate is not None:
        use_chain(settings, certificate.certificate, certificate.key)
    return settings
