"""A QUIC connection with bounds: aioquic's, with our own flow control in both directions.

aioquic lets its receive windows grow with whatever arrives, and buffers whatever is written.
Here windows grow only with what was consumed, and unacknowledged output can be measured. This
is the only module that overrides or reads private parts of aioquic; each such place has a test
that fails if a new version changes it. No socket and no event loop here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Alert, verify_certificate
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import InvalidVersion
from cryptography.x509.oid import NameOID
from OpenSSL.crypto import Error as OpenSSLError

from braidmq.base.limits import KIB, MIB
from braidmq.transport.certificates import fingerprint
from braidmq.transport.quic_reset import is_reset

ALPN: Final = "qumbed/1"

DATAGRAM_BYTES: Final = 1200
"""Every path carries datagrams of this size (RFC 9000)."""

LOOPBACK_DATAGRAM_BYTES: Final = 1452
"""Every implementation accepts this; on the loopback no path limits it."""

# aioquic logs a line for each broken connection, so that any peer could flood the log.
logging.getLogger("quic").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class QuicLimits:
    """Bounds of the connections of a listener or a client."""

    output_buffer_bytes: int = MIB
    """Written and not acknowledged, per connection; above it, streams are not writable."""
    stream_window_bytes: int = 256 * KIB
    """Received and not consumed, per stream."""
    connection_window_bytes: int = MIB
    """Received and not consumed, per connection."""
    streams_max: int = 128
    """Streams that a client may have open on one connection."""
    handshake_timeout_s: float = 10.0
    """From the first datagram until a stream is greeted."""
    idle_timeout_s: float = 300.0
    retry_above: int = 64
    """Handshakes in progress from which on clients must prove their address first (Retry)."""


def configuration(
    limits: QuicLimits, *, is_client: bool, alpn: str = ALPN, datagram_bytes: int
) -> QuicConfiguration:
    """Return the settings that both ends share: version 1, one ALPN, our windows."""
    return QuicConfiguration(
        alpn_protocols=[alpn],
        idle_timeout=limits.idle_timeout_s,
        is_client=is_client,
        max_data=limits.connection_window_bytes,
        max_stream_data=limits.stream_window_bytes,
        max_datagram_size=datagram_bytes,
        supported_versions=[QuicProtocolVersion.VERSION_1],
    )


class BoundedConnection(QuicConnection):
    """A QUIC connection whose windows grow only with what was consumed.

    It issues no session tickets, since it has no handler for them; so there is no 0-RTT.
    """

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        streams_max: int,
        asks_for_certificate: bool = False,
        reset_token: Callable[[bytes], bytes] | None = None,
        **identity: Any,  # noqa: ANN401 - aioquic's own
    ) -> None:
        self._asks_for_certificate = asks_for_certificate
        self._reset_token = reset_token
        super().__init__(configuration=configuration, **identity)
        self._give_reset_tokens()
        self._stream_window = configuration.max_stream_data
        self._window = configuration.max_data
        self._consumed: dict[int, int] = {}  # offset, for each stream that is read
        # Clients open bidirectional streams; no other streams exist.
        opened = 0 if configuration.is_client else streams_max
        for limit, value in (
            (self._local_max_streams_bidi, opened),
            (self._local_max_streams_uni, 0),
        ):
            limit.value = limit.sent = value

    # Receiving.

    def start_reading(self, stream_id: int) -> None:
        """Count the stream's input as unread until it is consumed."""
        self._consumed[stream_id] = 0

    def consume(self, stream_id: int, size: int) -> None:
        """Move the stream's window by *size* bytes; the peer learns once half of it is free."""
        if stream_id not in self._consumed:
            return
        consumed = self._consumed[stream_id] = self._consumed[stream_id] + size
        stream = self._streams.get(stream_id)
        if stream is None or stream.receiver.is_finished:
            return
        wanted = consumed + self._stream_window
        # At half, not at once: each new limit is a frame in a datagram.
        if wanted - stream.max_stream_data_local >= self._stream_window // 2:
            stream.max_stream_data_local = wanted

    def stop_reading(self, stream_id: int) -> None:
        """Ask the peer, once, to stop sending; what still arrives is dropped."""
        was_read = self._consumed.pop(stream_id, None) is not None
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.receiver.is_finished:
            stream.receiver._buffer.clear()  # noqa: SLF001 - a reset leaves what was out of order
        elif was_read:
            self.stop_stream(stream_id, 0)

    def unread_bytes(self) -> int:
        """Return how much was received, out of order too, and not consumed."""
        total = 0
        for stream_id, stream in self._streams.items():
            receiver = stream.receiver
            consumed = self._consumed.get(stream_id)
            if consumed is not None:
                total += receiver.highest_offset - consumed
            elif not receiver.is_finished:
                total += receiver.highest_offset - receiver.starting_offset()
        return total

    def _write_connection_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace
    ) -> None:
        limit = self._local_max_data
        used = limit.used
        # `unread_bytes` walks over all streams, so it is asked only when the window runs low.
        if limit.value - used <= self._window // 2:
            wanted = used + self._window - self.unread_bytes()
            if wanted - limit.value >= self._window // 4:
                limit.value = wanted
        # aioquic would double a window that is half used, so show it an unused one.
        limit.used = 0
        try:
            super()._write_connection_limits(builder, space)
        finally:
            limit.used = used

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        receiver = stream.receiver
        if (
            stream.max_stream_data_local_sent == stream.max_stream_data_local
            or receiver.is_finished
        ):
            return
        highest = receiver.highest_offset
        receiver.highest_offset = 0  # as for the connection's window
        try:
            super()._write_stream_limits(builder, space, stream)
        finally:
            receiver.highest_offset = highest

    # Sending.

    def send(self, stream_id: int, data: bytes, *, ends: bool = False) -> bool:
        """Send on the stream, and end it if *ends*; return False if it accepts nothing more.

        A peer's STOP_SENDING resets the stream before we get the event.
        """
        try:
            self.send_stream_data(stream_id, data, end_stream=ends)
        except (RuntimeError, ValueError):  # reset; both halves ended
            return False
        return True

    def unacknowledged_bytes(self, stream_id: int) -> int:
        """Return how much was written to the stream and not acknowledged."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return len(stream.sender._buffer)  # noqa: SLF001 - see the top

    def received_bytes(self, stream_id: int) -> int:
        """Return how much output has arrived without a gap; -1 if the stream is forgotten."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return -1
        return stream.sender._buffer_start  # noqa: SLF001 - see the top

    def is_sent(self, stream_id: int) -> bool:
        """Tell whether all output and its end, or its reset, is acknowledged."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    def discard_output(self, stream_id: int) -> None:
        """Reset our half of the stream, and free what was not sent."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.sender.is_finished:
            self.reset_stream(stream_id, 0)
            stream.sender._buffer.clear()  # noqa: SLF001 - see the top

    def is_forgotten(self, stream_id: int) -> bool:
        """Tell whether both halves of the stream have ended."""
        return stream_id not in self._streams

    # The peer.

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        self._give_reset_tokens()

    def _give_reset_tokens(self) -> None:
        # aioquic's are random, so they could not be recomputed after a restart.
        if self._reset_token is not None:
            for one in self._host_cids:
                one.stateless_reset_token = self._reset_token(one.cid)

    def is_reset_by(self, data: bytes) -> bool:
        """Tell whether this datagram is a server's stateless reset of this connection."""
        known = [self._peer_cid, *self._peer_cid_available]
        return is_reset(data, [one.stateless_reset_token for one in known])

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        # Only the switch is private: aioquic supports client certificates, but verifies none.
        self.tls._request_client_certificate = self._asks_for_certificate  # noqa: SLF001 - see the top

    def peer_name(self, authority: bytes) -> str:
        """Return the peer's common name if *authority* vouches for its certificate, else "".

        *authority* is what `certificates.load_authority` returns.
        """
        certificate = self.tls._peer_certificate  # noqa: SLF001 - see the top
        chain = self.tls._peer_certificate_chain  # noqa: SLF001 - see the top
        if certificate is None:
            return ""
        try:
            verify_certificate(certificate, chain, cadata=authority)
            # A certificate is parsed as it is read, so that a malformed one fails here.
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (Alert, ValueError, UnsupportedAlgorithm, InvalidVersion, OpenSSLError):
            return ""
        return str(names[0].value) if len(names) == 1 else ""

    def peer_fingerprint(self) -> str:
        """Return the fingerprint of the peer's certificate, or "" if it has shown none."""
        certificate = self.tls._peer_certificate  # noqa: SLF001 - see the top
        return (
            "" if certificate is None else fingerprint(certificate.public_bytes(Encoding.DER))
        )
