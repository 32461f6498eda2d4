"""A source for the admin tests: it says what a test has put into it."""

import asyncio
from collections.abc import Callable

from starlette.testclient import TestClient

from braidmq.admin.connections import ConnectionsPage, SubscriptionsPage
from braidmq.admin.dead_letters import Letter, LettersPage
from braidmq.admin.events import Point
from braidmq.admin.health import Readiness
from braidmq.admin.http.refusals import (
    QueueExistsError,
    UnknownMessageError,
    UnknownQueueError,
    UnknownThingError,
    UnknownTopicError,
)
from braidmq.admin.keys import KeyRow, KeysPage, UserRow
from braidmq.admin.log import LogFacts
from braidmq.admin.messages import StoredMessage, StoredPage
from braidmq.admin.metrics import MetricValues
from braidmq.admin.overview import BrokerFacts
from braidmq.admin.queues import QueuesPage
from braidmq.admin.topics import TopicDetail, TopicSnapshot, TopicsPage, Visible
from braidmq.base.errors import BraidError, CursorError, NotAllowedError
from braidmq.broker.authorize import Principal
from braidmq.server.cursors import CursorState
from braidmq.wire.vibe.queue_options import QueueFacts, QueueOptions

ADMIN_KEY = "admin-key"
ORDERS_KEY = "orders-key"


def bearer(key: str) -> dict[str, str]:
    """Return the headers of whoever has *key*."""
    return {"Authorization": f"Bearer {key}"}


ADMIN = bearer(ADMIN_KEY)
ORDERS = bearer(ORDERS_KEY)


def facts(name: str, *, waiting: int = 0, max_size: int | None = None) -> QueueFacts:
    """Return a queue as it is when little is said about it."""
    return QueueFacts(
        name=name,
        waiting=waiting,
        in_flight=2,
        subscribers=1,
        mode=0,
        max_size=max_size,
        created_us=1_500_000,
        ttl_ms=0,
        dead_letters=True,
        dead_letter_name=f"dlq.{name}",
        overflow=3,
        max_attempts=3,
        durable=True,
    )


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


class FakeQueues:
    """Queues as a dict; those below `dlq.` are of dead letters."""

    def __init__(self) -> None:
        self.rows: dict[str, QueueFacts] = {}
        self.given: list[QueueOptions] = []
        self.refusal: BraidError | None = None
        self.sorts: list[str] = []

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool], sort: str = "name"
    ) -> QueuesPage:
        self.sorts.append(sort)
        all_names = sorted(name for name in self.rows if visible(name))
        names = [name for name in all_names if name > after]
        shown = [self.rows[name] for name in names[:limit]]
        following = names[limit - 1] if len(names) > limit else None
        return QueuesPage(shown, following, len(all_names))

    def facts(self, name: str) -> QueueFacts:
        if name not in self.rows:
            raise UnknownQueueError
        return self.rows[name]

    async def create(self, name: str, options: QueueOptions) -> bool:
        self.given.append(options)
        if self.refusal is not None:
            raise self.refusal
        known = self.rows.get(name)
        if known is not None and known.max_size != options.max_size:
            raise QueueExistsError
        self.rows[name] = facts(name, max_size=options.max_size)
        return known is None

    async def delete(self, name: str) -> None:
        del self.rows[self.facts(name).name]

    async def purge(self, name: str) -> int:
        purged = self.facts(name).waiting
        self.rows[name] = facts(name)
        return purged


class FakeLetters:
    """Dead letters of the queues beside it, in one list each."""

    def __init__(self, queues: FakeQueues) -> None:
        self._queues = queues
        self.kept: dict[str, list[Letter]] = {}
        self.replays: list[tuple[str, int | None]] = []
        self.replayed_alone: list[tuple[str, int]] = []

    def add(self, queue: str, offset: int, payload: bytes = b'{"n": 1}') -> None:
        letters = self.kept.setdefault(queue, [])
        letters.append(
            Letter(
                offset=offset,
                message_id=f"m{offset}",
                reason="rejected",
                death_queue=queue.removeprefix("dlq."),
                attempts=3,
                timestamp_us=2_000_000,
                payload=payload,
                headers={"trace": "t"},
                sealed=False,
            )
        )
        self._queues.rows[queue] = facts(queue, waiting=len(letters))

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool]
    ) -> QueuesPage:
        def shown(name: str) -> bool:
            return name in self.kept and visible(name)

        return await self._queues.page(after=after, limit=limit, visible=shown)

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersPage:
        found = [one for one in self._of(queue) if one.offset >= from_offset]
        following = found[limit].offset if len(found) > limit else None
        return LettersPage(found[:limit], following)

    async def replay(self, queue: str, count: int | None) -> int:
        waiting = len(self._of(queue))
        self.replays.append((queue, count))
        return waiting if count is None else min(count, waiting)

    async def replay_one(self, queue: str, offset: int) -> None:
        if offset not in [letter.offset for letter in self._of(queue)]:
            raise UnknownThingError("no such letter")
        self.replayed_alone.append((queue, offset))

    def _of(self, queue: str) -> list[Letter]:
        if queue not in self.kept:
            raise UnknownQueueError("queue of dead letters")
        return self.kept[queue]


class FakeCursors:
    """Cursors as a list."""

    def __init__(self) -> None:
        self.rows: list[CursorState] = []

    def all(self) -> list[CursorState]:
        return self.rows

    async def remove(self, principal: Principal, name: str) -> None:
        for row in self.rows:
            if row.name == name:
                if row.principal != principal.name and not principal.admin:
                    raise NotAllowedError("use cursor", name)
                self.rows.remove(row)
                return
        raise CursorError(name, "there is none of that name")


class FakeTopics:
    """Topics as a list of names; what is asked about them is kept."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.asked: list[tuple[str, str]] = []  # search, sort

    async def page(
        self, *, after: str, limit: int, search: str, sort: str, visible: Visible | None
    ) -> TopicsPage:
        self.asked.append((search, sort))
        names = sorted(
            name for name in self.names if name > after and (visible is None or visible(name))
        )
        rows = [
            TopicSnapshot(name, messages=1, last_offset=2, subscriptions=3)
            for name in names[:limit]
        ]
        return TopicsPage(rows, rows[-1].name if len(names) > limit else None, len(names))

    async def detail(self, name: str) -> TopicDetail:
        if name not in self.names:
            raise UnknownTopicError
        return TopicDetail(name, 1, 2, 1, 3, is_queue=False, schema=None, last_timestamp=None)


def message(offset: int, payload: bytes, **given: str) -> StoredMessage:
    """Return a message as the log has it when little is said about it."""
    return StoredMessage(
        offset=offset,
        timestamp_us=3_000_000,
        payload=payload,
        message_id="",
        headers=given,
        qos=1,
        priority=1,
        origin="blip",
        sealed=False,
    )


class FakeMessages:
    """Messages of one topic; what is asked and published is kept."""

    def __init__(self) -> None:
        self.kept: list[StoredMessage] = []
        self.next_offset: int | None = None
        self.asked: list[tuple[str, int | None, int | None, int, bool]] = []
        self.published: list[tuple[str, bytes, dict[str, str], int, int]] = []
        self.refusal: BraidError | None = None

    async def page(
        self,
        topic: str,
        *,
        from_offset: int | None,
        time_us: int | None,
        limit: int,
        newest_first: bool,
    ) -> StoredPage:
        self.asked.append((topic, from_offset, time_us, limit, newest_first))
        return StoredPage(self.kept, self.next_offset)

    async def one(self, topic: str, offset: int) -> StoredMessage:
        for kept in self.kept:
            if kept.offset == offset:
                return kept
        raise UnknownMessageError

    async def publish(
        self, topic: str, payload: bytes, *, headers: dict[str, str], qos: int, priority: int
    ) -> int | None:
        if self.refusal is not None:
            raise self.refusal
        self.published.append((topic, payload, headers, qos, priority))
        return len(self.published) if qos else None


class FakeNumbers:
    """Points that a test hands out; when there are no more, that is the end."""

    def __init__(self) -> None:
        self.past: list[Point] = []
        self.coming: list[Point] = []
        self.count = 0
        self.waits = False  # for ever, when there are no more

    def history(self) -> list[Point]:
        return self.past

    async def after(self, count: int) -> tuple[int, Point | None]:
        if count < len(self.coming):
            return count + 1, self.coming[count]
        if self.waits:
            await asyncio.Event().wait()
        return count, None


class FakeConnections:
    """No connection but number 7; whose are asked for, and how many, is kept."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, int]] = []
        self.closed: list[int] = []

    async def connections(
        self, *, after: str, limit: int, of: Principal | None
    ) -> ConnectionsPage:
        self.asked.append((None if of is None else of.name, limit))
        return ConnectionsPage([], None, 0)

    async def subscriptions(
        self, *, after: str, limit: int, search: str, of: Principal | None
    ) -> SubscriptionsPage:
        self.asked.append((None if of is None else of.name, limit))
        return SubscriptionsPage([], None, 0)

    def close(self, connection_id: str) -> int:
        if connection_id != "7":
            raise UnknownThingError("no such connection")
        self.closed.append(7)
        return 7


class FakeLog:
    """An empty log; how often it was checked is kept."""

    def __init__(self) -> None:
        self.verified = 0

    async def facts(self) -> LogFacts:
        return LogFacts(
            segments=[],
            segments_total=0,
            bytes=0,
            committed_id=0,
            fsync="always",
            full=False,
            poisoned=False,
            retention_hours=1.0,
            retention_bytes=0,
            quarantine=[],
        )

    async def verify(self) -> LogFacts:
        self.verified += 1
        return await self.facts()


def some_facts(topics: int = 0) -> BrokerFacts:
    """Return what a broker that has done nothing says of itself."""
    return BrokerFacts(
        version="1.2.3",
        dev=True,
        ready=True,
        reason="",
        started="1970-01-01T00:00:00Z",
        uptime_s=0.0,
        fsync="always",
        topics=topics,
        subscriptions=0,
        queues=0,
        connections={},
        listeners={"blip": "127.0.0.1:5555", "vibe": None},
        tls=["qumbed"],
        messages_published=0,
        messages_delivered=0,
        messages_inflight=0,
        backlog=0,
        dead_letters=0,
        memory_bytes=0,
        memory_limit_bytes=0,
        rss_bytes=0,
        recovery_seconds=0.0,
        log_bytes=0,
        committed_id=0,
    )


class FakeKeyring:
    """Two keys and a user, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []

    async def page(self, *, after: str, limit: int, search: str) -> KeysPage:
        self.asked.append((after, limit, search))
        keys = [
            KeyRow("ops", [], [], admin=True),
            KeyRow("orders", ["in.*"], ["orders.*"], admin=False),
        ]
        return KeysPage(keys, [UserRow("ada", "1970-01-01T00:00:00Z", [])], "user:ada", 9)


class FakeSource:
    """What a broker would say, as plain attributes."""

    def __init__(self) -> None:
        self.ready = Readiness(ready=True)
        self.values = MetricValues()
        self.metrics_asked = 0
        self.version = "1.2.3"
        self.dev = True
        self.broken = False
        self.topics = FakeTopics()
        self.messages = FakeMessages()
        self.numbers = FakeNumbers()
        self.connections = FakeConnections()
        self.log = FakeLog()
        self.queues = FakeQueues()
        self.letters = FakeLetters(self.queues)
        self.cursors = FakeCursors()
        self.keyring = FakeKeyring()
        self.principals = {
            ADMIN_KEY: Principal("ops", publish=[], subscribe=[], admin=True),
            ORDERS_KEY: Principal("orders", publish=["in.*"], subscribe=["orders.*"]),
        }

    def readiness(self) -> Readiness:
        return self.ready

    def metrics(self) -> MetricValues:
        self.metrics_asked += 1
        return self.values

    def principal(self, key: str) -> Principal | None:
        return self.principals.get(key)

    def overview(self) -> BrokerFacts:
        if self.broken:
            raise RuntimeError("a secret inside")
        return some_facts(len(self.topics.names))
