"""Backlogs: how many messages wait for their consumers, in all and for each subscription.

The broker counts what waits in a queue. Of a subscription that is behind it knows only
the position in the log: its backlog is then an upper bound, the ids up to the topic's newest
message.
"""

from dataclasses import dataclass

from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Channel
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.topics import Topic

ROWS_PER_S = 5_000
"""Queues and subscriptions walked per second. The walk is on the event loop, so a broker with
more of them walks less often instead of longer."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages waiting for a consumer, dead letters among them, and those that may expire."""

    waiting: int = 0
    dead_letters: int = 0
    expiring: int = 0


class Backlogs:
    """The broker's backlog: current, or a few seconds old if there are many rows to walk."""

    def __init__(self) -> None:
        self._backlog = Backlog()
        self._due_us = 0

    def now(self, broker: Broker, now_us: int) -> Backlog:
        """Return the backlog."""
        if now_us >= self._due_us:
            self._backlog = walk(broker)
            rows = len(broker.queues.by_name) + broker.subscription_count()
            self._due_us = now_us + 1_000_000 * (rows // ROWS_PER_S)
        return self._backlog


def walk(broker: Broker) -> Backlog:
    """Walk every queue and subscription, and return the backlog."""
    letter_names = broker.queues.letter_queues()
    waiting = letters = 0
    for name, queue in broker.queues.by_name.items():
        count = queue.waiting()
        waiting += count
        if name in letter_names:
            letters += count
    for subscription in broker.subscriptions.by_id.values():
        waiting += lag_of(subscription)
    for follower in broker.followers.by_id.values():
        waiting += lag_of_follower(follower)
    return Backlog(waiting, letters, expiring(broker))


def lag_of(channel: Channel) -> int:
    """Return how many messages wait in a channel; an upper bound if it is behind."""
    waiting = len(channel.ready) + len(channel.volatile)
    # Open and not with a consumer: handed out before, and waiting for redelivery.
    waiting += len(channel.in_flight.open) - channel.in_flight.count
    if channel.position.behind:
        waiting += _unread(channel.topic, channel.position.cursor)
    return waiting


def lag_of_follower(follower: Follower) -> int:
    """Return how many messages a follower has yet to get; an upper bound."""
    return _unread(follower.topic, follower.cursor) if follower.behind else 0


def _unread(topic: Topic, cursor: int) -> int:
    # Ids between the two belong to all topics, so each of the two numbers bounds it from above.
    return min(topic.message_count, max(0, topic.last_id - cursor))


def expiring(broker: Broker) -> int:
    """Return how many messages in memory have a time to live, once for each subscription.

    The broker keeps no timer per message: once a second it looks at the first of every window.
    This count does the same: it judges a whole window by its first message.
    """
    queues = broker.queues.all_channels()
    return sum(map(_expiring_in, (*broker.subscriptions.by_id.values(), *queues)))


def _expiring_in(channel: Channel) -> int:
    ready, volatile = channel.ready, channel.volatile
    handed_out = channel.in_flight.open
    count = len(ready) if ready and ready[0].message.expires_us else 0
    count += len(volatile) if volatile and volatile[0].expires_us else 0
    if handed_out and next(iter(handed_out.values())).message.expires_us:
        count += len(handed_out)
    return count
