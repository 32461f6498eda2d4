"""The QUIC listener: datagrams to their connections, new ones within the limits."""

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from aioquic.buffer import Buffer  # type: ignore[attr-defined] # public, but not in an __all__
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler

from braidmq.transport.certificates import use_chain
from braidmq.transport.door import Place
from braidmq.transport.quic import (
    DATAGRAM_BYTES,
    LOOPBACK_DATAGRAM_BYTES,
    BoundedConnection,
    QuicLimits,
    configuration,
)
from braidmq.transport.quic_endpoint import Address, Endpoint, prepare
from braidmq.transport.quic_reset import Resets
from braidmq.transport.quic_streams import Carrier, MakeStream

CONNECTION_ID_BYTES: Final = 8
LONG_HEADER: Final = 0x80
INITIAL_BYTES_MIN: Final = 1200
"""A smaller first datagram could make us send more than we received: amplification."""


def _anyone(address: str) -> Place:
    return Place(None, address)


class QuicListener(Endpoint):
    """A bound socket that serves; *admit* gives a peer's address its place at the door.

    A connection is closed unless one of its streams is greeted within the handshake timeout.
    """

    def __init__(
        self,
        bound: socket.socket,
        *,
        certificate: Path,
        key: Path,
        make_stream: MakeStream,
        limits: QuicLimits,
        admit: Callable[[str], Place] = _anyone,
        asks_for_certificates: bool = False,
    ) -> None:
        # First what can fail: from `super().__init__` on the loop reads from the socket, which
        # must not be closed without telling the loop.
        resets = Resets(key.read_bytes())
        near = configuration(limits, is_client=False, datagram_bytes=LOOPBACK_DATAGRAM_BYTES)
        far = configuration(limits, is_client=False, datagram_bytes=DATAGRAM_BYTES)
        for one in (near, far):
            use_chain(one, certificate, key)
        prepare(bound)
        super().__init__(bound)
        self.address = bound.getsockname()
        self.carriers: dict[Carrier, None] = {}
        self.handshakes = 0  # in progress
        self.retries = 0  # Retry packets sent
        self.resets = 0  # stateless resets sent, for connections that are unknown here
        self._resets = resets
        self._limits = limits
        self._make_stream = make_stream
        self._admit = admit
        self._asks_for_certificates = asks_for_certificates
        self._by_id: dict[bytes, Carrier] = {}
        self._ids: dict[Carrier, set[bytes]] = {}
        self._tokens = QuicRetryTokenHandler()
        self._is_accepting = True
        self._near = near
        self._far = far

    def __len__(self) -> int:
        return len(self.carriers)

    def renew(self, loaded: QuicConfiguration) -> None:
        """Use the certificate of another configuration for the connections from now on."""
        for one in (self._near, self._far):
            one.certificate = loaded.certificate
            one.certificate_chain = loaded.certificate_chain
            one.private_key = loaded.private_key

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open stay."""
        self._is_accepting = False

    def close_connections(self) -> None:
        """Send what is written on every stream, then close the connections."""
        for carrier in list(self.carriers):
            carrier.drain()

    def abort_connections(self) -> None:
        """Close every connection at once."""
        for carrier in list(self.carriers):
            carrier.close()

    def close(self) -> None:
        """Close every connection and the socket at once."""
        self.stop_accepting()
        self.abort_connections()
        self.close_socket()  # sends the CONNECTION_CLOSE of each first
        for carrier in list(self.carriers):
            carrier.end(0, "")

    # Called by the endpoint.

    def route(self, data: bytes, address: Address, now: float) -> None:
        """Give a datagram to its carrier, or to a new one."""
        if data and not data[0] & LONG_HEADER:
            connection_id = data[1 : 1 + CONNECTION_ID_BYTES]
            carrier = self._by_id.get(connection_id)
            if carrier is not None:
                carrier.receive(data, address, now)
            else:
                self._reset(len(data), connection_id, address, now)
            return
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=CONNECTION_ID_BYTES)
        except ValueError:
            return
        carrier = self._by_id.get(header.destination_cid)
        if carrier is None:
            carrier = self._greet(header, len(data), address)
        if carrier is not None:
            carrier.receive(data, address, now)

    def add_id(self, connection_id: bytes, carrier: Carrier) -> None:
        """Route datagrams with this connection id to the carrier."""
        self._by_id[connection_id] = carrier
        self._ids[carrier].add(connection_id)

    def drop_id(self, connection_id: bytes) -> None:
        """Stop routing them."""
        carrier = self._by_id.pop(connection_id, None)
        if carrier is not None:
            self._ids[carrier].discard(connection_id)

    def handshake_done(self, carrier: Carrier) -> None:
        """Count it as no longer in progress."""
        del carrier
        self.handshakes -= 1

    def carrier_ended(self, carrier: Carrier) -> None:
        """Forget a connection."""
        if not carrier.is_shaken:
            self.handshakes -= 1
        for connection_id in self._ids.pop(carrier):
            del self._by_id[connection_id]
        del self.carriers[carrier]

    def _reset(self, size: int, connection_id: bytes, address: Address, now: float) -> None:
        answer = self._resets.answer(size, connection_id, now)
        if answer is not None:
            self.resets += 1
            self.send(answer, address)

    # New connections.

    def _greet(self, header: QuicHeader, size: int, address: Address) -> Carrier | None:
        if size < INITIAL_BYTES_MIN or header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return None
        versions = self._far.supported_versions
        if header.version not in versions:
            answer = encode_quic_version_negotiation(
                source_cid=header.destination_cid,
                destination_cid=header.source_cid,
                supported_versions=versions,
            )
            self.send(answer, address)
            return None
        if header.packet_type != QuicPacketType.INITIAL or not self._is_accepting:
            return None
        # Under load only peers that have proven their address get a connection. One whose proof
        # is wrong or too old is ignored: it starts again with a new connection.
        original = self._proven(header, address)
        if original is None and self.handshakes >= self._limits.retry_above:
            if not header.token:
                self._retry(header, address)
            return None
        return self._make(header, address, original)

    def _proven(self, header: QuicHeader, address: Address) -> bytes | None:
        """Return the first connection id of a peer that answered a Retry."""
        if not header.token:
            return None
        try:
            return self._tokens.validate_token(
                address=address,
                destination_cid=header.destination_cid,
                token=header.token,
                now=time.monotonic(),
            )
        except ValueError:
            return None

    def _retry(self, header: QuicHeader, address: Address) -> None:
        self.retries += 1
        source_cid = os.urandom(CONNECTION_ID_BYTES)
        token = self._tokens.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=time.monotonic(),
        )
        assert header.version is not None
        retry = encode_quic_retry(
            version=header.version,
            source_cid=source_cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self.send(retry, address)

    def _make(
        self, header: QuicHeader, address: Address, proven: bytes | None
    ) -> Carrier | None:
        host = str(address[0]).removeprefix("::ffff:")
        place = self._admit(host)
        if place.refusal:
            # Told at once, so that the client need not wait for its handshake timeout.
            self.send(_refusal(header), address)
            return None
        is_near = ip_address(host.partition("%")[0]).is_loopback
        quic = BoundedConnection(
            self._near if is_near else self._far,
            streams_max=self._limits.streams_max,
            asks_for_certificate=self._asks_for_certificates,
            reset_token=self._resets.token,
            original_destination_connection_id=proven or header.destination_cid,
            retry_source_connection_id=header.destination_cid if proven else None,
        )
        carrier = Carrier(
            self,
            quic,
            self._limits,
            address=address,
            make_stream=self._make_stream,
            place=place,
        )
        # At once and without a word: a connection that is closed in QUIC's way stays in memory
        # until its last packets cannot be under way any more.
        place.evict = partial(carrier.end, 0, "")
        self.handshakes += 1
        self.carriers[carrier] = None
        self._ids[carrier] = set()
        self.add_id(header.destination_cid, carrier)
        self.add_id(quic.host_cid, carrier)
        return carrier


def _refusal(header: QuicHeader) -> bytes:
    """Return a datagram that closes a connection for which nothing was allocated."""
    assert header.version is not None
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=DATAGRAM_BYTES,
        peer_cid=header.source_cid,
        version=header.version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(
        QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY
    )
    frame.push_uint_var(QuicErrorCode.CONNECTION_REFUSED)
    frame.push_uint_var(QuicFrameType.PADDING)
    frame.push_uint_var(0)
    datagrams, _ = builder.flush()
    return bytes(datagrams[0])
