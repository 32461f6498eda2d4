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
"""More are left in the kernel until others have had their turn."""

DATAGRAM_BYTES_MAX: Final = 65_536

Address = tuple[Any, ...]


class Endpoint:
    """A UDP socket and the carriers behind it; what is new or unknown, a subclass decides."""

    def __init__(self, sock: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.dropped_datagrams = 0  # the kernel had no room: to QUIC they are lost on the way
        self.dropped_writes = 0  # on streams that the peer wants no more of
        self._socket = sock
        self._heard: dict[Carrier, None] = {}
        self._dirty: dict[Carrier, None] = {}
        self._is_scheduled = False
        self._is_in_turn = False
        self._is_open = True
        sock.setblocking(False)  # noqa: FBT003 - the socket's signature
        self.loop.add_reader(sock.fileno(), self._read)

    # What a subclass gives.

    def route(self, data: bytes, address: Address, now: float) -> None:
        """Give a datagram to its carrier."""
        raise NotImplementedError

    def unreachable(self) -> None:
        """Handle that the other end's machine refused a datagram."""

    def add_id(self, connection_id: bytes, carrier: "Carrier") -> None:
        """Route datagrams with this connection id to the carrier."""

    def drop_id(self, connection_id: bytes) -> None:
        """Route them no more."""

    def handshake_done(self, carrier: "Carrier") -> None:
        """Handle that the peer is who it says, and we are."""

    def carrier_ended(self, carrier: "Carrier") -> None:
        """Handle the end of a connection."""

    # What carriers ask for.

    def send(self, data: bytes, address: Address) -> None:
        """Send a datagram, or lose it."""
        try:
            self._socket.sendto(data, address)
        except ConnectionRefusedError:
            self.dropped_datagrams += 1
            self.loop.call_soon(self.unreachable)  # not now: its caller is a carrier
        except OSError:
            self.dropped_datagrams += 1

    def handle_soon(self, carrier: "Carrier") -> None:
        """Have the carrier hand on what came, in this turn or the next."""
        self._heard[carrier] = None
        self._schedule()

    def transmit_soon(self, carrier: "Carrier") -> None:
        """Have the carrier transmit at the end of this turn."""
        self._dirty[carrier] = None
        self._schedule()

    def close_socket(self) -> None:
        """Transmit what is due, then read and send no more."""
        if self._is_open:
            self._turn()
            self.drop_socket()

    def drop_socket(self) -> None:
        """Read and send no more at once, as when the process is killed."""
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
        self._is_in_turn = True
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
            while self._heard or self._dirty:
                while self._heard:
                    self._heard.popitem()[0].handle()
                if self._dirty:
                    self._dirty.popitem()[0].transmit()
        finally:
            self._is_in_turn = False
            if self._heard or self._dirty:
                self._schedule()  # one carrier raised; the others still have their turn


def prepare(sock: socket.socket) -> None:
    """Give a UDP socket large buffers, as far as the kernel allows."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
