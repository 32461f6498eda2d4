"""The listener of the Arrow Flight endpoint: the log for Spark on other machines.

Flight answers on threads of its own, so the event loop never waits for it. Importing this
module loads pyarrow, which takes memory: the daemon does so only if the endpoint is on.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from ssl import OP_NO_RENEGOTIATION, TLSVersion

import structlog

from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import UNFINISHED_BYTES
from braidmq.server.config.config import FlightConfig, LimitsConfig
from braidmq.server.cursors import Cursors
from braidmq.server.engine.engine import Engine
from braidmq.server.flight.calls import Calls
from braidmq.server.flight.front import Front, Inner
from braidmq.server.flight.reading import Reading
from braidmq.server.flight.service import FlightService
from braidmq.server.flight.visitors import Visitor
from braidmq.server.flight.writing import Writing
from braidmq.server.sink.sink import Sink
from braidmq.server.sink.stages import Stages
from braidmq.server.strands.listeners import OpenConnection
from braidmq.transport.binding import bind_tcp, shown
from braidmq.transport.door import Door
from braidmq.transport.tls import server_context

_log = structlog.get_logger(__name__)


class FlightListener:
    """The endpoint's address and its service, which accepts connections from `start` on."""

    strand = "flight"

    def __init__(
        self,
        config: FlightConfig,
        limits: LimitsConfig,
        *,
        door: Door,
        connections_max: int,
        data_dir: Path,
        find: Callable[[str], Principal | None],
    ) -> None:
        """Bind the address.

        Raises:
            AddressInUseError: The address cannot be bound.
            ConfigError: The certificate or its key cannot be used.
            NoSocketError: There is no room for the socket on which gRPC listens.
        """
        tls = None
        if config.tls_cert is not None and config.tls_key is not None:
            tls = server_context(self.strand, config.tls_cert, config.tls_key)
            tls.minimum_version = TLSVersion.TLSv1_2  # for the clients of gRPC that have no 1.3
            tls.options |= OP_NO_RENEGOTIATION
            tls.set_alpn_protocols(["h2"])
        self._config = config
        self._limits = limits
        self._engine: Engine | None = None
        self._writing: Writing | None = None
        self._bound = bind_tcp(self.strand, config.host, config.port)
        # The scheme is shown only where the default would be wrong.
        port = self._bound.getsockname()[1]
        self.address = ("" if tls is None else "grpc+tls://") + shown(config.host, port)
        # gRPC would write a line to stderr, our log, for each peer that does not speak Flight.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self.calls = Calls(find)
        self.refused: Counter[str] = self.calls.refused  # connections and calls, by reason
        inner: Inner | None = None
        try:
            inner = Inner(data_dir)
            self._service = FlightService(
                f"grpc+unix://{inner.path}", self.calls, Reading(data_dir)
            )
            inner.hide()
        except BaseException:
            self._bound.close()
            if inner is not None:
                inner.remove()
            raise
        self._front = Front(
            inner,
            door=door,
            connections_max=connections_max,
            handshake_timeout_s=limits.handshake_timeout_s,
            memory_bytes=limits.max_memory_bytes,
            tls=tls,
            refused=self.refused,
        )
        self._front.welcome = self._welcome
        self._front.met = self._met
        self.calls.arrived = self._front.arrived

    def __len__(self) -> int:
        return self.calls.count  # clients keep connections between calls

    def attach(self, cursors: Cursors, stages: Stages, sink: Sink) -> None:
        """Set what handles changes; on the event loop, before `start`."""
        self._writing = Writing(cursors, stages, sink)
        self._service.attach(self._writing)

    async def start(self, engine: Engine) -> None:
        """Accept connections, and answer calls."""
        assert self._writing is not None
        self._engine = engine
        self.calls.open()
        self._front.start(self._bound)

    def stop_accepting(self) -> None:
        """Accept no more connections and calls; streams end with their next batch."""
        self._front.stop_accepting()
        self._bound.close()
        self.calls.close()

    def close_connections(self) -> None:
        """Do nothing: calls end by themselves, or are aborted."""

    def abort_connections(self) -> None:
        """Close every connection at once."""
        for visitor in self._front.visitors():
            visitor.relayed.abort()

    def close_idle(self) -> None:
        """End the calls whose peer makes no progress, and close idle connections."""
        now = asyncio.get_running_loop().time()
        if self._config.stall_timeout_s > 0:
            self._end_stalled(now, self._config.stall_timeout_s)
        if self._limits.idle_timeout_s > 0:
            for visitor in self._front.visitors():
                is_idle = visitor.silent_s(now) >= self._limits.idle_timeout_s
                if is_idle and not visitor.calls:
                    self.refused["idle"] += 1
                    visitor.relayed.abort()

    def _end_stalled(self, now: float, limit_s: float) -> None:
        for visitor in self._front.visitors():
            calls = visitor.stalled(now, limit_s)
            if calls and not visitor.relayed.is_aborted:
                self.refused["flight_stalled"] += calls
                _log.warning(
                    f"a Flight call made no progress for {limit_s:g} s, so its connection is "
                    "closed; flight.stall_timeout_s is the limit",
                    calls=calls,
                    principal=visitor.name,
                    peer=visitor.peer,
                )
                visitor.relayed.abort()

    def close_revoked(self) -> int:
        """Close the connections of keys that are gone; return how many."""
        revoked = [
            one
            for one in self._front.visitors()
            if one.principal is not None and one.principal.gone
        ]
        for visitor in revoked:
            visitor.relayed.abort()
        return len(revoked)

    def open_connections(self) -> list[OpenConnection]:
        """Return the open connections."""
        return [
            OpenConnection(
                number=one.number,
                strand=self.strand,
                peer=one.peer,
                principal=one.name,
                since_us=one.since_us,
                subscriptions=0,
                in_bytes=one.relayed.up.moved,
                out_bytes=one.relayed.down.moved,
                close=one.relayed.abort,
            )
            for one in self._front.visitors()
        ]

    def _welcome(self, visitor: Visitor) -> None:
        assert self._engine is not None
        visitor.number = self._engine.next_number()
        visitor.since_us = self._engine.now_us()

    def _met(self, limit: str) -> None:
        if limit == UNFINISHED_BYTES and self._engine is not None:
            self._engine.broker.topics.accounts.refused[limit] += 1

    async def close(self) -> None:
        """Shut the service and its threads down, after its connections were aborted."""
        if self._writing is not None:
            self._writing.close()
        await asyncio.to_thread(self._front.close)
        await asyncio.to_thread(self._service.shutdown)
