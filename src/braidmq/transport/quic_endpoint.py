"""A UDP socket that QUIC connections share, and the turn in which they are read and sent."""

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.limits import MIB

if TYPE_CHECKING:
    from braidmq.transport.quic_streams import Carrier

SOCKET_BUFFER_BYTES: Final = 4 * MIB
DATAGRAMS_PER_TURN: Final = 64
"""Further ones stay in the kernel until other tasks have run."""

DATAGRAM_BYTES_MAX: Final = 65_536

Address = tuple[Any, ...]


class Endpoint:
    """A UDP socket and its carriers; a subclass decides about unknown datagrams."""

    def __init__(self, sock: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.dropped_datagrams = 0  # the kernel refused them; QUIC treats them as lost
        self.dropped_writes = 0  # to streams that the peer has stopped
        self._socket = sock
        self._heard: dict[Carrier, None] = {}
        self._dirty: dict[Carrier, None] = {}
        self._is_scheduled = False
        self._is_in_turn = False
        self._is_open = True
        sock.setblocking(False)  # noqa: FBT003 - the socket's signature
        self.loop.add_reader(sock.fileno(), self._read)

    # Implemented by subclasses.

    def route(self, data: bytes, address: Address, now: float) -> None:
        """Give a datagram to its carrier."""
        raise NotImplementedError

    def unreachable(self) -> None:
        """Handle that the other machine refused a datagram."""

    def add_id(self, connection_id: bytes, carrier: "Carrier") -> None:
        """Route datagrams with this connection id to the carrier."""

    def drop_id(self, connection_id: bytes) -> None:
        """Stop routing them."""

    def handshake_done(self, carrier: "Carrier") -> None:
        """Handle the end of the handshake."""

    def carrier_ended(self, carrier: "Carrier") -> None:
        """Handle the end of a connection."""

    # Called by carriers.

    def send(self, data: bytes, address: Address) -> None:
        """Send a datagram, or drop it: QUIC retransmits."""
        try:
            self._socket.sendto(data, address)
        except ConnectionRefusedError:
            self.dropped_datagrams += 1
            self.loop.call_soon(self.unreachable)  # later: the caller is a carrier in its turn
        except OSError:
            self.dropped_datagrams += 1

    def handle_soon(self, carrier: "Carrier") -> None:
        """Have the carrier pass on what it received, in this turn or the next."""
        self._heard[carrier] = None
        self._schedule()

    def transmit_soon(self, carrier: "Carrier") -> None:
        """Have the carrier transmit at the end of this turn."""
        self._dirty[carrier] = None
        self._schedule()

    def close_socket(self) -> None:
        """Transmit what is due, then close the socket."""
        if self._is_open:
            self._turn()
            self.drop_socket()

    def drop_socket(self) -> None:
        """Close the socket at once, as if the process were killed."""
        self._is_open = False
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()

    # The turn.

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_in_turn:
            self._is_scheduled = True
            self.loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._is_scheduled = False
        if self._is_open:
            self._turn()

    def _read(self) -> None:
        self._is_in_turn = True  # the turn below covers all of it: nothing has to be scheduled
        receive, now = self._socket.recvfrom, time.monotonic()
        try:
            for _ in range(DATAGRAMS_PER_TURN):
                data, address = receive(DATAGRAM_BYTES_MAX)
                self.route(data, address, now)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.unreachable()
        finally:
            self._is_in_turn = False
        self._turn()

    def _turn(self) -> None:
        if self._is_in_turn:
            return
        self._is_in_turn = True
        try:
            # Each may give others something to do: a message that one connection published is
            # delivered on the next. Input comes first, so that fewer datagrams carry more.
            while self._heard or self._dirty:
                while self._heard:
                    self._heard.popitem()[0].handle()
                if self._dirty:
                    self._dirty.popitem()[0].transmit()
        finally:
            self._is_in_turn = False
            if self._heard or self._dirty:
                self._schedule()  # one carrier raised; the others must still have their turn


def prepare(sock: socket.socket) -> None:
    """Give a UDP socket large buffers, as far as the kernel allows."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
