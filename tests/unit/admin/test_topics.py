"""Topics over HTTP: pages in any order, searches, who sees which, and one in detail."""

from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.paging import PAGE_BYTES_MAX
from braidmq.admin.topics import TopicsPage, Visible
from braidmq.base.limits import TOPIC_BYTES_MAX
from tests.integration.blip.peer import broker_at, connected
from tests.unit.admin.queue_broker import status_of
from tests.unit.admin.world import ADMIN, ORDERS, World, names_by_page
from tests.unit.broker.drive import peer_of

COUNTS = {"b": 1, "A": 3, "ab": 2, "c/\u00fc": 3, "secret": 9}


def fill(world: World, *names: str) -> None:
    for name in names:
        world.publish(name, b"x")


@pytest.fixture
def filled(world: World) -> World:
    for name, count in COUNTS.items():
        world.publish(name, *count * [b"x"])
    return world


def visible(name: str) -> bool:
    return name != "secret"


async def pages(
    world: World, *, sort: str, limit: int, sees: Visible | None = visible
) -> list[TopicsPage]:
    found: list[TopicsPage] = []
    after: str | None = ""
    while after is not None:
        page = await world.status.topics.page(
            after=after, limit=limit, search="", sort=sort, visible=sees
        )
        found.append(page)
        after = page.next
    return found


SORTED = {
    "name": ["A", "ab", "b", "c/\u00fc"],
    "messages": ["A", "c/\u00fc", "ab", "b"],  # equals by name
    "last": ["c/\u00fc", "ab", "A", "b"],
}


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize(("sort", "expected"), SORTED.items())
async def test_topics_come_in_pages_in_any_order(
    filled: World, sort: str, expected: list[str], limit: int
) -> None:
    """Each topic is on one page; hidden topics are not counted either."""
    found = await pages(filled, sort=sort, limit=limit)

    assert expected == [topic.name for page in found for topic in page.topics]
    assert {4} == {page.total for page in found}


@pytest.mark.asyncio
@pytest.mark.parametrize("sort", SORTED)
@pytest.mark.parametrize("sees", [visible, None])
async def test_long_names_make_pages_shorter(
    world: World, sort: str, sees: Visible | None
) -> None:
    """A page is limited in bytes of names, and the next one continues without a gap."""
    names = [f"{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    fill(world, *names)
    found = await pages(world, sort=sort, limit=1_000, sees=sees)

    shown = [[topic.name for topic in page.topics] for page in found]
    assert sorted(names) == sorted(name for page in shown for name in page)
    assert [16, 4] == [len(page) for page in shown]
    assert PAGE_BYTES_MAX >= max(sum(map(len, page)) for page in shown)
    assert {20} == {page.total for page in found}


def test_an_administrator_gets_the_same_pages(filled: World) -> None:
    """The fast path over the sorted names has the same order; `next` is null at the end."""
    found = names_by_page(filled.client(), "/api/topics", "topics", 4)

    assert [["A", "ab", "b", "c/\u00fc"], ["secret"]] == found


def test_a_new_topic_is_listed_at_once(filled: World) -> None:
    """The sorted names are kept only until there is a new topic."""
    client = filled.client()
    before = client.get("/api/topics", headers=ADMIN).json()
    fill(filled, "B")
    page = client.get("/api/topics?after=A&limit=1", headers=ADMIN).json()

    expected = {"name": "B", "messages": 1, "last_offset": 19, "subscriptions": 0}
    assert (5, [expected], 6) == (before["total"], page["topics"], page["total"])


SEARCHES = [("a", ["A", "ab"]), ("%C3%9C", ["c/\u00fc"]), ("x", [])]


@pytest.mark.parametrize(("search", "expected"), SEARCHES)
def test_a_search_matches_any_part_of_a_name_in_any_case(
    filled: World, search: str, expected: list[str]
) -> None:
    """The total counts what matches."""
    page = filled.client().get(f"/api/topics?search={search}", headers=ADMIN).json()

    assert (expected, len(expected)) == ([t["name"] for t in page["topics"]], page["total"])


def test_topics_are_sorted_as_requested(filled: World) -> None:
    """By name by default; an unknown sort is refused."""
    client = filled.client()
    sorts = ("", "?sort=messages", "?sort=size")
    *sorted_pages, refused = (client.get(f"/api/topics{s}", headers=ADMIN) for s in sorts)

    assert ["A", "secret"] == [page.json()["topics"][0]["name"] for page in sorted_pages]
    assert (400, {"error": "sort must be one of name, messages, last"}) == (
        refused.status_code,
        refused.json(),
    )


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1.5", "\u0663", 5000 * "9"])
def test_a_bad_limit_is_refused(client: TestClient, limit: str) -> None:
    """400, and what would be valid."""
    response = client.get("/api/topics", headers=ADMIN, params={"limit": limit})

    assert 400 == response.status_code
    assert {"error": "limit must be a whole number from 1 to 1000"} == response.json()


@pytest.mark.parametrize(
    "after", ["x", "1", ":x", "-1:a", "1.5:a", 30 * "9" + ":a", "\u0663:a"]
)
def test_a_ranked_page_continues_only_from_the_cursor_of_another(
    client: TestClient, after: str
) -> None:
    """A sort by number has its own form of `next`."""
    params = {"after": after, "sort": "last"}

    assert 400 == client.get("/api/topics", headers=ADMIN, params=params).status_code


def test_a_key_sees_the_topics_that_it_may_use(client: TestClient, world: World) -> None:
    """Permission to publish or to subscribe is enough; other topics stay hidden."""
    fill(world, "in.a", "orders.b", "secret.c")
    page = client.get("/api/topics", headers=ORDERS).json()

    assert ["in.a", "orders.b"] == [topic["name"] for topic in page["topics"]]


@pytest.mark.parametrize(
    "name", ["a", "a/messages", "a/b/c", "?x=1&y", "#", "%2F", "\u202e", "/"]
)
def test_a_topic_is_found_by_any_name(client: TestClient, world: World, name: str) -> None:
    """Percent-encoded characters belong to the name, slashes included."""
    fill(world, name)
    answer = client.get(f"/api/topics/{quote(name, safe='')}", headers=ADMIN)

    assert (200, name) == (answer.status_code, answer.json()["name"])


def test_a_hidden_topic_is_403(client: TestClient, world: World) -> None:
    """Whether it exists or not; a visible one that does not exist is 404."""
    fill(world, "secret.a", "orders.a")
    paths = ("secret.a", "secret.none", "orders.a", "in.none")
    answers = [client.get(f"/api/topics/{path}", headers=ORDERS) for path in paths]

    assert [403, 403, 200, 404] == [answer.status_code for answer in answers]
    assert {"error": "no such topic"} == answers[-1].json()


def test_a_topic_shows_where_it_begins_and_ends(client: TestClient, world: World) -> None:
    """The offsets in the log, and the time of the newest message."""
    world.publish("other", b"x")
    world.publish("t", b"x", b"y")

    assert {
        "name": "t",
        "messages": 2,
        "last_offset": 3,
        "first_offset": 2,
        "subscriptions": 0,
        "is_queue": False,
        "schema": None,
        "last_timestamp": "2027-01-15T08:00:00Z",
    } == client.get("/api/topics/t", headers=ADMIN).json()


@pytest.mark.asyncio
async def test_subscriptions_of_a_topic_are_counted() -> None:
    """A topic that was only subscribed to has no first message."""
    async with broker_at() as broker, connected(broker) as peer:
        await peer.subscribe("quiet")
        detail = await status_of(broker).topics.detail("quiet")

        assert (0, None, None, 1) == (
            detail.messages,
            detail.first_offset,
            detail.last_timestamp,
            detail.subscriptions,
        )


def test_before_recovery_there_are_no_topics() -> None:
    """503, while the log is read."""
    client = World(recovered=False).client()

    assert [503, 503] == [
        client.get(path, headers=ADMIN).status_code for path in ("/api/topics", "/api/topics/a")
    ]


def test_an_administrator_deletes_a_topic(world: World, client: TestClient) -> None:
    """It is not listed any more; publishing to it makes a new one, without the old messages."""
    path = "/api/topics/orders.x"
    world.publish("orders.x", b"old", b"older")
    answer = client.delete(path, headers=ADMIN)
    gone = client.get(path, headers=ADMIN)
    world.publish("orders.x", b"new")
    pages = [
        client.get(f"{path}/messages?order={order}", headers=ORDERS).json()
        for order in ("asc", "desc")
    ]
    detail = client.get(path, headers=ADMIN).json()

    assert (200, {"name": "orders.x"}) == (answer.status_code, answer.json())
    assert 404 == gone.status_code
    assert [(["new"], None)] * 2 == [
        ([message["payload"] for message in page["messages"]], page["next"]) for page in pages
    ]
    assert (1, pages[0]["messages"][0]["offset"]) == (
        detail["messages"],
        detail["first_offset"],
    )
    assert 404 == client.get(f"{path}/messages/1", headers=ORDERS).status_code


def test_a_topic_in_use_is_not_deleted_unless_forced(filled: World, client: TestClient) -> None:
    """Subscriptions end with force=true; a queue is deleted by itself."""
    filled.declare("b")
    broker = filled.engine.broker
    peer = peer_of("ops")
    topic = broker.topics.find("ab")
    assert topic is not None
    broker.subscribe(peer, topic, 1, 0)
    awaited = client.delete("/api/topics/ab?force=true", headers=ADMIN)
    filled.settle()
    answers = [
        client.delete(f"/api/topics/{name}", headers=ADMIN)
        for name in ("b?force=true", "ab", "ab?force=yes", "ab?force=true", "nope")
    ]

    assert [409, 409, 400, 200, 404] == [answer.status_code for answer in answers]
    assert "the topic is being subscribed to right now; retry" == awaited.json()["error"]
    assert "the topic is a queue: delete the queue first" == answers[0].json()["error"]
    assert (
        "the topic has 1 subscription; with force=true they end, too"
        == answers[1].json()["error"]
    )
    assert {} == broker.subscriptions.by_id


def test_only_administrators_delete_topics(filled: World, client: TestClient) -> None:
    """Not even a key that may publish and subscribe to it."""
    filled.publish("orders.x", b"1")

    assert 403 == client.delete("/api/topics/orders.x", headers=ORDERS).status_code
    assert filled.engine.broker.topics.find("orders.x") is not None
