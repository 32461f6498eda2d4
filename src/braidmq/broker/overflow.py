"""Overflow: what becomes of a publish to a queue that is full. Pure decisions."""

from typing import Final

from braidmq.broker.delivery.queues import Queue
from braidmq.broker.policy import BLOCK_PUBLISHER, DROP_NEWEST, DROP_OLDEST, REDIRECT_TO_DLQ

ACCEPT: Final = 1
REFUSE: Final = 2
WAIT: Final = 3
REDIRECT: Final = 4
"""To the queue's dead letters."""


def judge(queue: Queue) -> int:
    """Say what becomes of one more message: ACCEPT, REFUSE, WAIT or REDIRECT.

    Messages that are accepted and not committed yet count as waiting: the bound is exact.
    """
    policy = queue.policy
    if policy.max_size == 0 or queue.waiting() + queue.pending < policy.max_size:
        return ACCEPT
    if policy.overflow == DROP_OLDEST:
        return ACCEPT  # the oldest message is dropped once this one arrives
    if policy.overflow == BLOCK_PUBLISHER:
        return WAIT
    if policy.overflow == REDIRECT_TO_DLQ and policy.dead_letters:
        return REDIRECT
    assert policy.overflow in {DROP_NEWEST, REDIRECT_TO_DLQ}
    return REFUSE
