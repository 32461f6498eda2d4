"""Subscriptions over HTTP: those of every strand, in pages, and who sees which."""

from contextlib import AsyncExitStack

import pytest
from starlette.testclient import TestClient

import braidmq
from braidmq.admin.subscriptions import Subscriptions
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker.authorize import Principal
from braidmq.testing.broker import running_broker
from tests.integration.blip.peer import subscribe
from tests.unit.admin.queue_broker import engine_of, status_of, subscribed_on_every_strand
from tests.unit.admin.world import ADMIN, ORDERS, ORDERS_KEY, World

PATH = "/api/subscriptions"


async def rows(source: Subscriptions, **given: object) -> list[tuple[str, str, str, int]]:
    parameters = {"after": "", "limit": 100, "search": "", "of": None, **given}
    page = await source.page(**parameters)  # type: ignore[arg-type]  # as given
    return [(row.topic, row.strand, row.principal, row.lag) for row in page.subscriptions]


def test_a_key_sees_its_own_subscriptions() -> None:
    """Only an administrator sees the topics of others."""
    world = World(dev=True)
    client = world.client()
    for key, topic in ((ORDERS_KEY, "orders.a"), ("dev-key", "b")):
        world.connect(key).receive(subscribe(3, topic))
        world.settle()
    world.publish("orders.a", b"x")
    every, own = (client.get(PATH, headers=headers).json() for headers in (ADMIN, ORDERS))

    assert ["orders.a", "b"] == [row["topic"] for row in every["subscriptions"]]
    row = {
        "id": "1",
        "topic": "orders.a",
        "strand": "blip",
        "principal": "orders",
        "qos": 1,
        "lag": 1,
        "in_flight": 0,
        "connection": own["subscriptions"][0]["connection"],
    }
    assert {"subscriptions": [row], "next": None, "total": 1} == own


def test_a_page_has_a_limit(client: TestClient) -> None:
    """The same as in every list."""
    assert [200, 400] == [
        client.get(f"{PATH}?limit={n}", headers=ADMIN).status_code for n in (7, 1001)
    ]


@pytest.mark.asyncio
async def test_every_strand_has_its_subscriptions() -> None:
    """With the principal; a consumer of a queue counts as one, too."""
    async with subscribed_on_every_strand() as (broker, blip):
        await blip.publish("t", b"1", qos=1)
        subscribed = await rows(status_of(broker).subscriptions)

        assert {("t", "blip", "dev"), ("v", "vibe", "dev"), ("t", "qumbed", "anonymous")} == {
            row[:3] for row in subscribed
        }


@pytest.mark.asyncio
async def test_pages_continue_where_the_last_one_ended() -> None:
    """Each row once; a search and a principal narrow the list."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        source = status_of(broker).subscriptions
        async with client.subscribe("a"), client.subscribe("b"), client.subscribe("ab"):
            found, totals = [], set()
            after: str | None = ""
            while after is not None:
                page = await source.page(after=after, limit=1, search="", of=None)
                found += [row.topic for row in page.subscriptions]
                totals.add(page.total)
                after = page.next
            other = Principal("x", publish=[], subscribe=[])
            searched = await source.page(after="", limit=1, search="A", of=None)

            assert (["a", "b", "ab"], {3}) == (found, totals)
            assert 2 == searched.total
            assert {"a", "ab"} == {row[0] for row in await rows(source, search="A")}
            assert [] == await rows(source, of=other)
        assert 3 == len(engine_of(broker).broker.topics)


def test_the_slowest_reader_comes_first_when_sorted_by_lag() -> None:
    """Page by page; a cursor of the other order is refused."""
    world = World(dev=True)
    client = world.client()
    for topic, waiting in (("a", 1), ("b", 3), ("c", 2), ("d", 0)):
        world.connect("dev-key").receive(subscribe(3, topic))
        world.settle()
        world.publish(topic, *waiting * [b"x"])
    found = []
    after: str | None = ""
    while after is not None:
        asked = {"sort": "lag", "limit": "3", "after": after}
        page = client.get(PATH, headers=ADMIN, params=asked).json()
        found.append([(row["topic"], row["lag"]) for row in page["subscriptions"]])
        after = page["next"]
        assert 4 == page["total"]

    assert [[("b", 3), ("c", 2), ("a", 1)], [("d", 0)]] == found
    refused = [{"sort": "lag", "after": "1.2"}, {"after": "3:1"}, {"sort": "size"}]
    assert [400, 400, 400] == [
        client.get(PATH, headers=ADMIN, params=asked).status_code for asked in refused
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("sort", ["id", "lag"])
async def test_long_topics_make_pages_shorter(sort: str) -> None:
    """A page is limited in bytes of names, and the next one continues without a gap."""
    names = [f"{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        AsyncExitStack() as subscribed,
    ):
        for name in names:
            await subscribed.enter_async_context(client.subscribe(name, qos=1))
        source = status_of(broker).subscriptions
        first = await source.page(after="", limit=1_000, search="", of=None, sort=sort)
        assert first.next is not None
        rest = await source.page(after=first.next, limit=1_000, search="", of=None, sort=sort)

        assert (15, 20, None) == (len(first.subscriptions), rest.total, rest.next)
        shown = [row.topic for row in (*first.subscriptions, *rest.subscriptions)]
        assert names == sorted(shown)
