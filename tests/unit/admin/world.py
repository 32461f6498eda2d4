"""A real broker behind the real HTTP application, without threads, sockets or a disk.

The engine, the log and the API are those that run in production. The disk is fake, time stands
still, and the log does its work at once: on the loop's next turn, or in `settle` where no loop
runs. A world costs a few milliseconds.
"""

import asyncio
import base64
import json
from typing import Final

import msgspec
from starlette.testclient import TestClient

from braidmq.admin.http.app import build_app
from braidmq.admin.messages import ShownMessage
from braidmq.admin.status import Status
from braidmq.base.errors import BraidError
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.server.access.keys import KeyRing, hash_key
from braidmq.server.config.config import Config
from braidmq.server.engine.clock import BrokerClock
from braidmq.server.engine.connection import Limits
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import recover
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.vibe.queues import declared_policy
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk
from braidmq.testing.simulation import InlineLog
from braidmq.wal.disk import Files
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import auth, hello
from tests.unit.admin.queue_broker import put, put_letters
from tests.unit.server.by_hand import HandWire

ADMIN_KEY: Final = "admin-key"
ORDERS_KEY: Final = "orders-key"
ROOT_KEY: Final = "root-key"
PORT_URL: Final = "http://127.0.0.1:9100"


def bearer(key: str) -> dict[str, str]:
    """Return the headers of a request with *key*."""
    return {"Authorization": f"Bearer {key}"}


ADMIN: Final = bearer(ADMIN_KEY)
ORDERS: Final = bearer(ORDERS_KEY)
ROOT: Final = bearer(ROOT_KEY)
"""An administrator that may also publish, to the origins of dead letters for example."""

KEYS: Final[list[dict[str, object]]] = [
    {"name": "ops", "hash": hash_key(ADMIN_KEY), "admin": True},
    {
        "name": "orders",
        "hash": hash_key(ORDERS_KEY),
        "publish": ["in.*"],
        "subscribe": ["orders.*"],
    },
]

ROOT_CONFIG: Final[dict[str, object]] = {
    "name": "root",
    "hash": hash_key(ROOT_KEY),
    "publish": ["*"],
    "admin": True,
}


class EagerLog(InlineLog):
    """A log that works on the loop's next turn, unless it is held."""

    is_held = False

    def append(self, bodies: list[bytes], *, urgent: bool) -> None:
        """Append a batch and commit it."""
        super().append(bodies, urgent=urgent)
        self._soon()

    def read(self, request: ReadRequest) -> None:
        """Read backlog back from the log."""
        super().read(request)
        self._soon()

    def save(
        self, last_id: int, parts: list[bytes], needed_id: int, *, wall_ahead_us: int = 0
    ) -> None:
        """Save a snapshot."""
        super().save(last_id, parts, needed_id, wall_ahead_us=wall_ahead_us)
        self._soon()

    def make_room(self) -> None:
        """Try to restore the reserve."""
        super().make_room()
        self._soon()

    def settle(self) -> None:
        """Do all pending work, and report it."""
        while not self.is_held and (self.jobs or self.reads or self.reports):
            if self.reports:
                self.reports.popleft()()
            else:
                self.do(self.jobs or self.reads)

    def _soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the test calls settle
        loop.call_soon(self.settle)


class World:
    """One broker, and what a test needs to fill and query it."""

    def __init__(
        self, disk: Files | None = None, *, recovered: bool = True, **config: object
    ) -> None:
        self.disk: Files = disk or FakeDisk()
        self.clock = FakeClock()
        self.failures: list[BraidError] = []
        self.config = Config.model_validate({"auth": {"keys": KEYS}, **config})
        keys = KeyRing(self.config.auth.keys, dev=self.config.dev)
        self.status = Status(self.config, keys, self.disk, clock=BrokerClock(self.clock))
        if recovered:
            self._recover(keys)

    def _recover(self, keys: KeyRing) -> None:
        found = recover(self.disk, self.config, now_us=self.clock.now_us(), clock=lambda: 0.0)
        self.wal = self.status.wal = found.wal
        self.engine = self.status.engine = Engine(
            found.broker,
            now_us=self.clock.now_us,
            find_principal=keys.find,
            wake_later=lambda *_: None,
            fail=self.failures.append,
        )
        self.log = EagerLog(found.wal, self.disk, self.engine, self.clock.now_us)
        self.engine.start(self.log)

    def client(self, *, loopback: bool = True, url: str = PORT_URL) -> TestClient:
        """Return a client of the API."""
        app = build_app(self.status, loopback=loopback)
        return TestClient(app, base_url=url, raise_server_exceptions=False)

    def connect(self, key: str = ORDERS_KEY) -> BlipConnection:
        """Return a connection of the Blip strand, authenticated with *key*."""
        limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=0)
        connection = BlipConnection(self.engine, HandWire(), limits)
        self.engine.connections.add(connection)
        connection.receive(hello(1) + auth(2, key))
        return connection

    def settle(self) -> None:
        """End the turn, and let the log finish its work."""
        self.engine.end_turn()
        self.log.settle()

    def publish(self, topic: str, *payloads: bytes, **options: int) -> None:
        """Publish as a strand does, and commit."""
        put(self.engine, topic, *payloads, **options)
        self.settle()

    def bury(self, queue: str, *payloads: bytes, letters: str = "", priority: int = 1) -> None:
        """Make dead letters of messages of *queue*, and commit."""
        put_letters(self.engine, queue, *payloads, letters=letters, priority=priority)
        self.settle()

    def declare(self, *names: str, **options: object) -> None:
        """Declare queues, and commit."""
        queues = self.engine.broker.queues
        for name in names:
            topic = self.engine.broker.topics.get(name)
            assert topic is not None
            given = QueueOptions(**options)  # type: ignore[arg-type]  # as the test gives them
            policy = declared_policy(name, given, queues.new_policy(name))
            queues.declare(topic, policy, self.engine.now_us())
        self.settle()


def shown_bytes(message: ShownMessage) -> bytes:
    """Return the payload that a message shows, to the byte."""
    if message.encoding == "base64":
        return base64.b64decode(str(message.payload_base64), validate=True)
    assert isinstance(message.payload, msgspec.Raw)
    payload = bytes(message.payload)
    return payload if message.encoding == "json" else str(json.loads(payload)).encode()


def names_by_page(client: TestClient, path: str, row: str, limit: int) -> list[list[str]]:
    """Return the names on each page of a list, from the first page to the last."""
    pages: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        params: dict[str, str | int] = {"limit": limit, "after": after}
        page = client.get(path, headers=ADMIN, params=params).json()
        pages.append([one["name"] for one in page[row]])
        after = page["next"]
    return pages
