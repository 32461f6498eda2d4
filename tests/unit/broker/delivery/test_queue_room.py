"""When a queue is full. What becomes of a publish then is `admission`'s verdict."""

import pytest

from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    REDIRECT_TO_DLQ,
    Policy,
    of_policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Topic

STRATEGIES = (DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ)


def queue_of(strategy: int, *, max_size: int = 3) -> Queue:
    policy = Policy()
    policy.overflow, policy.max_size = strategy, max_size
    return Queue(Topic("q"), policy, of_policy(policy, Settings()), 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_a_queue_that_drops_the_oldest_takes_more_than_its_bound(strategy: int) -> None:
    """One below the bound every queue has room."""
    queue = queue_of(strategy)
    queue.lanes[0].unsettled = 2
    below = queue.has_room()
    queue.lanes[0].unsettled = 3

    assert (True, strategy == DROP_OLDEST) == (below, queue.has_room())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_queue_without_a_bound_is_never_full(strategy: int) -> None:
    """The backlog lives in the log."""
    queue = queue_of(strategy, max_size=0)
    queue.lanes[0].unsettled = 1_000_000

    assert queue.has_room()


def test_what_is_not_committed_counts_as_waiting() -> None:
    """A thousand publishers in one turn do not get past the bound."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.pending = 1, 2

    assert not queue.has_room()


def test_what_is_in_flight_does_not_count() -> None:
    """The bound is on what waits."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.lanes[0].in_flight.count = 5, 3

    assert queue.has_room()
