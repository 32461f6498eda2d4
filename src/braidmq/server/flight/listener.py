"""The listener of the Arrow Flight endpoint: the log for Spark on other machines.

Flight answers on threads of its own, so the event loop never waits for it. Importing this
module loads pyarrow, which takes memory: the daemon does so only if the endpoint is on.
"""

import asyncio
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from braidmq.base.errors import AddressInUseError
from braidmq.broker.authorize import Principal
from braidmq.server.config.config import FlightConfig
from braidmq.server.cursors import Cursors
from braidmq.server.engine.engine import Engine
from braidmq.server.flight.calls import Calls
from braidmq.server.flight.reading import Reading
from braidmq.server.flight.service import FlightService
from braidmq.server.flight.writing import Writing
from braidmq.server.sink.sink import Sink
from braidmq.server.sink.stages import Stages
from braidmq.server.strands.listeners import OpenConnection
from braidmq.transport.binding import bind_tcp, shown
from braidmq.transport.tls import server_context

SILENCE_S: Final = 60
"""TCP keepalive: a peer that is silent for this long is probed."""

_DESCRIPTORS: Final = Path("/dev/fd")
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class FlightListener:
    """The endpoint's address and its service, which accepts calls from `start` on."""

    strand = "flight"

    def __init__(
        self, config: FlightConfig, data_dir: Path, find: Callable[[str], Principal | None]
    ) -> None:
        """Bind the address.

        Raises:
            AddressInUseError: The address cannot be bound.
            ConfigError: The certificate or its key cannot be used.
        """
        certificates = None
        scheme = "grpc"
        if config.tls_cert is not None and config.tls_key is not None:
            server_context(self.strand, config.tls_cert, config.tls_key)  # for its error texts
            certificates = [(config.tls_cert.read_bytes(), config.tls_key.read_bytes())]
            scheme = "grpc+tls"
        # gRPC does not say why it cannot bind; this raises the reason.
        # Another program may take the port before gRPC binds it; then the text below is used.
        bind_tcp(self.strand, config.host, config.port).close()
        # gRPC would write a line to stderr, our log, for each peer that does not speak Flight.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self.calls = Calls(find)
        self.refused: Counter[str] = self.calls.refused  # calls, by reason
        try:
            self._service = FlightService(
                f"{scheme}://{config.address}",
                self.calls,
                Reading(data_dir),
                certificates=certificates,
            )
        except (pa.ArrowException, OSError):
            reason = "the address cannot be bound"
            raise AddressInUseError(self.strand, config.address, reason) from None
        # The scheme is shown only where the default would be wrong.
        prefix = "" if certificates is None else f"{scheme}://"
        self.address = prefix + shown(config.host, self._service.port)
        self._writing: Writing | None = None
        _notice_vanished_peers(self._service.port)

    def __len__(self) -> int:
        return self.calls.count

    def attach(self, cursors: Cursors, stages: Stages, sink: Sink) -> None:
        """Set what handles changes; on the event loop, before `start`."""
        self._writing = Writing(cursors, stages, sink)
        self._service.attach(self._writing)

    async def start(self, engine: Engine) -> None:  # noqa: ARG002 - see `attach`
        """Answer calls."""
        assert self._writing is not None
        self.calls.open()

    def stop_accepting(self) -> None:
        """Accept no more calls; streams end with their next batch."""
        self.calls.close()

    def close_connections(self) -> None:
        """Do nothing: calls end by themselves, or are aborted."""

    def abort_connections(self) -> None:
        """Close every connection at once."""
        _shut(self._service.port)

    def close_idle(self) -> None:
        """Do nothing: a connection without a call costs next to nothing."""

    def open_connections(self) -> list[OpenConnection]:
        """Return nothing: gRPC does not expose its connections."""
        return []

    async def close(self) -> None:
        """Shut the service and its threads down, after its connections were aborted."""
        if self._writing is not None:
            self._writing.close()
        await asyncio.to_thread(self._service.shutdown)


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Yield our sockets on *port*: the listening one, and the connections to it.

    gRPC does not expose them; the process's file descriptors are the only way to find them. A
    UDP socket may have the same number as a port, and is not ours.
    """
    for path in list(_DESCRIPTORS.iterdir()):
        with suppress(OSError):  # it was closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as found:
                is_tcp = found.family in _FAMILIES and found.type == socket.SOCK_STREAM
                if is_tcp and found.getsockname()[1] == port:
                    yield found


def _notice_vanished_peers(port: int) -> None:
    """Enable keepalive, so that connections to vanished peers end; they inherit it."""
    for listening in sockets_of(port):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * SILENCE_S * 1000)


def _shut(port: int) -> None:
    """Shut the connections to *port*.

    Flight's shutdown waits for its calls, and a call may wait for a peer that reads no more.
    """
    for connection in sockets_of(port):
        with suppress(OSError):
            connection.getpeername()  # fails on the listening socket, which must stay open
            connection.shutdown(socket.SHUT_RDWR)
