"""Queues over HTTP: every change is answered when it is committed, and lasts."""

import asyncio

import pytest

from braidmq.admin import queues as queues_module
from braidmq.admin.http.refusals import UnknownQueueError
from braidmq.admin.queues import Queues
from braidmq.base.errors import LogFullError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.server.engine.requests import UnavailableError
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import publish as publish_frame
from tests.unit.admin.queue_broker import quiet_broker, status_of
from tests.unit.admin.world import World
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio


def by_hand() -> tuple[Hand, Queues]:
    hand = Hand()
    return hand, Queues(lambda: hand.engine)


async def waiting(task: "asyncio.Task[object]") -> bool:
    """Return whether a task still waits when everything that could run has run."""
    for _ in range(3):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_declaration_is_answered_once_it_is_committed() -> None:
    """A crash right after the answer does not lose the queue."""
    hand, queues = by_hand()
    task = asyncio.create_task(queues.create("q", QueueOptions(max_size=5)))
    assert await waiting(task)
    hand.commit()

    assert await task
    assert 5 == queues.facts("q").max_size


async def test_a_repeated_declaration_waits_for_the_first_and_is_not_new() -> None:
    """A repeat must not be answered before the queue is durable."""
    hand, queues = by_hand()
    tasks = [asyncio.create_task(queues.create("q", QueueOptions())) for _ in range(2)]
    assert [True, True] == [await waiting(task) for task in tasks]
    hand.commit()

    assert [True, False] == await asyncio.gather(*tasks)


@pytest.mark.parametrize("sort", ["name", "waiting"])
async def test_long_names_make_pages_shorter(sort: str) -> None:
    """Dead-letter queues of Blip topics have names as long as topics may be."""
    names = [f"dlq.{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    world = World()
    for name in names:
        world.bury("q", b"1", letters=name)
    queues = world.status.queues
    first = await queues.page(after="", limit=1_000, visible=lambda _: True, sort=sort)
    assert first.next is not None
    rest = await queues.page(after=first.next, limit=1_000, visible=lambda _: True, sort=sort)

    assert (16, 20, None) == (len(first.queues), rest.total, rest.next)
    assert names == [facts.name for facts in (*first.queues, *rest.queues)]


@pytest.mark.parametrize(
    ("sort", "expected"), [("name", ["a", "b", "c"]), ("waiting", ["b", "c", "a"])]
)
async def test_visible_queues_come_in_pages_in_either_order(
    sort: str, expected: list[str]
) -> None:
    """Each once; hidden queues are not counted either."""
    world = World()
    for name, count in (("a", 0), ("b", 2), ("secret", 9), ("c", 1)):
        world.declare(name)
        world.publish(name, *count * [b"1"])
    found, totals = [], set()
    after: str | None = ""
    while after is not None:
        page = await world.status.queues.page(
            after=after, limit=1, visible=lambda name: name != "secret", sort=sort
        )
        found += [facts.name for facts in page.queues]
        totals.add(page.total)
        after = page.next

    assert (expected, {3}) == (found, totals)


@pytest.mark.parametrize("sort", ["name", "waiting"])
async def test_the_broker_goes_on_while_a_page_is_selected(sort: str) -> None:
    """There may be many queues; one that is deleted meanwhile is left out."""
    loop = asyncio.get_running_loop()
    async with quiet_broker() as broker:
        queues = status_of(broker).queues
        for name in ("a", "b"):
            await queues.create(name, QueueOptions())

        def visible(name: str) -> bool:
            if name == "b":
                asyncio.run_coroutine_threadsafe(queues.delete(name), loop).result(10)
            return True

        page = await queues.page(after="", limit=9, visible=visible, sort=sort)
        assert ["a"] == [facts.name for facts in page.queues]


async def test_purged_messages_do_not_return_after_a_restart() -> None:
    """Later messages are kept."""
    world = World()
    world.declare("q")
    world.publish("q", b"1", b"2", b"3")
    queues = world.status.queues
    assert 3 == queues.facts("q").waiting
    assert (3, 0) == (await queues.purge("q"), await queues.purge("q"))
    world.publish("q", b"4")

    assert 1 == World(world.disk).status.queues.facts("q").waiting


async def test_a_purge_is_answered_once_it_is_committed() -> None:
    """A crash right after the answer brings nothing back."""
    hand, queues = by_hand()
    task: asyncio.Task[object] = asyncio.create_task(queues.create("q", QueueOptions()))
    await waiting(task)
    hand.commit()
    connection, _ = hand.connect()
    connection.receive(publish_frame(1, "q", b"x"))
    hand.commit()
    task = asyncio.create_task(queues.purge("q"))
    assert await waiting(task)
    hand.commit()

    assert 1 == await task


async def test_a_deleted_queue_does_not_return_after_a_restart() -> None:
    """It can be declared again, with other options."""
    world = World()
    world.declare("q", "r")
    await world.status.queues.delete("q")
    queues = World(world.disk).status.queues

    with pytest.raises(UnknownQueueError):
        queues.facts("q")
    assert "r" == queues.facts("r").name
    assert await queues.create("q", QueueOptions(max_size=1))


async def test_a_full_log_refuses_a_declaration_but_not_a_deletion() -> None:
    """The refused queue does not exist; a deletion uses the log's reserve."""
    hand, queues = by_hand()
    first: asyncio.Task[object] = asyncio.create_task(queues.create("q", QueueOptions()))
    await waiting(first)
    hand.commit()
    refused = asyncio.create_task(queues.create("r", QueueOptions()))
    deleted: asyncio.Task[object] = asyncio.create_task(queues.delete("q"))
    assert await waiting(deleted)
    hand.fail(LogFullError())

    with pytest.raises(UnavailableError, match="no space left"):
        await refused
    with pytest.raises(UnavailableError, match="no space left"):
        await queues.create("s", QueueOptions())
    assert await waiting(deleted)
    hand.commit()
    await deleted
    assert [] == (await queues.page(after="", limit=9, visible=lambda _: True)).queues


async def test_the_number_of_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an administrator can make memory grow without end."""
    monkeypatch.setattr(queues_module, "QUEUES_MAX", 1)
    world = World()
    queues = world.status.queues
    await queues.create("a", QueueOptions())
    with pytest.raises(UnavailableError, match="too many queues"):
        await queues.create("b", QueueOptions())

    assert not await queues.create("a", QueueOptions())
    assert None is world.engine.broker.topics.find("b")


async def test_a_client_that_disconnects_does_not_stop_a_declaration() -> None:
    """The record is written all the same."""
    hand, queues = by_hand()
    task = asyncio.create_task(queues.create("q", QueueOptions()))
    assert await waiting(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hand.commit()

    assert "q" == queues.facts("q").name
