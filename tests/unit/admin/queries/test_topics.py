"""Topics as an administrator has them: sorted, searched, a page at a time."""

import pytest

from braidmq.admin.http.refusals import BadCursorError, UnknownTopicError
from braidmq.admin.queries.page_bounds import PAGE_BYTES_MAX
from braidmq.admin.queries.topics import TopicList
from braidmq.admin.topics import TopicsPage, Visible
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker.topics import Topic
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from tests.unit.admin.queries.queue_broker import engine_of, publish, status_of

pytestmark = pytest.mark.asyncio

COUNTS = {"b": 1, "A": 3, "ab": 2, "c/\u00fc": 3, "secret": 9}


async def filled(broker: RunningBroker) -> TopicList:
    for name, count in COUNTS.items():
        await publish(broker, name, *count * [b"x"])
    return status_of(broker).topics


def visible(name: str) -> bool:
    return name != "secret"


async def pages(
    topics: TopicList,
    *,
    sort: str,
    search: str = "",
    limit: int,
    sees: Visible | None = visible,
) -> list[TopicsPage]:
    found: list[TopicsPage] = []
    after: str | None = ""
    while after is not None:
        page = await topics.page(
            after=after, limit=limit, search=search, sort=sort, visible=sees
        )
        found.append(page)
        after = page.next
    return found


ORDERS = {
    "name": ["A", "ab", "b", "c/\u00fc"],
    "messages": ["A", "c/\u00fc", "ab", "b"],  # equals by name
    "last": ["c/\u00fc", "ab", "A", "b"],
}


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize(("sort", "expected"), ORDERS.items())
async def test_topics_come_in_pages_of_any_order(
    sort: str, expected: list[str], limit: int
) -> None:
    """Each once; what may not be seen is not counted either."""
    async with running_broker() as broker:
        found = await pages(await filled(broker), sort=sort, limit=limit)

        assert expected == [topic.name for page in found for topic in page.topics]
        assert {4} == {page.total for page in found}


@pytest.mark.parametrize("sort", ORDERS)
@pytest.mark.parametrize("sees", [visible, None])
async def test_long_names_come_on_shorter_pages(sort: str, sees: Visible | None) -> None:
    """A page has so many bytes of them, and the next one goes on: none is left out."""
    names = [f"{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    async with running_broker() as broker:
        for name in names:
            await publish(broker, name, b"x")
        found = await pages(status_of(broker).topics, sort=sort, limit=1_000, sees=sees)

        shown = [[topic.name for topic in page.topics] for page in found]
        assert sorted(names) == sorted(name for page in shown for name in page)
        assert [16, 4] == [len(page) for page in shown]
        assert PAGE_BYTES_MAX >= max(sum(map(len, page)) for page in shown)
        assert {20} == {page.total for page in found}


async def test_who_sees_everything_gets_the_same_pages() -> None:
    """The quick way, by the kept names, is not another order."""
    async with running_broker() as broker:
        topics = await filled(broker)
        first = await topics.page(after="", limit=4, search="", sort="name", visible=None)
        rest = await topics.page(
            after="c/\u00fc", limit=4, search="", sort="name", visible=None
        )

        assert (["A", "ab", "b", "c/\u00fc"], "c/\u00fc", 5) == (
            [topic.name for topic in first.topics],
            first.next,
            first.total,
        )
        assert (["secret"], None) == ([topic.name for topic in rest.topics], rest.next)


async def test_a_new_topic_is_there_at_once() -> None:
    """Names are kept only until there are more."""
    async with running_broker() as broker:
        topics = await filled(broker)
        await topics.page(after="", limit=9, search="", sort="name", visible=None)
        await publish(broker, "B", b"x")
        page = await topics.page(after="A", limit=1, search="", sort="name", visible=None)

        assert [("B", 1)] == [(topic.name, topic.messages) for topic in page.topics]


@pytest.mark.parametrize(
    ("search", "expected"), [("a", ["A", "ab"]), ("\u00dc", ["c/\u00fc"]), ("x", [])]
)
async def test_a_search_finds_parts_of_names_in_any_case(
    search: str, expected: list[str]
) -> None:
    """The total is of what was found."""
    async with running_broker() as broker:
        topics = await filled(broker)
        (page,) = await pages(topics, sort="name", search=search, limit=9)

        assert (expected, len(expected)) == ([t.name for t in page.topics], page.total)


@pytest.mark.parametrize(
    "after", ["x", "1", ":x", "-1:a", "1.5:a", 30 * "9" + ":a", "\u0663:a"]
)
async def test_a_page_goes_on_only_from_the_end_of_another(after: str) -> None:
    """Orders by number have their own."""
    async with running_broker() as broker:
        topics = await filled(broker)
        with pytest.raises(BadCursorError):
            await topics.page(after=after, limit=1, search="", sort="last", visible=None)


async def test_a_topic_says_where_it_begins_and_ends() -> None:
    """In the log, with the time of its newest message."""
    async with running_broker() as broker:
        await publish(broker, "other", b"x")
        await publish(broker, "t", b"x", b"y")
        detail = await status_of(broker).topics.detail("t")

        assert ("t", 2, 3, 2, False, "2027-01-15T08:00:00Z") == (
            detail.name,
            detail.messages,
            detail.last_offset,
            detail.first_offset,
            detail.is_queue,
            detail.last_timestamp,
        )


async def test_a_topic_without_a_message_has_no_first() -> None:
    """It was only subscribed to; one that nobody named is none."""
    async with running_broker() as broker:
        assert isinstance(engine_of(broker).broker.topics.get("quiet"), Topic)
        topics = status_of(broker).topics
        detail = await topics.detail("quiet")

        assert (0, None, None) == (detail.messages, detail.first_offset, detail.last_timestamp)
        with pytest.raises(UnknownTopicError):
            await topics.detail("none")


async def test_before_recovery_there_are_none() -> None:
    """The broker is not up."""
    topics = TopicList(lambda: None, lambda: None)
    with pytest.raises(UnavailableError):
        await topics.page(after="", limit=1, search="", sort="name", visible=None)
