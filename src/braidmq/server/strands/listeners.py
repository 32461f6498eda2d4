"""Listeners: sockets that accept connections, within the limits."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Protocol

from braidmq.server.config.config import LimitsConfig, ListenerConfig
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.engine import Engine
from braidmq.transport.accepting import Acceptor
from braidmq.transport.binding import bind_tcp, shown_address
from braidmq.transport.door import Door, Place
from braidmq.transport.tcp import TcpWire
from braidmq.transport.tls import TlsLayer, server_context

MakeConnection = Callable[[Engine, TcpWire, Limits], Connection]
"""Makes a strand's connection; usually its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConnection:
    """One connection as lists show it, and a function that closes it."""

    number: int
    strand: str
    peer: str
    principal: str | None
    since_us: int
    subscriptions: int
    in_bytes: int | None
    out_bytes: int | None
    close: Callable[[], None]


class Listener(Protocol):
    """A strand's listener as the daemon uses it; its address is bound when it is made."""

    strand: str
    address: str
    refused: Counter[str]  # connections, by reason

    def __len__(self) -> int:
        """Return the number of open connections."""

    async def start(self, engine: Engine) -> None:
        """Accept connections."""

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""

    def close_connections(self) -> None:
        """Send what is written on every connection, then close it."""

    def abort_connections(self) -> None:
        """Close every connection at once."""

    def close_idle(self) -> None:
        """Close the connections that have been silent for too long."""

    def close_revoked(self) -> int:
        """Close those connections of principals that are gone which the engine does not know.

        Return how many.
        """

    def open_connections(self) -> list[OpenConnection]:
        """Return the open connections; none if the strand cannot list them."""


class TcpListener:
    """One strand's TCP listener and its connections."""

    def __init__(
        self,
        strand: str,
        config: ListenerConfig,
        limits: LimitsConfig,
        *,
        door: Door,
        make: MakeConnection,
    ) -> None:
        """Bind the address now, so that an address in use is reported before recovery."""
        self.strand = strand
        self._engine: Engine | None = None
        self._limits = limits
        self._door = door
        self._make = make
        self._tls: SSLContext | None = None
        if config.tls_cert is not None and config.tls_key is not None:
            self._tls = server_context(strand, config.tls_cert, config.tls_key)
        self._bound = bind_tcp(strand, config.host, config.port)
        # With the port that was bound: port 0 is any free one.
        self.address = shown_address(self._bound)
        self._acceptor: Acceptor | None = None
        self._wires: dict[TcpWire, Connection] = {}
        self.refused: Counter[str] = Counter()  # by reason
        self._connection_limits = Limits(
            output_buffer_bytes=limits.output_buffer_bytes, messages_per_s=limits.messages_per_s
        )

    def __len__(self) -> int:
        return len(self._wires)

    async def start(self, engine: Engine) -> None:
        """Accept connections."""
        self._engine = engine
        self._acceptor = Acceptor(
            self._bound, admit=self._admit, make=self._protocol, short=self._door.shed
        )
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._acceptor is not None:
            self._acceptor.close()
        else:
            self._bound.close()  # bound, but recovery was not done: nothing owns the socket

    def close_connections(self) -> None:
        """Send what is written on every connection, then close it."""
        for wire in list(self._wires):
            wire.close()

    def abort_connections(self) -> None:
        """Close every connection at once."""
        for wire in list(self._wires):
            wire.abort()

    def close_idle(self) -> None:
        """Close the connections that have been silent for too long."""
        if self._limits.idle_timeout_s > 0:
            heard_since = asyncio.get_running_loop().time() - self._limits.idle_timeout_s
            for wire in list(self._wires):  # a copy: closing removes entries
                if wire.heard_at < heard_since:
                    self.refused["idle"] += 1
                    if wire.unsent_bytes():
                        wire.abort()  # a peer that does not read would keep it from closing
                    else:
                        wire.close()

    def close_revoked(self) -> int:
        """Return 0: the engine knows every connection, and closes it."""
        return 0

    def renew(self, tls: SSLContext) -> None:
        """Use another certificate for the connections from now on."""
        if self._tls is not None:  # with or without TLS: that is for a restart
            self._tls = tls

    def open_connections(self) -> list[OpenConnection]:
        """Return the open connections."""
        return [
            OpenConnection(
                number=connection.number,
                strand=self.strand,
                peer=wire.peer,
                principal=None if connection.principal is None else connection.principal.name,
                since_us=connection.since_us,
                subscriptions=len(connection.consumers) + len(connection.queue_consumers),
                in_bytes=wire.in_bytes,
                out_bytes=wire.out_bytes,
                close=wire.abort,
            )
            for wire, connection in self._wires.items()
        ]

    def _admit(self, peer_address: str) -> Place:
        place = self._door.enter(peer_address)
        if place.refusal:
            self.refused[place.refusal] += 1
        return place

    def _protocol(self, place: Place) -> asyncio.Protocol:
        timeout_s = self._limits.handshake_timeout_s
        wire = TcpWire(
            self._accept,
            place,
            output_buffer_bytes=self._limits.output_buffer_bytes,
            handshake_timeout_s=timeout_s,
            closed=self._closed,
        )
        if self._tls is None:
            return wire
        return TlsLayer(self._tls, wire, handshake_timeout_s=timeout_s)

    def _accept(self, wire: TcpWire) -> Connection:
        assert self._engine is not None
        connection = self._make(self._engine, wire, self._connection_limits)
        self._wires[wire] = connection
        self._engine.welcome(connection, self.strand, self._engine.next_number())
        return connection

    def _closed(self, wire: TcpWire) -> None:
        connection = self._wires.pop(wire, None)
        if connection is None or not connection.is_authenticated:
            self.refused["unauthenticated"] += 1
        if connection is not None and self._engine is not None:  # it came through TLS
            self._engine.leave(connection)
