"""Queues: topics with a declared policy, and the subscriptions that they are made of.

    RoundRobin          one lane, shared by all consumers
    PriorityBased       one lane for each priority, each with its own place in the log
    FanOutWithAck       one lane that knows what nobody has acknowledged yet, and in memory one
                        view of it for each subscriber
    FanOutWithoutAck    one lane in which nothing ever waits

Lanes are durable: their progress is recorded under ids made from the queue's. This file holds
what a queue is and counts; `queue_delivery` moves its messages.
"""

from typing import Final, final

from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.rules import Rules
from braidmq.broker.delivery.subscriptions import Consumer, Entry, Peer, Subscription
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    Policy,
)
from braidmq.broker.topics import PRIORITY_CRITICAL, Topic

QUEUES_MAX: Final = 100_000
"""Queues of one broker; a publisher cannot grow memory by inventing more."""

PREFETCH_DEFAULT: Final = 100
PREFETCH_MAX: Final = 10_000
"""Unacknowledged deliveries that one consumer may hold."""

_LANE_SHIFT: Final = 60
"""Above every id that a log will ever reach: what tells the lanes of a queue apart."""


@final
class Queue:
    """One queue: its lanes, who consumes it, and who waits to publish to it."""

    def __init__(self, topic: Topic, policy: Policy, rules: Rules, created_us: int) -> None:
        self.id: int = 0
        self.topic: Topic = topic
        self.policy: Policy = policy
        self.rules: Rules = rules
        self.created_us: int = created_us
        self.is_fan_out: bool = policy.mode in {FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK}
        self.lanes: list[Subscription] = []
        self.consumers: list[Consumer] = []
        self.blocked: list[Peer] = []  # publishers that wait for room
        self.pending: int = 0  # durable messages that are accepted and not committed
        self.burying: set[int] = set()  # settled by a view's dead letter, not committed
        self.replaying: int = 0  # dead letters that are still to be sent back
        self.unsendable: list[Entry] = []  # those that say nothing of where they came from
        for priority in range(PRIORITY_CRITICAL + 1) if policy.mode == PRIORITY_BASED else [-1]:
            lane = Subscription(topic, 1, "", rules)
            lane.queue = self
            lane.priority = priority
            lane.is_ledger = self.is_fan_out
            lane.keeps_nothing = policy.mode == FAN_OUT_WITHOUT_ACK
            self.lanes.append(lane)

    def begin(self, queue_id: int) -> None:
        """Take the record's id as its own: messages above it are its."""
        assert queue_id >> _LANE_SHIFT == 0
        self.id = queue_id
        for lane in self.lanes:
            lane.begin(queue_id)
            lane.id = queue_id + (lane.priority + 1 << _LANE_SHIFT)
            if lane.is_ledger:
                lane.settled = Settled(queue_id)

    def lane_of(self, priority: int) -> Subscription:
        """Return the lane that a message of *priority* belongs to."""
        return self.lanes[priority if len(self.lanes) > 1 else 0]

    def waiting(self) -> int:
        """Return how many messages wait for a consumer, committed ones only.

        In a fan-out with subscribers it is what the slowest of them still has to get.
        """
        if self.policy.mode == FAN_OUT_WITH_ACK and self.consumers:
            return max(_waiting_in(consumer.subscription) for consumer in self.consumers)
        if self.is_fan_out and self.policy.max_size and self.policy.overflow == DROP_OLDEST:
            # A fan-out that nobody listens to holds nothing but a place in the log. What is
            # too much is dropped when somebody comes and it is read.
            ledger = self.lanes[0]
            return min(ledger.unsettled, self.policy.max_size) + len(ledger.volatile)
        total = 0
        for lane in self.lanes:
            total += _waiting_in(lane)
        return total

    def in_flight_count(self) -> int:
        """Return how many deliveries are with consumers."""
        total = 0
        for lane in self.lanes:
            total += lane.in_flight.count
        if self.policy.mode == FAN_OUT_WITH_ACK:
            for consumer in self.consumers:
                total += consumer.subscription.in_flight.count
        return total


def _waiting_in(subscription: Subscription) -> int:
    waiting = subscription.unsettled - subscription.in_flight.count
    return max(0, waiting) + len(subscription.volatile)
