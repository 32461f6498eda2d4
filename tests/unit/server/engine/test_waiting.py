"""Waiting: every coroutine is woken in the turn that ends its wait, and none is left behind.

Between two steps a test only lets the loop run what is ready, and nothing sleeps: a wait that
polled would still be waiting at the assertion.
"""

import asyncio
import operator
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from braidmq.base.errors import NO_SPACE, LogFullError, LogPoisonedError
from braidmq.broker.delivery.dispatch import ChannelRead
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import Policy
from braidmq.server.engine.requests import LogRefusedError, ShuttingDownError
from tests.integration.blip.peer import ack, ping, poll
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio

POISONED = LogPoisonedError("write", "Input/output error")
POISONED_TEXT = "log poisoned: write failed: Input/output error"
FULL_TEXT = NO_SPACE


async def begun(wait: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Start a wait, and run it to the point where it waits."""
    task = asyncio.create_task(wait)
    await asyncio.sleep(0)
    return task


async def outcome(task: "asyncio.Task[Any]") -> str:
    """Return how a wait ended, one step of the loop after it was woken."""
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


# Waiting for a commit.


async def test_a_commit_wakes_the_waits_for_its_records() -> None:
    """In the same turn, and no other waits."""
    hand = Hand()
    first = await begun(hand.engine.waiters.committed(declared(hand).id))
    second = await begun(hand.engine.waiters.committed(declared(hand, "r").id))
    assert ["waits", "waits"] == [await outcome(first), await outcome(second)]
    hand.commit()
    assert ["None", "waits"] == [await outcome(first), await outcome(second)]
    hand.commit()

    assert "None" == await outcome(second)
    assert 0 == await left(hand)


async def test_a_committed_record_is_not_waited_for() -> None:
    """The call returns without another commit."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()

    assert "None" == await outcome(await begun(hand.engine.waiters.committed(queue.id)))


async def test_waiting_ends_the_turn() -> None:
    """The caller's change reaches the log; otherwise the wait would never end."""
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


async def test_a_requeued_record_is_waited_for_under_its_new_id() -> None:
    """The deletion of a queue may use the log's reserve, and is then durable."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    engine = hand.engine
    deleted_id = engine.broker.queues.delete(queue)
    task = await begun(engine.waiters.committed(deleted_id, lasts=True))
    hand.fail(LogFullError())
    assert ("waits", True) == (await outcome(task), hand.log.urgent[-1])
    hand.commit()

    assert "None" == await outcome(task)


async def test_a_log_whose_reserve_is_used_up_refuses_lasting_records_too() -> None:
    """Full twice: the engine cannot tell when there will be room."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    deleted_id = hand.engine.broker.queues.delete(queue)
    task = await begun(hand.engine.waiters.committed(deleted_id, lasts=True))
    hand.fail(LogFullError())
    hand.fail(LogFullError())

    with pytest.raises(LogRefusedError, match=FULL_TEXT):
        await task


async def test_a_failed_log_fails_every_wait_and_every_later_one() -> None:
    """Whatever the wait is for, even for a record that was committed before."""
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


async def test_waits_for_commits_outlast_a_drain_but_not_a_stop() -> None:
    """The log finishes its batches; once it is closed, it reports nothing."""
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


# Waiting for a condition.


async def test_a_wait_ends_in_the_turn_that_makes_its_condition_true() -> None:
    """Here the drain goes on with the last acknowledgement, because nothing is in flight."""
    hand = Hand()
    connection, _ = hand.subscriber()
    connection.receive(poll(3, 1))
    task = await begun(hand.engine.waiters.until(hand.engine.is_quiet))
    assert "waits" == await outcome(task)
    connection.receive(ack(2, 1) + ping(4))
    assert "waits" == await outcome(task)
    hand.commit()

    assert "True" == await outcome(task)
    assert 0 == await left(hand)


async def test_a_finished_read_wakes_the_waits() -> None:
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


async def test_a_closed_connection_wakes_the_waits() -> None:
    """Its last replies are sent; even when the log has failed and turns do nothing more."""
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


async def test_a_condition_that_already_holds_is_not_waited_for() -> None:
    """Nothing is registered, and nothing has to happen first."""
    hand = Hand()

    assert await hand.engine.waiters.until(lambda: True)
    assert 0 == await left(hand)


async def test_without_waiters_a_turn_evaluates_nothing() -> None:
    """A condition is dropped with its wait: later turns do not evaluate it."""
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


async def test_a_wait_for_a_condition_can_time_out() -> None:
    """It returns False, and leaves nothing behind."""
    hand = Hand()

    assert not await hand.engine.waiters.until(lambda: False, within_s=0)
    assert 0 == await left(hand)


async def test_a_drain_refuses_waits_for_conditions_but_its_own() -> None:
    """A request would wait for what no longer happens; the drain waits for what still does."""
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


async def test_a_full_log_wakes_the_waits_whose_condition_it_makes_true() -> None:
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


# Cancellation.


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """The engine copes with that, even if it wakes the wait in the same step."""
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
    """The event loop does not report the refusal, which no caller retrieves, as an error."""
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
