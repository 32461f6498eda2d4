"""Listeners: sockets that accept connections, within the limits."""

import asyncio
import socket
from collections import Counter
from ssl import SSLContext
from typing import Final

from braidmq.base.errors import AddressInUseError
from braidmq.server.config import BlipConfig, LimitsConfig
from braidmq.server.connection import Connection
from braidmq.server.engine import Engine
from braidmq.server.host import Limits
from braidmq.transport.tcp import TcpWire
from braidmq.transport.tls import TlsLayer, server_context

BACKLOG: Final = 1024
"""Connections that the kernel may hold for us between two turns of the loop."""


def bind(strand: str, host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet, or raise AddressInUseError."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise AddressInUseError(strand, shown, _reason(error)) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)  # noqa: FBT003 - the socket's signature
    except OSError as error:
        bound.close()
        raise AddressInUseError(strand, shown, _reason(error)) from None
    return bound


def shown_address(bound: socket.socket) -> str:
    """Return host and port of a bound socket as text."""
    name = bound.getsockname()
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class BlipListener:
    """The Blip strand's listener and its connections."""

    def __init__(self, config: BlipConfig, limits: LimitsConfig) -> None:
        """Bind the address, so that one that is taken is known before recovery."""
        self._engine: Engine | None = None
        self._limits = limits
        self._tls: SSLContext | None = None
        if config.tls_cert is not None and config.tls_key is not None:
            self._tls = server_context("blip", config.tls_cert, config.tls_key)
        self._bound = bind("blip", config.host, config.port)
        self.address = shown_address(self._bound)
        self._server: asyncio.Server | None = None
        self._wires: dict[TcpWire, Connection] = {}
        self._per_ip: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
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
            self._bound.close()

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
            for wire in list(self._wires):
                if wire.heard_at < heard_since:
                    self.refused["idle"] += 1
                    if wire.unsent_bytes():
                        wire.abort()  # a peer that reads no more would never let it close
                    else:
                        wire.close()

    def _protocol(self) -> asyncio.Protocol:
        wire = self._wire()
        if self._tls is None:
            return wire
        timeout_s = self._limits.handshake_timeout_s
        return TlsLayer(self._tls, wire, handshake_timeout_s=timeout_s)

    def _wire(self) -> TcpWire:
        return TcpWire(
            self._accept,
            output_buffer_bytes=self._limits.output_buffer_bytes,
            handshake_timeout_s=self._limits.handshake_timeout_s,
            closed=self._closed,
        )

    def _accept(self, wire: TcpWire) -> Connection | None:
        if len(self._wires) >= self._limits.connections:
            self.refused["connections"] += 1
            return None
        per_ip = self._limits.connections_per_ip
        if per_ip and self._per_ip[wire.peer_address] >= per_ip:
            self.refused["connections_per_ip"] += 1
            return None
        assert self._engine is not None
        connection = Connection(self._engine, wire, self._connection_limits)
        self._wires[wire] = connection
        self._per_ip[wire.peer_address] += 1
        self._engine.connections.add(connection)
        return connection

    def _closed(self, wire: TcpWire) -> None:
        connection = self._wires.pop(wire, None)
        if connection is None or self._engine is None:
            return
        self._engine.connections.discard(connection)
        if not connection.is_authenticated:
            self.refused["unauthenticated"] += 1
        self._per_ip[wire.peer_address] -= 1
        if self._per_ip[wire.peer_address] <= 0:
            del self._per_ip[wire.peer_address]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
