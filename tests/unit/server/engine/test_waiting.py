"""Waiting: every coroutine is woken in the turn that ends its wait, and none is left behind.

Between two steps a test lets the loop run what is ready, and nothing sleeps: a wait that polled
would not be over when the assertion comes.
"""

import asyncio
import operator
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from braidmq.base.errors import LogFullError, LogPoisonedError
from braidmq.broker.delivery.dispatch import ChannelRead
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import Policy
from braidmq.server.engine.requests import LogRefusedError, ShuttingDownError
from tests.integration.blip.peer import ack, ping, poll, publish, subscribe
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio

POISONED = LogPoisonedError("write", "Input/output error")
POISONED_TEXT = "log poisoned: write failed: Input/output error"
FULL_TEXT = "no space left on the log's disk"


async def begun(wait: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Start a wait, and let it come to where it waits."""
    task = asyncio.create_task(wait)
    await asyncio.sleep(0)
    return task


async def outcome(task: "asyncio.Task[Any]") -> str:
    """Return how a wait has ended, one step of the loop after it was woken."""
    await asyncio.sleep(0)
    if not task.done():
        return "waits"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return repr(task.result()) if error is None else type(error).__name__


def declared(hand: Hand, name: str = "q") -> Queue:
    """Declare a queue whose record is not committed yet."""
    broker = hand.engine.broker
    topic = broker.topics.get(name)
    assert topic is not None
    return broker.queues.declare(topic, Policy(), hand.now_us)


async def left(hand: Hand) -> int:
    """Return how many entries the waiters hold, once finished tasks have run."""
    await asyncio.sleep(0)
    return len(hand.engine.waiters.commits) + len(hand.engine.waiters.conditions)


# For a commit.


async def test_a_commit_wakes_those_whose_record_it_covers() -> None:
    """In the same turn, once, and no others."""
    hand = Hand()
    first = await begun(hand.engine.waiters.committed(declared(hand).id))
    second = await begun(hand.engine.waiters.committed(declared(hand, "r").id))
    assert ["waits", "waits"] == [await outcome(first), await outcome(second)]
    hand.commit()
    assert ["None", "waits"] == [await outcome(first), await outcome(second)]
    hand.commit()

    assert "None" == await outcome(second)
    assert 0 == await left(hand)


async def test_a_record_that_is_committed_is_not_waited_for() -> None:
    """The call returns without a turn of the log."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()

    assert "None" == await outcome(await begun(hand.engine.waiters.committed(queue.id)))


async def test_waiting_ends_the_turn() -> None:
    """What the caller changed reaches the log; otherwise it would wait for nothing."""
    hand = Hand()
    await begun(hand.engine.waiters.committed(declared(hand).id))

    assert [1] == [len(batch) for batch in hand.log.batches]


async def test_a_full_log_refuses_the_wait() -> None:
    """The record is not queued again, so it will never be committed."""
    hand = Hand()
    task = await begun(hand.engine.waiters.committed(declared(hand).id))
    hand.fail(LogFullError())

    with pytest.raises(LogRefusedError, match=FULL_TEXT):
        await task
    assert 0 == await left(hand)


async def test_a_record_that_is_queued_again_is_waited_for_under_its_new_id() -> None:
    """The end of a queue may use the log's reserve, and is durable then."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    engine = hand.engine
    ended_id = engine.broker.queues.delete(queue)
    task = await begun(engine.waiters.committed(ended_id, lasts=True))
    hand.fail(LogFullError())
    assert ("waits", True) == (await outcome(task), hand.log.urgent[-1])
    hand.commit()

    assert "None" == await outcome(task)


async def test_a_log_whose_reserve_is_used_up_refuses_lasting_records_too() -> None:
    """Full twice: when there will be room is unknown."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    ended_id = hand.engine.broker.queues.delete(queue)
    task = await begun(hand.engine.waiters.committed(ended_id, lasts=True))
    hand.fail(LogFullError())
    hand.fail(LogFullError())

    with pytest.raises(LogRefusedError, match=FULL_TEXT):
        await task


async def test_a_failed_log_answers_every_wait_and_every_later_one() -> None:
    """Lasting or not, whatever the wait is for; also for what was committed before."""
    hand = Hand()
    queue = declared(hand)
    waiters = hand.engine.waiters
    tasks = [
        await begun(waiters.committed(queue.id, lasts=True)),
        await begun(waiters.committed(queue.id)),
        await begun(waiters.until(lambda: False)),
    ]
    hand.fail(POISONED)
    tasks += [
        await begun(waiters.committed(queue.id)),
        await begun(waiters.committed(0)),
        await begun(waiters.until(lambda: False)),
    ]

    assert 6 * ["LogFailedError"] == [await outcome(task) for task in tasks]
    assert 6 * [POISONED_TEXT] == [str(task.exception()) for task in tasks]
    assert 0 == await left(hand)


async def test_a_drain_lets_commits_come_and_a_stop_does_not() -> None:
    """The log finishes what it was given; after it has been closed it reports nothing."""
    hand = Hand()
    waiters = hand.engine.waiters
    first = await begun(waiters.committed(declared(hand).id))
    hand.engine.drain()
    second = await begun(waiters.committed(declared(hand, "r").id))
    hand.commit()
    assert ["None", "waits"] == [await outcome(first), await outcome(second)]
    waiters.stop()
    third = await begun(waiters.committed(hand.engine.broker.outgoing.last_id))

    with pytest.raises(ShuttingDownError):
        await second
    with pytest.raises(ShuttingDownError):
        await third


# For a condition.


async def test_a_condition_wakes_in_the_turn_in_which_it_becomes_true() -> None:
    """In-flight is empty: the drain goes on with the last acknowledgement."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    connection.receive(publish(2, "t", b"a"))
    hand.commit()
    connection.receive(poll(3, 1))
    task = await begun(hand.engine.waiters.until(hand.engine.is_quiet))
    assert "waits" == await outcome(task)
    connection.receive(ack(2, 1) + ping(4))
    assert "waits" == await outcome(task)
    hand.commit()

    assert "True" == await outcome(task)
    assert 0 == await left(hand)


async def test_a_read_that_comes_back_wakes() -> None:
    """The reader's report is a turn like any other."""
    hand = Hand()
    engine = hand.engine
    queue = declared(hand)
    engine.end_turn()
    hand.commit()
    task = await begun(engine.waiters.until(lambda: engine.reads_done > 0))
    assert "waits" == await outcome(task)
    request = ChannelRead(queue.lanes[0], engine.broker.settings, 0)
    engine.backlog_read(request, [], reached_id=1, lost_count=0)

    assert "True" == await outcome(task)


async def test_a_connection_that_closes_wakes() -> None:
    """The last replies have left; also when the log has failed and turns do nothing more."""
    for fails in (False, True):
        hand = Hand()
        connection, _ = hand.connect()
        if fails:
            hand.fail(POISONED)
        engine = hand.engine
        is_alone = partial(operator.not_, engine.connections)
        task = await begun(engine.waiters.until(is_alone, outlasts_end=True))
        assert "waits" == await outcome(task)
        engine.leave(connection)

        assert "True" == await outcome(task)


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    """Nothing is entered, and nothing has to happen first."""
    hand = Hand()

    assert await hand.engine.waiters.until(lambda: True)
    assert 0 == await left(hand)


async def test_without_waiters_a_turn_evaluates_nothing() -> None:
    """A condition is forgotten with its wait: it is not evaluated in later turns."""
    hand = Hand()
    evaluated: list[bool] = []

    def second_time() -> bool:
        evaluated.append(bool(evaluated))
        return evaluated[-1]

    task = await begun(hand.engine.waiters.until(second_time))
    hand.engine.end_turn()
    assert "True" == await outcome(task)
    hand.engine.end_turn()

    assert [False, True] == evaluated


async def test_time_ends_a_wait_for_a_condition() -> None:
    """The caller is told by False, and nothing is left behind."""
    hand = Hand()

    assert not await hand.engine.waiters.until(lambda: False, within_s=0)
    assert 0 == await left(hand)


async def test_a_drain_refuses_conditions_but_its_own() -> None:
    """A request would wait for what no longer happens; the drain waits for the rest."""
    hand = Hand()
    waiters = hand.engine.waiters
    is_over = False
    request = await begun(waiters.until(lambda: is_over))
    hand.engine.drain()
    late = await begun(waiters.until(lambda: is_over))
    drain = await begun(waiters.until(lambda: is_over, outlasts_end=True))
    answers = [await outcome(task) for task in (request, late, drain)]
    assert ["ShuttingDownError", "ShuttingDownError", "waits"] == answers
    waiters.stop()
    hand.fail(POISONED)
    assert "waits" == await outcome(drain)
    is_over = True
    hand.engine.end_turn()

    assert "True" == await outcome(drain)


async def test_a_full_log_wakes_those_whose_condition_sees_it() -> None:
    """A refusal is a turn: a publisher that waits for room is refused, the sink waits on."""
    hand = Hand()
    broker = hand.engine.broker
    publisher = await begun(hand.engine.waiters.until(lambda: bool(broker.refusal)))
    declared(hand)
    hand.engine.end_turn()
    hand.fail(LogFullError())
    assert "True" == await outcome(publisher)
    sink = await begun(hand.engine.waiters.until(lambda: not broker.refusal))
    assert "waits" == await outcome(sink)
    hand.engine.room_made()

    assert "True" == await outcome(sink)


# Cancelled.


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """And the engine, which may wake it in the same step, does not stumble over it."""
    hand = Hand()
    waiters = hand.engine.waiters
    is_over = False
    tasks = [
        await begun(waiters.committed(declared(hand).id)),
        await begun(waiters.until(lambda: is_over)),
        await begun(waiters.until(lambda: is_over, within_s=60)),
    ]
    for task in tasks:
        task.cancel()
    is_over = True
    hand.commit()
    hand.fail(POISONED)

    assert 3 * ["cancelled"] == [await outcome(task) for task in tasks]
    assert 0 == await left(hand)


async def test_a_wait_that_was_refused_and_cancelled_is_cancelled() -> None:
    """The refusal that came with the cancellation is not reported as an error of the loop."""
    hand = Hand()
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context)
    )
    task = await begun(hand.engine.waiters.committed(declared(hand).id))
    hand.fail(LogFullError())
    task.cancel()

    assert "cancelled" == await outcome(task)
    assert (0, []) == (await left(hand), reported)
