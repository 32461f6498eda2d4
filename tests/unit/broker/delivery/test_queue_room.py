"""When a queue counts as full; `admission` decides what happens to a publish then."""

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
def test_only_drop_oldest_accepts_more_than_the_limit(strategy: int) -> None:
    """One below the limit every queue has room."""
    queue = queue_of(strategy)
    queue.lanes[0].unsettled = 2
    below = queue.has_room()
    queue.lanes[0].unsettled = 3

    assert (True, strategy == DROP_OLDEST) == (below, queue.has_room())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_queue_without_a_limit_is_never_full(strategy: int) -> None:
    """Its backlog is in the log."""
    queue = queue_of(strategy, max_size=0)
    queue.lanes[0].unsettled = 1_000_000

    assert queue.has_room()


def test_uncommitted_messages_count_as_waiting() -> None:
    """Many publishes in one turn cannot exceed the limit."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.pending = 1, 2

    assert not queue.has_room()


def test_messages_in_flight_do_not_count() -> None:
    """The limit applies to waiting messages."""
    queue = queue_of(DROP_NEWEST)
    queue.lanes[0].unsettled, queue.lanes[0].flight().count = 5, 3

    assert queue.has_room()
