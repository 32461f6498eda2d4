"""A source for the admin tests: it says what a test has put into it."""

from collections.abc import Callable

from braidmq.admin.app import TopicSnapshot, TopicsPage
from braidmq.admin.cursors import CursorSnapshot
from braidmq.admin.dead_letters import Letter, LettersPage
from braidmq.admin.health import Readiness
from braidmq.admin.metrics import MetricValues
from braidmq.admin.queues import QueuesPage
from braidmq.admin.refusals import QueueExistsError, RefusedError, UnknownQueueError
from braidmq.broker.authorize import Principal
from braidmq.wire.vibe.queue_options import QueueFacts, QueueOptions

ADMIN_KEY = "admin-key"
ORDERS_KEY = "orders-key"


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


class FakeQueues:
    """Queues as a dict; those below `dlq.` are of dead letters."""

    def __init__(self) -> None:
        self.rows: dict[str, QueueFacts] = {}
        self.given: list[QueueOptions] = []
        self.refusal: RefusedError | None = None

    def page(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> QueuesPage:
        names = sorted(name for name in self.rows if name > after and visible(name))
        return QueuesPage([self.rows[name] for name in names[:limit]], len(names) > limit)

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

    def add(self, queue: str, offset: int) -> None:
        letters = self.kept.setdefault(queue, [])
        letters.append(
            Letter(
                offset=offset,
                message_id=f"m{offset}",
                reason="rejected",
                death_queue=queue.removeprefix("dlq."),
                attempts=3,
                timestamp_us=2_000_000,
                size=7,
                headers={"trace": "t"},
            )
        )
        self._queues.rows[queue] = facts(queue, waiting=len(letters))

    def page(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> QueuesPage:
        def shown(name: str) -> bool:
            return name in self.kept and visible(name)

        return self._queues.page(after=after, limit=limit, visible=shown)

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersPage:
        found = [one for one in self._of(queue) if one.offset >= from_offset]
        following = found[limit].offset if len(found) > limit else None
        return LettersPage(found[:limit], following)

    async def replay(self, queue: str, count: int | None) -> int:
        waiting = len(self._of(queue))
        self.replays.append((queue, count))
        return waiting if count is None else min(count, waiting)

    def _of(self, queue: str) -> list[Letter]:
        if queue not in self.kept:
            raise UnknownQueueError("queue of dead letters")
        return self.kept[queue]


class FakeCursors:
    """Cursors as a list."""

    def __init__(self) -> None:
        self.rows: list[CursorSnapshot] = []

    def all(self) -> list[CursorSnapshot]:
        return self.rows


class FakeSource:
    """What a broker would say, as plain attributes."""

    def __init__(self) -> None:
        self.ready = Readiness(ready=True)
        self.values = MetricValues()
        self.metrics_asked = 0
        self.names: list[str] = []
        self.broken = False
        self.queues = FakeQueues()
        self.letters = FakeLetters(self.queues)
        self.cursors = FakeCursors()
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

    def overview(self) -> dict[str, object]:
        if self.broken:
            raise RuntimeError("a secret inside")
        return {"topics": len(self.names)}

    def topics(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> TopicsPage:
        names = sorted(name for name in self.names if name > after and visible(name))
        rows = [
            TopicSnapshot(name, messages=1, last_offset=2, subscriptions=3) for name in names
        ]
        return TopicsPage(rows[:limit], more=len(rows) > limit)
