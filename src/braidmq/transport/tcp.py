"""TCP: an asyncio protocol that carries the bytes of one connection, whatever they mean."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

from braidmq.transport.binding import shown
from braidmq.transport.door import Place

KEEPALIVE_S: Final = 60
"""Idle time after which the kernel probes whether the peer is still there."""

KEEPALIVE_PROBES: Final = 4
KEEPALIVE_INTERVAL_S: Final = 10
"""A peer that vanished without a word is noticed after 60 + 4 * 10 seconds."""


class Carried(Protocol):
    """The connection that the bytes belong to."""

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer."""

    def finish_input(self) -> None:
        """Handle the end of the peer's half of the stream."""

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Handle that the output buffer is full, or has room again."""

    def lost(self) -> None:
        """Handle the end."""


class TcpWire(asyncio.Protocol):
    """One accepted TCP connection, from accept to close.

    The handshake timeout starts with this object, at the accept, and includes a TLS handshake.
    The wire keeps its *place* at the door until the connection is lost.
    """

    def __init__(
        self,
        accept: Callable[["TcpWire"], Carried],
        place: Place,
        *,
        output_buffer_bytes: int,
        handshake_timeout_s: float,
        closed: Callable[["TcpWire"], None],
    ) -> None:
        self._accept = accept
        self._place = place
        self._closed = closed
        self._output_buffer_bytes = output_buffer_bytes
        self._transport: asyncio.Transport | None = None
        self._carried: Carried | None = None
        self._is_resuming = False
        loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = loop.call_later(
            handshake_timeout_s, self.abort
        )
        self._loop = loop
        self.peer_address: str = ""
        self.peer: str = ""  # with its port
        self.heard_at: float = loop.time()
        self.in_bytes: int = 0
        self.out_bytes: int = 0

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up and make the connection."""
        # uvloop's transports have the methods of asyncio.Transport, but not its name.
        assert hasattr(transport, "set_write_buffer_limits")
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer_address = self._place.address
        if isinstance(peer, tuple) and peer:
            self.peer = shown(self.peer_address, peer[1])
        raw = transport.get_extra_info("socket")
        if raw is not None:
            _configure(raw)
        # asyncio resumes writing at a quarter of this.
        self._transport.set_write_buffer_limits(high=self._output_buffer_bytes)
        self._carried = self._accept(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what the peer sent."""
        self.heard_at = self._loop.time()
        self.in_bytes += len(data)
        if self._carried is not None:
            self._carried.receive(data)

    def eof_received(self) -> bool:
        """Keep our half open: what was sent is still answered."""
        if self._carried is not None:
            self._carried.finish_input()
        return self._transport is not None and not self._transport.is_closing()

    def pause_writing(self) -> None:
        """Pass on that the output buffer is full."""
        if self._carried is not None:
            self._carried.set_writable(False)

    def resume_writing(self) -> None:
        """Pass on that the output buffer has room."""
        if self._carried is not None:
            self._is_resuming = True
            try:
                self._carried.set_writable(True)
            finally:
                self._is_resuming = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end, whatever its cause."""
        del exc
        self._cancel_deadline()
        self._place.leave()
        # First forget both: `lost` may still write or close, which must do nothing now.
        carried = self._carried
        self._carried = None
        self._transport = None
        if carried is not None:
            carried.lost()
        self._closed(self)

    # Called by the connection.

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room."""
        if self._transport is not None:
            self.out_bytes += len(data)
            self._transport.write(data)

    def unsent_bytes(self) -> int:
        """Return how much was written and not yet sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Deliver no more data for a while."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver data again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is written, then close."""
        if self._transport is not None:
            self._end(self._transport.close)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._end(self._transport.abort)

    def _end(self, end: Callable[[], None]) -> None:
        # asyncio's own transport ends twice, with an exception, if it is closed while it calls
        # `resume_writing`: it looks again whether it is closing when that returns.
        if self._is_resuming:
            self._loop.call_soon(end)
        else:
            end()

    def greeted(self, name: str) -> bool:
        """Cancel the handshake timeout: the peer has authenticated, as the principal *name*.

        Returns False if that principal holds too many connections for one more.
        """
        is_placed = self._place.known(name)
        if is_placed:
            self._cancel_deadline()
        return is_placed

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _configure(raw: socket.socket) -> None:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
