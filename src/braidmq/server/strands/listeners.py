"""Listeners: sockets that accept connections, within the limits."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, Protocol

from braidmq.server.config.config import LimitsConfig, ListenerConfig
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.engine import Engine
from braidmq.transport.binding import bind_tcp, shown_address
from braidmq.transport.tcp import TcpWire
from braidmq.transport.tls import TlsLayer, server_context

BACKLOG: Final = 1024
"""Connections that the kernel may queue between two turns of the loop."""

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

    def open_connections(self) -> list[OpenConnection]:
        """Return the open connections; none if the strand cannot list them."""


class ConnectionQuota:
    """Counts connections, in total and per address, over all strands together."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._count = 0
        self._per_ip: Counter[str] = Counter()

    def enter(self, peer_address: str) -> str:
        """Count a connection and return "", or return the name of the limit that it exceeds."""
        if self._count >= self._limits.connections:
            return "connections"
        per_ip = self._limits.connections_per_ip
        if per_ip and self._per_ip[peer_address] >= per_ip:
            return "connections_per_ip"
        self._count += 1
        self._per_ip[peer_address] += 1
        return ""

    def leave(self, peer_address: str) -> None:
        """Count one connection less."""
        self._count -= 1
        self._per_ip[peer_address] -= 1
        if self._per_ip[peer_address] <= 0:  # or the table would keep every address ever seen
            del self._per_ip[peer_address]


class TcpListener:
    """One strand's TCP listener and its connections."""

    def __init__(
        self,
        strand: str,
        config: ListenerConfig,
        limits: LimitsConfig,
        *,
        quota: ConnectionQuota,
        make: MakeConnection,
    ) -> None:
        """Bind the address now, so that an address in use is reported before recovery."""
        self.strand = strand
        self._engine: Engine | None = None
        self._limits = limits
        self._quota = quota
        self._make = make
        self._tls: SSLContext | None = None
        if config.tls_cert is not None and config.tls_key is not None:
            self._tls = server_context(strand, config.tls_cert, config.tls_key)
        self._bound = bind_tcp(strand, config.host, config.port)
        # With the port that was bound: port 0 is any free one.
        self.address = shown_address(self._bound)
        self._server: asyncio.Server | None = None
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
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol, sock=self._bound, backlog=BACKLOG
        )

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        else:
            self._bound.close()  # bound, but recovery was not done: no server owns the socket

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

    def _protocol(self) -> asyncio.Protocol:
        timeout_s = self._limits.handshake_timeout_s
        wire = TcpWire(
            self._accept,
            output_buffer_bytes=self._limits.output_buffer_bytes,
            handshake_timeout_s=timeout_s,
            closed=self._closed,
        )
        if self._tls is None:
            return wire
        return TlsLayer(self._tls, wire, handshake_timeout_s=timeout_s)

    def _accept(self, wire: TcpWire) -> Connection | None:
        refusal = self._quota.enter(wire.peer_address)
        if refusal:
            self.refused[refusal] += 1
            return None
        assert self._engine is not None
        connection = self._make(self._engine, wire, self._connection_limits)
        self._wires[wire] = connection
        self._engine.welcome(connection, self.strand, self._engine.next_number())
        return connection

    def _closed(self, wire: TcpWire) -> None:
        connection = self._wires.pop(wire, None)
        if connection is None or self._engine is None:
            return  # it was refused by the quota, or ended in its TLS handshake
        self._engine.leave(connection)
        if not connection.is_authenticated:
            self.refused["unauthenticated"] += 1
        self._quota.leave(wire.peer_address)
