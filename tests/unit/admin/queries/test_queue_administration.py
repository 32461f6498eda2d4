"""Queues as an administrator has them: every change is over when it is committed."""

import asyncio
from pathlib import Path

import pytest

from braidmq.admin.http.refusals import BadCursorError, QueueExistsError, UnknownQueueError
from braidmq.admin.queries import queue_administration
from braidmq.admin.queries.queue_administration import QueueAdministration
from braidmq.base.errors import LogFullError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import running_broker
from braidmq.wire.vibe.queue_options import OptionError, QueueOptions
from tests.integration.blip.peer import publish as publish_frame
from tests.unit.admin.queries.queue_broker import bury, engine_of, publish, status_of
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio


def by_hand() -> tuple[Hand, QueueAdministration]:
    hand = Hand()
    return hand, QueueAdministration(lambda: hand.engine)


async def waiting(task: "asyncio.Task[object]") -> bool:
    """Say whether a task still waits when everything that could run has run."""
    for _ in range(3):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_queue_is_there_once_its_record_is_committed() -> None:
    """Who is told so can count on it."""
    hand, queues = by_hand()
    task = asyncio.create_task(queues.create("q", QueueOptions(max_size=5)))
    assert await waiting(task)
    hand.commit()

    assert await task
    assert 5 == queues.facts("q").max_size


async def test_the_same_again_waits_for_the_first_and_is_not_new() -> None:
    """A repeat must not be told what is not durable yet."""
    hand, queues = by_hand()
    tasks = [asyncio.create_task(queues.create("q", QueueOptions())) for _ in range(2)]
    assert [True, True] == [await waiting(task) for task in tasks]
    hand.commit()

    assert [True, False] == await asyncio.gather(*tasks)


async def test_other_options_are_a_conflict() -> None:
    """What is declared stays; the usual name of the dead letters is no other option."""
    async with running_broker() as broker:
        queues = status_of(broker).queues
        await queues.create("q", QueueOptions())

        assert not await queues.create("q", QueueOptions(dead_letter_name="dlq.q"))
        with pytest.raises(QueueExistsError):
            await queues.create("q", QueueOptions(max_size=1))
        with pytest.raises(OptionError, match="is the queue itself"):
            await queues.create("r", QueueOptions(dead_letter_name="r"))
        assert 0 == queues.facts("q").max_size


async def test_queues_are_listed_by_name_in_pages() -> None:
    """Only those that may be seen, and whether there are more."""
    async with running_broker() as broker:
        queues = status_of(broker).queues
        for name in ("c", "a", "secret", "b", "d"):
            await queues.create(name, QueueOptions())
        page = await queues.page(after="a", limit=2, visible=lambda name: name != "secret")
        rest = await queues.page(after="c", limit=2, visible=lambda name: name != "secret")

        assert (["b", "c"], "c") == ([facts.name for facts in page.queues], page.next)
        assert (["d"], None) == ([facts.name for facts in rest.queues], rest.next)


@pytest.mark.parametrize("sort", ["name", "waiting"])
async def test_long_names_come_on_shorter_pages(sort: str) -> None:
    """Topics of Blip have dead letters too, and their queues have names as long as theirs."""
    names = [f"dlq.{n:02}{TOPIC_BYTES_MAX * 'x'}"[:TOPIC_BYTES_MAX] for n in range(20)]
    async with running_broker() as broker:
        for name in names:
            await bury(broker, "q", b"1", letters=name)
        queues = status_of(broker).queues
        first = await queues.page(after="", limit=1_000, visible=lambda _: True, sort=sort)
        assert first.next is not None
        rest = await queues.page(
            after=first.next, limit=1_000, visible=lambda _: True, sort=sort
        )

        assert (16, 20, None) == (len(first.queues), rest.total, rest.next)
        assert names == [facts.name for facts in (*first.queues, *rest.queues)]


async def test_queues_are_listed_by_what_waits_in_them() -> None:
    """The fullest first; the next page goes on behind, and other places are refused."""
    async with running_broker() as broker:
        queues = status_of(broker).queues
        for name, count in (("a", 0), ("b", 2), ("secret", 9), ("c", 1)):
            await queues.create(name, QueueOptions())
            await publish(broker, name, *count * [b"1"])
        found, totals = [], set()
        after: str | None = ""
        while after is not None:
            page = await queues.page(
                after=after, limit=1, visible=lambda name: name != "secret", sort="waiting"
            )
            found += [facts.name for facts in page.queues]
            totals.add(page.total)
            after = page.next

        assert (["b", "c", "a"], {3}) == (found, totals)
        with pytest.raises(BadCursorError):
            await queues.page(after="b", limit=1, visible=lambda _: True, sort="waiting")


@pytest.mark.parametrize("sort", ["name", "waiting"])
async def test_the_broker_works_on_while_queues_are_chosen(sort: str) -> None:
    """There may be many; one that is deleted meanwhile is left out."""
    loop = asyncio.get_running_loop()
    async with running_broker() as broker:
        queues = status_of(broker).queues
        for name in ("a", "b"):
            await queues.create(name, QueueOptions())

        def visible(name: str) -> bool:
            if name == "b":
                asyncio.run_coroutine_threadsafe(queues.delete(name), loop).result(10)
            return True

        page = await queues.page(after="", limit=9, visible=visible, sort=sort)
        assert ["a"] == [facts.name for facts in page.queues]


async def test_a_purge_empties_for_good(tmp_path: Path) -> None:
    """What was there is gone, after a restart too; what comes later is kept."""
    async with running_broker(data_dir=tmp_path) as broker:
        queues = status_of(broker).queues
        await queues.create("q", QueueOptions())
        await publish(broker, "q", b"1", b"2", b"3")
        assert 3 == queues.facts("q").waiting
        assert (3, 0) == (await queues.purge("q"), await queues.purge("q"))
        await publish(broker, "q", b"4")
        clock = broker.clock
    async with running_broker(data_dir=tmp_path, clock=clock) as broker:
        assert 1 == status_of(broker).queues.facts("q").waiting


async def test_a_purge_is_over_when_it_is_committed() -> None:
    """A crash right behind the answer brings nothing back."""
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


async def test_a_deleted_queue_is_gone_for_good(tmp_path: Path) -> None:
    """After a restart too, and it can be declared anew, in another way."""
    async with running_broker(data_dir=tmp_path) as broker:
        queues = status_of(broker).queues
        await queues.create("q", QueueOptions())
        await queues.create("r", QueueOptions())
        await queues.delete("q")
        clock = broker.clock
    async with running_broker(data_dir=tmp_path, clock=clock) as broker:
        queues = status_of(broker).queues

        with pytest.raises(UnknownQueueError):
            queues.facts("q")
        assert "r" == queues.facts("r").name
        assert await queues.create("q", QueueOptions(max_size=1))


async def test_what_is_not_there_is_told() -> None:
    """Whatever was to be done with it."""
    _, queues = by_hand()
    with pytest.raises(UnknownQueueError):
        await queues.delete("q")
    with pytest.raises(UnknownQueueError):
        await queues.purge("q")


async def test_a_full_log_refuses_a_declaration_and_not_an_end() -> None:
    """The queue is not there then; a deletion is written to the log's reserve."""
    hand, queues = by_hand()
    first: asyncio.Task[object] = asyncio.create_task(queues.create("q", QueueOptions()))
    await waiting(first)
    hand.commit()
    refused = asyncio.create_task(queues.create("r", QueueOptions()))
    ended: asyncio.Task[object] = asyncio.create_task(queues.delete("q"))
    assert await waiting(ended)
    hand.fail(LogFullError())

    with pytest.raises(UnavailableError, match="no space left"):
        await refused
    with pytest.raises(UnavailableError, match="no space left"):
        await queues.create("s", QueueOptions())
    assert await waiting(ended)
    hand.commit()
    await ended
    assert [] == (await queues.page(after="", limit=9, visible=lambda _: True)).queues


async def test_there_is_a_bound_to_the_number_of_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An administrator cannot grow memory without end either."""
    monkeypatch.setattr(queue_administration, "QUEUES_MAX", 1)
    async with running_broker() as broker:
        queues = status_of(broker).queues
        await queues.create("a", QueueOptions())
        with pytest.raises(UnavailableError, match="too many queues"):
            await queues.create("b", QueueOptions())
        assert not await queues.create("a", QueueOptions())
        assert None is engine_of(broker).broker.topics.find("b")


async def test_whoever_goes_away_does_not_disturb() -> None:
    """The record is written all the same, and nobody is told."""
    hand, queues = by_hand()
    task = asyncio.create_task(queues.create("q", QueueOptions()))
    assert await waiting(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hand.commit()

    assert "q" == queues.facts("q").name
