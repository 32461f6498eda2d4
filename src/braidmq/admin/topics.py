"""Topics over HTTP: listed, searched and sorted a page at a time, one in detail, or deleted.

    GET /api/topics?after=&limit=&search=&sort=    {"topics": [...], "next", "total"}
    GET /api/topics/{topic}                        one topic
    DELETE /api/topics/{topic}?force=              {"name": name}

A key sees the topics that it may publish to or read, an administrator sees and deletes all.
"""

import asyncio
import functools
import heapq
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.paging import ranked_page, rows_on_page
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH, TOPIC, choice, iso
from braidmq.admin.http.refusals import TopicInUseError, UnknownTopicError
from braidmq.admin.http.requests import allow
from braidmq.admin.log import Log
from braidmq.base.counts import counted
from braidmq.broker import endings
from braidmq.broker.authorize import ADMIN, PUBLISH, SUBSCRIBE, Principal, authorize
from braidmq.broker.marks import SCHEMA_ID
from braidmq.broker.records import Head
from braidmq.broker.topics import Topic, decode_headers
from braidmq.server.engine.requests import FindEngine, changing, running
from braidmq.wal.wal import Wal

SORT: Final = choice(
    "sort",
    "Sort by name, by number of messages, or by newest message.",
    ("name", "messages", "last"),
)

FORCE: Final = choice(
    "force", "Delete the topic's subscriptions too, instead of refusing.", ("false", "true")
)

Visible = Callable[[str], bool]
"""Whether a name may be shown; None in its place means that every name may."""

_RANKS: Final[dict[str, Callable[[Topic], int]]] = {
    "messages": lambda topic: topic.message_count,
    "last": lambda topic: topic.last_id,
}


class TopicSnapshot(msgspec.Struct, frozen=True):
    """One topic in the list; `messages` counts across restarts."""

    name: str
    messages: int
    last_offset: int
    subscriptions: int


class TopicsPage(msgspec.Struct, frozen=True):
    """Topics in the requested order, the next `after`, and how many match the search."""

    topics: list[TopicSnapshot]
    next: str | None
    total: int


class TopicDetail(msgspec.Struct, frozen=True):
    """One topic; `first_offset` is that of the oldest message still in the log."""

    name: str
    messages: int
    last_offset: int
    first_offset: int | None
    subscriptions: int
    is_queue: bool
    schema: str | None
    last_timestamp: str | None


SORTED_AT_ONCE: Final = 10_000
"""Topics that are sorted in one go: some milliseconds."""


class DeletedTopic(msgspec.Struct, frozen=True):
    """The topic that was deleted."""

    name: str


class _Named:
    """Topics in order of their names, and the names in the form that a search compares."""

    def __init__(self, topics: list[Topic]) -> None:
        # A sort lets no other thread run until it is done, the event loop's neither: so sort
        # short pieces, and merge those.
        pieces = [
            topics[at : at + SORTED_AT_ONCE] for at in range(0, len(topics), SORTED_AT_ONCE)
        ]
        self.topics = list(
            heapq.merge(*(sorted(piece, key=_name) for piece in pieces), key=_name)
        )
        self.names = [topic.name for topic in self.topics]
        self.folded = [name.casefold() for name in self.names]


class Topics:
    """The broker's topics.

    A broker may have a million of them, so sorting and searching is done on a thread. The
    sorted names are valid until one is made or removed.
    """

    def __init__(self, find_engine: FindEngine, log: Log) -> None:
        self._find_engine = find_engine
        self._log = log
        self._named = _Named([])
        self._changes = 0  # of the topics when they were sorted

    async def page(
        self, *, after: str, limit: int, search: str, sort: str, visible: Visible | None
    ) -> TopicsPage:
        """Return up to *limit* visible topics after *after*.

        Raises:
            BadCursorError: *after* is not the `next` of a page with this sort.
            UnavailableError: The broker is still recovering.
        """
        topics = running(self._find_engine()).broker.topics
        if topics.changes != self._changes:
            self._changes = topics.changes
            self._named = await asyncio.to_thread(_Named, topics.all())
        # The usual page is a slice of the sorted names, which is not worth a thread.
        if sort == "name" and not search and visible is None:
            return _plain_page(self._named, after=after, limit=limit)
        return await asyncio.to_thread(
            _chosen_page,
            self._named,
            after=after,
            limit=limit,
            search=search.casefold(),
            sort=sort,
            visible=visible,
        )

    async def detail(self, name: str) -> TopicDetail:
        """Return one topic, with what the log has of it.

        Raises:
            UnknownTopicError: There is no such topic.
            UnavailableError: The broker is still recovering, or cannot read the log now.
        """
        topic = running(self._find_engine()).broker.topics.find(name)
        if topic is None:
            raise UnknownTopicError
        # Taken before the log is read: the topic may grow while the thread reads.
        row = _row(topic)
        is_queue = topic.queue is not None
        first, newest = await self._log.read(_ends, topic.raw, topic.began_id, topic.last_id)
        schema, timestamp = None, None
        if newest is not None:
            head = Head(newest)
            timestamp = iso(head.timestamp_us)
            block = newest[head.headers_at : head.body_at]
            schema = decode_headers(block).get(SCHEMA_ID)
        return TopicDetail(
            row.name,
            row.messages,
            row.last_offset,
            first,
            row.subscriptions,
            is_queue,
            schema,
            timestamp,
        )

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a topic; with *force* its subscriptions too.

        Raises:
            UnknownTopicError: There is no such topic.
            TopicInUseError: It has a queue, or it has subscriptions and *force* is not set.
            UnavailableError: The broker cannot commit it now.
        """
        engine = changing(self._find_engine())
        broker = engine.broker
        topic = broker.topics.find(name)
        if topic is None:
            raise UnknownTopicError
        if topic.queue is not None:
            raise TopicInUseError("the topic is a queue: delete the queue first")
        readers = len(topic.subscriptions) + len(topic.followers)
        if readers and not force:
            has = counted(readers, "subscription")
            raise TopicInUseError(f"the topic has {has}; with force=true they end, too")
        if endings.is_awaited(broker, topic):
            raise TopicInUseError("the topic is being subscribed to right now; retry")
        record_id = endings.end_topic(broker, topic)
        engine.uncache_topics()
        await engine.waiters.committed(record_id, lasts=True)

    @keyed("DELETE /api/topics/{topic}", TOPIC, FORCE, refusals=(404, 409, 503))
    async def delete_topic(self, request: Request, principal: Principal) -> DeletedTopic:
        """Delete a topic; for administrators."""
        allow(principal, ADMIN, "")
        name = request.path_params["topic"]
        await self.delete(name, force=FORCE.of(request) == "true")
        return DeletedTopic(name)

    @keyed("GET /api/topics", AFTER, LIMIT, SEARCH, SORT)
    async def get_topics(self, request: Request, principal: Principal) -> TopicsPage:
        """List the topics, a page at a time."""
        return await self.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            search=SEARCH.of(request),
            sort=SORT.of(request),
            visible=visible_to(principal),
        )

    @keyed("GET /api/topics/{topic}", TOPIC, refusals=(404, 503))
    async def get_topic(self, request: Request, principal: Principal) -> TopicDetail:
        """Show one topic."""
        name = request.path_params["topic"]
        if not may_see(principal, name):
            allow(principal, SUBSCRIBE, name)
        return await self.detail(name)


def visible_to(principal: Principal) -> Visible | None:
    """Return which topics *principal* may see; None if it may see all."""
    if authorize(principal, ADMIN, ""):
        return None
    return functools.partial(may_see, principal)


def may_see(principal: Principal, topic: str) -> bool:
    """Return whether *principal* may know that this topic exists."""
    return any(authorize(principal, kind, topic) for kind in (ADMIN, SUBSCRIBE, PUBLISH))


def _ends(
    wal: Wal, topic: bytes, began_id: int, last_id: int
) -> tuple[int | None, bytes | None]:
    """Return the offset of a topic's first message and the record of its last; on a thread."""
    if last_id < wal.first_id:
        return None, None
    oldest, newest = (
        wal.read(after, topic=topic, up_to=last_id, count_max=1, bytes_max=1).records
        for after in (began_id, last_id - 1)
    )
    return oldest[0][0] if oldest else None, newest[0][1] if newest else None


def _plain_page(named: _Named, *, after: str, limit: int) -> TopicsPage:
    start = bisect_right(named.names, after)
    page, following = _by_name(named.topics, start, limit)
    return TopicsPage([_row(topic) for topic in page], following, len(named.names))


def _chosen_page(
    named: _Named, *, after: str, limit: int, search: str, sort: str, visible: Visible | None
) -> TopicsPage:
    chosen = named.topics
    if search:
        pairs = zip(named.topics, named.folded, strict=True)
        chosen = [topic for topic, folded in pairs if search in folded]
    if visible is not None:
        chosen = [topic for topic in chosen if visible(topic.name)]
    if sort == "name":
        page, following = _by_name(chosen, bisect_right(chosen, after, key=_name), limit)
    else:
        rank = _RANKS[sort]
        ranked = ((rank(topic), topic.name, topic) for topic in chosen)
        page, following = ranked_page(ranked, after=after, limit=limit)
    return TopicsPage([_row(topic) for topic in page], following, len(chosen))


def _by_name(topics: list[Topic], start: int, limit: int) -> tuple[list[Topic], str | None]:
    """Return a page of sorted topics from *start* on, and the next `after`."""
    page = topics[start : start + limit]
    page = page[: rows_on_page((len(topic.raw) for topic in page), limit)]
    more = start + len(page) < len(topics)
    return page, page[-1].name if more else None


def _row(topic: Topic) -> TopicSnapshot:
    return TopicSnapshot(
        topic.name,
        topic.message_count,
        topic.last_id,
        len(topic.subscriptions) + len(topic.followers) + _consumers(topic),
    )


def _consumers(topic: Topic) -> int:
    return 0 if topic.queue is None else len(topic.queue.consumers)


def _name(topic: Topic) -> str:
    return topic.name
