"""Vibe connections on an engine whose log, wires and clock are driven by hand."""

from typing import Final

from braidmq.broker.authorize import Principal
from braidmq.broker.settings import Settings
from braidmq.server.engine.connection import Limits
from braidmq.server.strands.vibe.connection import VibeConnection
from braidmq.server.strands.vibe.gate import VibeOptions
from tests.integration.vibe.peer import ERROR, Message
from tests.integration.vibe_peer import BODY_MAX, connect, parse, publish, subscribe
from tests.unit.server.by_hand import DISK_FULL, Hand, HandWire

DISK_FULL_ERROR: Final = ("SERVER_ERROR", DISK_FULL)


class VibeHand(Hand):
    """The engine, with an administrator's key `key` and a key `less` for `open*` only."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        messages_per_s: int = 0,
        auto_create: bool = True,
        body_max: int = BODY_MAX,
    ) -> None:
        super().__init__(settings, messages_per_s=messages_per_s)
        self._limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=messages_per_s)
        self._options = VibeOptions(
            max_message_bytes=body_max, auto_create=auto_create, version="9"
        )
        self._numbers = 0

    def unauthenticated(self) -> tuple[VibeConnection, HandWire]:
        """Return a connection that has sent nothing, and its wire."""
        wire = HandWire()
        self._numbers += 1
        connection = VibeConnection(
            self.engine, wire, self._limits, self._options, self._numbers
        )
        self.engine.connections.add(connection)
        return connection, wire

    def vibe(self, **headers: str) -> tuple[VibeConnection, HandWire]:
        """Return an authenticated connection and its wire."""
        connection, wire = self.unauthenticated()
        connection.receive(connect(**(headers or {"authToken": "key"})))
        assert ["c"] == [reply.id for reply in taken(wire)]
        assert connection.is_authenticated
        return connection, wire

    def consumer(self, message_id: str, queue: str = "q") -> tuple[VibeConnection, HandWire]:
        """Return a connection that subscribes to a queue and holds a message, and its wire."""
        connection, wire = self.vibe()
        connection.receive(subscribe("1", queue))
        self.settle()
        connection.receive(publish(message_id, queue))
        self.settle()
        return connection, wire

    def settle(self) -> None:
        """Commit until nothing waits for the log."""
        while self.engine.broker.wants_commit() or not self.engine.is_committed():
            self.commit()

    def _find(self, key: str) -> Principal | None:
        if key == "less":
            return Principal("less", publish=["open*"], subscribe=["open*"])
        if key == "key":
            return Principal("all", publish=["*"], subscribe=["*"], admin=True)
        return None


def taken(wire: HandWire) -> list[Message]:
    """Return the frames written since the last call."""
    found, wire.written = parse(wire.written), b""
    return found


def kinds(wire: HandWire) -> list[tuple[int, str]]:
    """Return type and id of the frames written since the last call."""
    return [(frame.kind, frame.id) for frame in taken(wire)]


def errors(wire: HandWire) -> list[tuple[str, str, str]]:
    """Return id, code and text of the frames written, which must be Errors."""
    found = taken(wire)
    assert {ERROR} >= {frame.kind for frame in found}, found
    return [(frame.id, *frame.error) for frame in found]
