"""What becomes of a publish to a queue that is full."""

import pytest

from braidmq.broker import overflow
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.delivery.rules import of_policy
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    REDIRECT_TO_DLQ,
    Policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Topic

DECISIONS = {
    DROP_OLDEST: overflow.ACCEPT,
    DROP_NEWEST: overflow.REFUSE,
    BLOCK_PUBLISHER: overflow.WAIT,
    REDIRECT_TO_DLQ: overflow.REDIRECT,
}


def queue_of(strategy: int, *, max_size: int = 3, dead_letters: bool = True) -> Queue:
    policy = Policy()
    policy.overflow, policy.max_size, policy.dead_letters = strategy, max_size, dead_letters
    return Queue(Topic("q"), policy, of_policy(policy, Settings()), 0)


@pytest.mark.parametrize(("strategy", "decision"), DECISIONS.items())
def test_a_full_queue_does_as_was_declared(strategy: int, decision: int) -> None:
    """One below the bound every strategy accepts."""
    queue = queue_of(strategy)
    queue.lanes[0].unsettled = 2
    below = overflow.judge(queue)
    queue.lanes[0].unsettled = 3

    assert (overflow.ACCEPT, decision) == (below, overflow.judge(queue))


@pytest.mark.parametrize("strategy", DECISIONS)
def test_a_queue_without_a_bound_is_never_full(strategy: int) -> None:
    """The backlog lives in the log."""
    queue = queue_of(strategy, max_size=0)
    queue.lanes[0].unsettled = 1_000_000

    assert overflow.ACCEPT == overflow.judge(queue)


def test_what_is_not_committed_counts_as_waiting() -> None:
    """A thousand publishers in one turn do not get past the bound."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.pending = 1, 2

    assert overflow.REFUSE == overflow.judge(queue)


def test_what_is_in_flight_does_not_count() -> None:
    """The bound is on what waits."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.lanes[0].in_flight.count = 5, 3

    assert overflow.ACCEPT == overflow.judge(queue)


def test_without_dead_letters_there_is_nowhere_to_redirect_to() -> None:
    """The publish is refused, and its publisher knows."""
    queue = queue_of(REDIRECT_TO_DLQ, dead_letters=False)
    queue.lanes[0].unsettled = 3

    assert overflow.REFUSE == overflow.judge(queue)
