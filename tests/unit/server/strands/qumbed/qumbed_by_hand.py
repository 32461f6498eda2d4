"""Qumbed streams on an engine whose log, wires and clock are driven by hand."""

import json
from typing import Any

from braidmq.broker.schemas import Schemas
from braidmq.broker.settings import Settings
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.strands.qumbed.gateway import GatewayKey
from braidmq.server.strands.qumbed.link import Link, QumbedOptions, anonymous
from braidmq.server.strands.qumbed.stream import QumbedConnection
from braidmq.testing.disk import FakeDisk
from tests.integration.qumbed.peer import ALICE, ack, public, subscribe
from tests.unit.server.by_hand import Hand, HandWire

WINDOW = 100_000


class HandStream(HandWire):
    """The wire of a stream that is the only one on its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_unsent = 0
        self.written_bytes = 0
        self.is_stopped = False
        self.received = -1  # -1: everything written has arrived
        self.is_full_above = 1 << 60
        self.connection: Connection | None = None  # told when it is full
        self.told_below = -1
        self.drained_with: tuple[int, str] | None = None

    def write(self, data: bytes) -> None:
        self.written_bytes += len(data)
        super().write(data)
        if self.connection is not None and len(self.written) > self.is_full_above:
            self.connection.set_writable(False)

    def received_bytes(self) -> int:
        return self.written_bytes if self.received < 0 else self.received

    def stream_unsent_bytes(self) -> int:
        return self.stream_unsent

    def tell_below(self, size: int) -> None:
        self.told_below = size

    def drain_connection(self, code: int = 0, reason: str = "") -> None:
        self.drained_with = (code, reason)

    def frames(self) -> list[dict[str, Any]]:
        """Return the frames written since the last call."""
        found, data = [], self.written
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            found.append(json.loads(data[4:size]))
            data = data[size:]
        self.written = b""
        return found

    def kinds(self) -> list[int]:
        return [frame["t"] for frame in self.frames()]


class QumbedHand(Hand):
    """The engine; peers are anonymous unless keys are required."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        messages_per_s: int = 0,
        asks_for_key: bool = False,
        is_durable: bool = True,
        ttl_us: int = 0,
    ) -> None:
        super().__init__(settings, messages_per_s=messages_per_s)
        self._limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=messages_per_s)
        self.options = QumbedOptions(
            gateway=GatewayKey(FakeDisk()),
            schemas=Schemas(),
            address="127.0.0.1:6121",
            asks_for_key=asks_for_key,
            is_durable=is_durable,
            window_bytes=WINDOW,
            ttl_us=ttl_us,
        )
        self.left: list[Connection] = []

    def link(self) -> Link:
        """Return a QUIC connection."""
        principal = None if self.options.asks_for_key else anonymous()
        return Link(principal, self._messages_per_s, self.left.append)

    def stream(self, link: Link | None = None) -> tuple[QumbedConnection, HandStream]:
        """Return a stream and its wire."""
        wire = HandStream()
        connection = QumbedConnection(
            self.engine, wire, self._limits, self.options, link or self.link()
        )
        self.engine.connections.add(connection)
        return connection, wire

    def subscribed_stream(self) -> tuple[QumbedConnection, HandStream]:
        """Return a stream that subscribes to `t` for Alice, and its wire."""
        stream, wire = self.stream()
        stream.receive(subscribe("t", public(ALICE)))
        self.settle()
        assert [ack()] == wire.frames()
        return stream, wire

    def settle(self) -> None:
        """Commit until nothing waits for the log."""
        while self.engine.broker.wants_commit() or not self.engine.is_committed():
            self.commit()


def code_of(frame: dict[str, dict[str, str]]) -> str:
    """Return the code of an Error frame."""
    return frame["e"]["code"]
