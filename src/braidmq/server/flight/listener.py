"""The listener of the Arrow Flight endpoint: the log for Spark on other machines.

Flight answers on threads of its own, so that the event loop waits for none of it. To import
this takes pyarrow, and its memory: the daemon does it only when the endpoint is on.
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
from braidmq.server.strands.listeners import Line
from braidmq.transport.binding import bind_tcp
from braidmq.transport.tls import server_context

SILENCE_S: Final = 60
"""A peer that says nothing for so long is asked whether it is there."""

_DESCRIPTORS: Final = Path("/dev/fd")
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class FlightListener:
    """The endpoint's address and its service, which answers from `start` on."""

    strand = "flight"

    def __init__(
        self, config: FlightConfig, data_dir: Path, find: Callable[[str], Principal | None]
    ) -> None:
        """Take the address.

        Raises:
            AddressInUseError: It cannot be had.
            ConfigError: The certificate or its key cannot be used.
        """
        certificates = None
        scheme = "grpc"
        if config.tls_cert is not None and config.tls_key is not None:
            server_context(self.strand, config.tls_cert, config.tls_key)  # says what is wrong
            certificates = [(config.tls_cert.read_bytes(), config.tls_key.read_bytes())]
            scheme = "grpc+tls"
        # gRPC does not say why it cannot bind; this does.
        bind_tcp(self.strand, config.host, config.port).close()
        # gRPC writes to stderr about peers that are no Flight clients; that is not our log.
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
        host = f"[{config.host}]" if ":" in config.host else config.host
        # A scheme stands before it only where one would guess wrong.
        prefix = "" if certificates is None else f"{scheme}://"
        self.address = f"{prefix}{host}:{self._service.port}"
        self._writing: Writing | None = None
        _notice_vanished_peers(self._service.port)

    def __len__(self) -> int:
        return self.calls.count

    def attach(self, cursors: Cursors, stages: Stages, sink: Sink) -> None:
        """Know what changes something; on the event loop, before `start`."""
        self._writing = Writing(cursors, stages, sink)
        self._service.attach(self._writing)

    async def start(self, engine: Engine) -> None:  # noqa: ARG002 - see `attach`
        """Answer calls."""
        assert self._writing is not None
        self.calls.open()

    def stop_accepting(self) -> None:
        """Take no more calls; streams end with their next batch."""
        self.calls.close()

    def close_connections(self) -> None:
        """Nothing: calls end by themselves, or are aborted."""

    def abort_connections(self) -> None:
        """Close every connection at once."""
        _shut(self._service.port)

    def close_idle(self) -> None:
        """Nothing: a connection without a call costs next to nothing."""

    def lines(self) -> list[Line]:
        """Nothing: gRPC keeps its connections to itself."""
        return []

    async def close(self) -> None:
        """End the service, after its connections were aborted; its threads are gone then."""
        if self._writing is not None:
            self._writing.close()
        await asyncio.to_thread(self._service.shutdown)


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Yield our sockets that have *port*: the one that listens, and the connections to it.

    gRPC keeps them to itself; there is no other way to them than by their descriptors.
    """
    for path in list(_DESCRIPTORS.iterdir()):
        with suppress(OSError):  # it is gone meanwhile
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as found:
                if found.family in _FAMILIES and found.getsockname()[1] == port:
                    yield found


def _notice_vanished_peers(port: int) -> None:
    """Have connections end whose peers are gone without a word; they inherit it."""
    for listening in sockets_of(port):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * SILENCE_S * 1000)


def _shut(port: int) -> None:
    """Shut the connections to *port*.

    Flight, when it is told to end, waits for its calls, and a call may wait for a peer that
    reads no more.
    """
    for connection in sockets_of(port):
        with suppress(OSError):
            connection.getpeername()  # the one that listens has no peer
            connection.shutdown(socket.SHUT_RDWR)
