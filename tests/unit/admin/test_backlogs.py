"""Backlogs: the messages that wait, in total and for each subscription."""

import pytest

from braidmq.admin.backlogs import Backlog, Backlogs, lag_of, walk
from tests.integration.blip.peer import broker_at, connected
from tests.unit.admin.queue_broker import engine_of
from tests.unit.admin.world import World


def test_queues_letters_and_subscriptions_count(world: World) -> None:
    """Dead letters wait as well, and are also counted separately."""
    world.declare("q")
    world.publish("q", b"1", b"2")
    world.bury("q", b"3")
    broker = world.engine.broker

    assert Backlog(3, 1) == walk(broker)
    assert {"dlq.q"} == broker.queues.letter_queues()


@pytest.mark.asyncio
async def test_the_lag_of_a_subscription_that_is_behind_is_an_upper_bound() -> None:
    """Computed from its position in the log, never less than what waits."""
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


def test_many_rows_are_walked_a_few_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is that of the last walk over all of them; with few rows it is current."""
    for name in ("q", "r", "s"):
        world.declare(name)
    backlogs = Backlogs()
    broker = world.engine.broker
    seen = [backlogs.now(broker).waiting]
    world.publish("q", b"1")
    seen += [backlogs.now(broker).waiting]
    monkeypatch.setattr("braidmq.admin.backlogs.ROWS_AT_ONCE", 1)
    world.publish("q", b"2")
    seen += [backlogs.now(broker).waiting for _ in range(3)]

    assert [0, 1, 1, 1, 2] == seen
