"""Backlogs: how many messages wait for their consumers, in all and for each subscription.

The broker counts what waits in a queue. Of a subscription that is behind it knows only
the position in the log: its backlog is then an upper bound, the ids up to the topic's newest
message.
"""

from dataclasses import dataclass

from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Channel
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.subscriptions import Subscription, audience_of
from braidmq.broker.topics import Topic

ROWS_AT_ONCE = 2_000
"""Channels of queues and subscriptions walked at once. The walk is on the event loop, so with
more of them it takes several calls, one each second, and the number is so much older."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages waiting for a consumer, dead letters among them, and those that may expire.

    `consumers` are those of all queues.
    """

    waiting: int = 0
    dead_letters: int = 0
    expiring: int = 0
    consumers: int = 0


class Backlogs:
    """The broker's backlog: current, or some seconds old if there are many rows to walk."""

    def __init__(self) -> None:
        self._backlog: Backlog | None = None
        self._walk = _Walk([], [], [], set())

    def now(self, broker: Broker) -> Backlog:
        """Return the backlog, as it was when the last walk over all rows was complete."""
        if self._walk.is_done:
            self._walk = _begun(broker)
        self._walk.go_on(ROWS_AT_ONCE)
        if self._walk.is_done or self._backlog is None:
            self._backlog = self._walk.backlog
        return self._backlog


class _Walk:
    """A walk over every queue and subscription, some at a time."""

    def __init__(
        self,
        queues: list[Queue],
        subscriptions: list[Subscription],
        followers: list[Follower],
        letter_names: set[str],
    ) -> None:
        self.backlog = Backlog()
        self._queues = queues
        self._subscriptions = subscriptions
        self._followers = followers
        self._letter_names = letter_names

    @property
    def is_done(self) -> bool:
        """Whether every row was walked."""
        return not (self._queues or self._subscriptions or self._followers)

    def go_on(self, rows: int) -> None:
        """Walk *rows* more."""
        waiting, letters = self.backlog.waiting, self.backlog.dead_letters
        expiring, consumers = self.backlog.expiring, self.backlog.consumers
        while rows > 0 and self._queues:
            queue = self._queues.pop()
            channels = queue.channels()
            rows -= len(channels)
            count = queue.waiting()
            waiting += count
            consumers += len(queue.consumers)
            if queue.topic.name in self._letter_names:
                letters += count
            expiring += sum(map(_expiring_in, channels))
        while rows > 0 and self._subscriptions:
            rows -= 1
            subscription = self._subscriptions.pop()
            waiting += lag_of(subscription)
            expiring += _expiring_in(subscription)
        while rows > 0 and self._followers:
            rows -= 1
            waiting += lag_of_follower(self._followers.pop())
        self.backlog = Backlog(waiting, letters, expiring, consumers)


def _begun(broker: Broker) -> _Walk:
    return _Walk(
        list(broker.queues.by_name.values()),
        list(broker.subscriptions.by_id.values()),
        list(broker.followers.by_id.values()),
        broker.queues.letter_queues(),
    )


def walk(broker: Broker) -> Backlog:
    """Walk every queue and subscription in one go, and return the backlog."""
    all_of_it = _begun(broker)
    while not all_of_it.is_done:
        all_of_it.go_on(ROWS_AT_ONCE)
    return all_of_it.backlog


def lag_of(channel: Channel) -> int:
    """Return how many messages wait in a channel; an upper bound if it is behind."""
    waiting = len(channel.ready) + len(channel.volatile)
    # Open and not with a consumer: handed out before, and waiting for redelivery.
    waiting += len(channel.in_flight.open) - channel.in_flight.count
    if channel.position.behind:
        waiting += _unread(channel.topic, channel.position.cursor)
    if channel.position.aside and isinstance(channel, Subscription):
        waiting += audience_of(channel).heard_count(channel)
    return waiting


def lag_of_follower(follower: Follower) -> int:
    """Return how many messages a follower has yet to get; an upper bound."""
    return _unread(follower.topic, follower.cursor) if follower.behind else 0


def _unread(topic: Topic, cursor: int) -> int:
    # Ids between the two belong to all topics, so each of the two numbers bounds it from above.
    return min(topic.message_count, max(0, topic.last_id - cursor))


def _expiring_in(channel: Channel) -> int:
    """Return how many messages in memory have a time to live.

    The broker keeps no timer per message: once a second it looks at the first of every window.
    This count does the same: it judges a whole window by its first message.
    """
    ready, volatile = channel.ready, channel.volatile
    handed_out = channel.in_flight.open
    count = len(ready) if ready and ready[0].message.expires_us else 0
    count += len(volatile) if volatile and volatile[0].expires_us else 0
    if handed_out and next(iter(handed_out.values())).message.expires_us:
        count += len(handed_out)
    if channel.position.aside and isinstance(channel, Subscription):
        count += audience_of(channel).expiring_count(channel)
    return count
