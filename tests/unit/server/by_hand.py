"""An engine whose log, wires and clock are driven by hand: the test decides what is durable."""

from typing import Final

from braidmq.base.errors import BraidError, LogFullError
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.broker.delivery.recounts import Recount
from braidmq.broker.settings import Settings
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.engine import Engine
from braidmq.server.strands.blip import BlipConnection
from tests.integration.blip.peer import Frame, auth, hello, parse, publish, subscribe

DISK_FULL: Final = "the disk is full"
DISK_FULL_NACK: Final = "durable publish failed: the disk is full"


class HandLog:
    """A log that commits or fails when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.urgent: list[bool] = []
        self.reads: list[ReadRequest] = []
        self.counts: list[list[Recount]] = []
        self.saved: list[int] = []
        self.room_asked = 0

    def append(self, bodies: list[bytes], *, urgent: bool) -> None:
        self.batches.append(bodies)
        self.urgent.append(urgent)

    def read(self, request: ReadRequest) -> None:
        self.reads.append(request)

    def count(self, wanted: list[Recount]) -> None:
        self.counts.append(wanted)

    def save(
        self, last_id: int, parts: list[bytes], needed_id: int, *, wall_ahead_us: int
    ) -> None:
        self.saved.append(last_id)

    def make_room(self) -> None:
        self.room_asked += 1


class HandWire:
    """A wire that records what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.unsent = 0
        self._reading = True
        self.is_closed = False
        self.is_greeted = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def unsent_bytes(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def greeted(self, name: str) -> bool:
        self.is_greeted = True
        return True

    def take(self) -> list[Frame]:
        """Return the frames written since the last call."""
        taken, self.written = parse(self.written), b""
        return taken


class Hand:
    """The engine and everything around it."""

    def __init__(self, settings: Settings | None = None, *, messages_per_s: int = 0) -> None:
        self.log = HandLog()
        self.failures: list[BraidError] = []
        self.wakes: list[tuple[Connection, int]] = []
        self.now_us = 1_000_000
        self.committed_id = 0
        self._messages_per_s = messages_per_s
        self.engine = Engine(
            Broker(settings or Settings()),
            now_us=lambda: self.now_us,
            find_principal=self._find,
            wake_later=lambda connection, delay_us: self.wakes.append((connection, delay_us)),
            fail=self.failures.append,
        )
        self.engine.start(self.log)

    def connect(self) -> tuple[Connection, HandWire]:
        """Return an authenticated connection and its wire."""
        wire = HandWire()
        limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=self._messages_per_s)
        connection = BlipConnection(self.engine, wire, limits)
        self.engine.connections.add(connection)
        connection.receive(hello(1) + auth(2, "key"))
        wire.take()
        return connection, wire

    def subscriber(self) -> tuple[Connection, HandWire]:
        """Return a connection that subscribes to `t`, and its wire; one message waits for it.

        The subscription is record 1, and the message is record 2.
        """
        connection, wire = self.connect()
        connection.receive(subscribe(1, "t"))
        self.commit()
        connection.receive(publish(2, "t", b"a"))
        self.commit()
        wire.take()
        return connection, wire

    def commit(self) -> None:
        """Commit the batch that was appended last."""
        self.committed_id += len(self.log.batches[-1])
        self.engine.committed(self.committed_id)

    def fail(self, error: BraidError) -> None:
        """Fail the batch that was appended last."""
        self.engine.log_failed(error)

    def fill_disk(self) -> None:
        """Fail the batch that was appended last, because the disk is full."""
        self.fail(LogFullError(DISK_FULL))

    def _find(self, key: str) -> Principal | None:
        return Principal("client", publish=["*"], subscribe=["*"]) if key == "key" else None


def frames(*raw: bytes) -> list[Frame]:
    """Return these frames as `HandWire.take` does."""
    return parse(b"".join(raw))
