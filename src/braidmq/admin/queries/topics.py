"""Topics as an administrator over HTTP has them: sorted, searched, a page at a time.

Topics are never forgotten, so that their sorted names are kept until there are more. Sorting,
searching and reading the log is done on a thread: a broker may have a million names.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from braidmq.admin.http.parameters import iso
from braidmq.admin.http.refusals import UnknownTopicError
from braidmq.admin.queries.log_reading import read_log
from braidmq.admin.queries.page_bounds import rows_on_page
from braidmq.admin.queries.ranking import ranked_page
from braidmq.admin.topics import TopicDetail, TopicSnapshot, TopicsPage, Visible
from braidmq.broker import headers
from braidmq.broker.marks import SCHEMA_ID
from braidmq.broker.records import Head
from braidmq.broker.topics import Topic
from braidmq.server.engine.requests import FindEngine, running
from braidmq.wal.wal import Wal

_Key = Callable[[Topic], int]

_KEYS: Final[dict[str, _Key]] = {
    "messages": lambda topic: topic.message_count,
    "last": lambda topic: topic.last_id,
}


class _Named:
    """Topics in the order of their names, and the names as a search compares them."""

    def __init__(self, topics: list[Topic]) -> None:
        self.topics = sorted(topics, key=_name)
        self.names = [topic.name for topic in self.topics]
        self.folded = [name.casefold() for name in self.names]


class TopicList:
    """What `admin` asks about topics."""

    def __init__(self, find_engine: FindEngine, find_wal: Callable[[], Wal | None]) -> None:
        self._find_engine = find_engine
        self._find_wal = find_wal
        self._named = _Named([])

    async def page(
        self, *, after: str, limit: int, search: str, sort: str, visible: Visible | None
    ) -> TopicsPage:
        """Return up to *limit* visible topics behind *after*.

        Raises:
            BadCursorError: *after* is not what the sort goes on from.
            UnavailableError: The broker is not up.
        """
        topics = running(self._find_engine()).broker.topics
        if len(topics) != len(self._named.names):
            self._named = await asyncio.to_thread(_Named, topics.all())
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
        """Return all that is known of one topic.

        Raises:
            UnknownTopicError: There is none of that name.
            UnavailableError: The broker is not up, or the log cannot be read now.
        """
        engine = running(self._find_engine())
        topic = engine.broker.topics.find(name)
        if topic is None:
            raise UnknownTopicError
        row = _row(topic)
        is_queue = topic.queue is not None
        first, newest = await read_log(
            engine, self._find_wal(), _ends, topic.raw, topic.last_id
        )
        schema, timestamp = None, None
        if newest is not None:
            head = Head(newest)
            timestamp = iso(head.timestamp_us)
            block = newest[head.headers_at : head.body_at]
            schema = headers.decode(block).get(SCHEMA_ID)
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


def _ends(wal: Wal, topic: bytes, last_id: int) -> tuple[int | None, bytes | None]:
    """Return the offset of a topic's first message, and the record of its last; on a thread."""
    if last_id < wal.first_id:
        return None, None
    oldest, newest = (
        wal.read(after, topic=topic, up_to=last_id, count_max=1, bytes_max=1).records
        for after in (0, last_id - 1)
    )
    return oldest[0][0] if oldest else None, newest[0][1] if newest else None


def _plain_page(named: _Named, *, after: str, limit: int) -> TopicsPage:
    start = bisect_right(named.names, after)
    page, following = _by_name(named.topics, start, limit)
    return TopicsPage([_row(topic) for topic in page], following, len(named.names))


def _chosen_page(
    named: _Named,
    *,
    after: str,
    limit: int,
    search: str,
    sort: str,
    visible: Visible | None,
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
        key = _KEYS[sort]
        ranked = ((key(topic), topic.name, topic) for topic in chosen)
        page, following = ranked_page(ranked, after=after, limit=limit)
    return TopicsPage([_row(topic) for topic in page], following, len(chosen))


def _by_name(topics: list[Topic], start: int, limit: int) -> tuple[list[Topic], str | None]:
    """Return a page of sorted topics, and where to go on."""
    page = topics[start : start + limit]
    page = page[: rows_on_page((len(topic.raw) for topic in page), limit)]
    more = start + len(page) < len(topics)
    return page, page[-1].name if more else None


def _row(topic: Topic) -> TopicSnapshot:
    return TopicSnapshot(
        topic.name,
        topic.message_count,
        topic.last_id,
        len(topic.subscriptions) + len(topic.followers),
    )


def _name(topic: Topic) -> str:
    return topic.name
