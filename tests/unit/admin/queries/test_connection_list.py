"""Connections and subscriptions as an administrator has them."""

import asyncio
from contextlib import AsyncExitStack

import pytest

import braidmq
from braidmq.admin.http.refusals import BadCursorError, UnknownThingError
from braidmq.admin.queries.connection_list import ConnectionList
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker.authorize import Principal
from braidmq.testing.broker import running_broker
from tests.integration.blip.peer import until
from tests.unit.admin.queries.queue_broker import status_of

pytestmark = pytest.mark.asyncio


def listing(broker: object) -> ConnectionList:
    return status_of(broker).connections  # type: ignore[arg-type]  # a running broker


async def rows(source: ConnectionList, **given: object) -> list[tuple[str, str, str, int]]:
    asked = {"after": "", "limit": 100, "search": "", "of": None, **given}
    page = await source.subscriptions(**asked)  # type: ignore[arg-type]  # as given
    return [(row.topic, row.strand, row.principal, row.lag) for row in page.subscriptions]


async def test_every_strand_has_its_connections_and_subscriptions() -> None:
    """Numbered over all strands, with who is there and how far behind."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as blip,
        braidmq.connect(broker.url("vibe")) as vibe,
        braidmq.connect(broker.url("qumbed")) as qumbed,
        blip.subscribe("t", qos=1),
        vibe.subscribe("v"),
        qumbed.subscribe("t"),
    ):
        await blip.publish("t", b"1", qos=1)
        source = listing(broker)
        found = await source.connections(after="", limit=100, of=None)
        numbers = [row.id for row in found.connections]

        assert sorted(set(numbers)) == numbers
        assert {"blip", "vibe", "qumbed"} == {row.strand for row in found.connections}
        assert 3 == sum(row.subscriptions for row in found.connections)
        assert all(row.peer.startswith("127.0.0.1") for row in found.connections)
        assert all(row.in_bytes for row in found.connections if row.strand != "qumbed")
        subscribed = set(await rows(source))
        assert {("t", "blip", "dev"), ("v", "vibe", "dev"), ("t", "qumbed", "anonymous")} == {
            row[:3] for row in subscribed
        }


async def test_pages_go_on_where_the_last_one_ended() -> None:
    """Each row once; a search and a principal leave others out."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        source = listing(broker)
        async with client.subscribe("a"), client.subscribe("b"), client.subscribe("ab"):
            found, totals = [], set()
            after: str | None = ""
            while after is not None:
                page = await source.subscriptions(after=after, limit=1, search="", of=None)
                found += [row.topic for row in page.subscriptions]
                totals.add(page.total)
                after = page.next
            stranger = Principal("x", publish=[], subscribe=[])

            assert (["a", "b", "ab"], {3}) == (found, totals)
            searched = await source.subscriptions(after="", limit=1, search="A", of=None)
            assert 2 == searched.total
            assert 0 == (await source.connections(after="", limit=9, of=stranger)).total
            assert 0 < (await source.connections(after="", limit=1, of=None)).total
            assert {"a", "ab"} == {row[0] for row in await rows(source, search="A")}
            assert [] == await rows(source, of=stranger)
            assert [] == (await source.connections(after="", limit=9, of=stranger)).connections


async def test_long_topics_come_on_shorter_pages() -> None:
    """A page has so many bytes of names, and the next one goes on: none is left out."""
    names = [f"{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        AsyncExitStack() as subscribed,
    ):
        for name in names:
            await subscribed.enter_async_context(client.subscribe(name, qos=1))
        first = await listing(broker).subscriptions(after="", limit=1_000, search="", of=None)
        assert first.next is not None
        rest = await listing(broker).subscriptions(
            after=first.next, limit=1_000, search="", of=None
        )

        assert (15, 20, None) == (len(first.subscriptions), rest.total, rest.next)
        assert names == [row.topic for row in (*first.subscriptions, *rest.subscriptions)]


@pytest.mark.parametrize("after", ["x", "1.", "1.2.3", 25 * "9", "\u0663"])
async def test_a_page_goes_on_only_from_the_end_of_another(after: str) -> None:
    """Anything else is refused."""
    async with running_broker() as broker:
        source = listing(broker)
        with pytest.raises(BadCursorError):
            await source.connections(after=after, limit=1, of=None)
        with pytest.raises(BadCursorError):
            await source.subscriptions(after=after, limit=1, search="", of=None)


@pytest.mark.parametrize("strand", ["blip", "vibe", "qumbed"])
async def test_a_connection_is_closed(strand: str) -> None:
    """Whoever is on the other side notices."""
    gone = asyncio.Event()

    async def noticed(_reason: object) -> None:
        gone.set()

    async with running_broker() as broker:
        host, port = broker.address("blip")
        source = listing(broker)
        if strand == "blip":
            reader, writer = await asyncio.open_connection(host, port)
            await until(lambda: len(broker.daemon.status.listeners[0]) == 1)
            (row,) = (await source.connections(after="", limit=9, of=None)).connections
            assert row.id == source.close(str(row.id))
            assert b"" == await reader.read()
            writer.close()
        else:
            async with (
                braidmq.connect(broker.url(strand)) as client,
                client.subscribe("t"),
            ):
                (row, *_) = (await source.connections(after="", limit=9, of=None)).connections
                assert row.id == source.close(str(row.id))
        with pytest.raises(UnknownThingError):
            source.close("99")
        with pytest.raises(UnknownThingError):
            source.close("x")
