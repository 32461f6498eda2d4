"""Backlogs: what waits, in all and for each subscription."""

import pytest

from braidmq.admin.queries.backlogs import Backlog, Backlogs, lag_of, letter_queues, walk
from braidmq.testing.broker import running_broker
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import broker_at, connected
from tests.unit.admin.queries.queue_broker import bury, engine_of, publish, status_of

pytestmark = pytest.mark.asyncio


async def test_queues_letters_and_subscriptions_count() -> None:
    """Letters wait as well, and are counted apart, too."""
    async with running_broker() as broker:
        await status_of(broker).queues.create("q", QueueOptions())
        await publish(broker, "q", b"1", b"2")
        await bury(broker, "q", b"3")

        assert Backlog(3, 1) == walk(engine_of(broker).broker)
        assert {"dlq.q"} == set(letter_queues(engine_of(broker).broker.queues.by_name))


async def test_a_subscription_that_is_behind_is_told_by_its_place() -> None:
    """Never less than what waits."""
    async with (
        broker_at(delivery={"window": 2}) as broker,
        connected(broker) as peer,
    ):
        await peer.subscribe("t")
        await peer.publish("t", *5 * [b"x"])
        engine = engine_of(broker)
        (subscription,) = engine.broker.subscriptions.by_id.values()

        assert subscription.position.behind
        assert 5 == lag_of(subscription)
        assert 5 == walk(engine.broker).waiting


async def test_many_rows_are_not_walked_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few of them the backlog is of the moment."""
    async with running_broker() as broker:
        await status_of(broker).queues.create("q", QueueOptions())
        backlogs = Backlogs()
        engine = engine_of(broker)
        monkeypatch.setattr("braidmq.admin.queries.backlogs.ROWS_PER_S", 1)
        seen = [backlogs.now(engine.broker, 0).waiting]
        await publish(broker, "q", b"1")
        seen += [backlogs.now(engine.broker, at).waiting for at in (999_999, 1_000_000)]

        assert [0, 0, 1] == seen
