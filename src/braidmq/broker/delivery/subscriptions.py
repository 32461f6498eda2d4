"""Subscriptions, who consumes them, and the entries that stand for messages in them.

    log ...... | cursor ......... ready ......... open (handed out) ......... settled
               the backlog        the window      in flight, or returned

A durable subscription takes messages from the log's end as they are committed while its window
has room; when it has none it is *behind*, keeps only its cursor, and reads forward later.

A queue (`queues`) is made of subscriptions too: its lanes, and one *view* for
each subscriber of a fan-out, which lives in memory and settles messages in its lane.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.in_flight import InFlight
from braidmq.broker.delivery.rules import Rules
from braidmq.broker.delivery.schedule import Deadline
from braidmq.broker.topics import Message, Topic

if TYPE_CHECKING:
    from braidmq.broker.delivery.followers import Follower
    from braidmq.broker.delivery.queues import Queue

READY: Final = 0
IN_FLIGHT: Final = 1
RETURNED: Final = 2
SETTLED: Final = 3
LEFT: Final = 4
"""Of a fan-out: its subscriber has unsubscribed and may still acknowledge it."""

SUBSCRIPTIONS_MAX: Final = 100_000
"""Subscriptions of all principals; each lives for its lease, used or not."""

_NO_MESSAGE: Final = Message(Topic(""), 0, b"")


@final
class Delivery:
    """One message on its way to one peer; `entry` is None when nobody waits for an ACK."""

    def __init__(
        self, message: Message, correlation_id: int, qos: int, entry: "Entry | None" = None
    ) -> None:
        self.message: Message = message
        self.correlation_id: int = correlation_id
        self.qos: int = qos
        self.entry: Entry | None = entry


class Peer:
    """A connection as the broker sees it: who it is, what waits to be sent, how much may."""

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.deliveries: list[Delivery] = []
        self.room_bytes: int = 0
        self.delivered: int = 0  # messages, until whoever carries them has counted them
        self.consumers: dict[int, Consumer] = {}  # by the id of the subscription or queue
        self.touched: bool = False  # is in the broker's list of peers to look after
        self.following: dict[str, Follower] = {}  # by topic
        self.laggards: list[Follower] = []  # those of them that are behind, in turn

    def note_received(self) -> None:
        """Bring the followers' `unreceived` up to date, where the transport can tell."""


@final
class Consumer:
    """One peer's hold on one subscription."""

    def __init__(self, peer: Peer, subscription: "Subscription") -> None:
        self.peer: Peer = peer
        self.subscription: Subscription = subscription
        self.credit: int = 0
        self.correlation_id: int = 0  # of the latest CREDIT
        self.held: int = 0  # deliveries in flight to this peer
        self.isolated: bool = False  # holds a message's last allowed delivery
        # Of a queue's consumer only.
        self.queue: Queue | None = None
        self.prefetch: int = 0  # deliveries that it may hold
        self.allowed: int = -1  # the version of the principal that was found to be allowed
        self.barred: int = -1  # the one that was found not to be


@final
class Entry(Deadline):
    """A durable message in one subscription."""

    attempts: int = 0
    state: int = READY
    is_last_chance: bool = False  # while it is with nobody: for whom it waits
    consumer: Consumer | None = None

    def __init__(self, subscription: "Subscription", message: Message, previous: int) -> None:
        self.subscription: Subscription = subscription
        self.message: Message = message
        self.id: int = message.id
        self.previous: int = previous  # the message before it in this subscription

    def finish(self) -> None:
        """Mark it settled and let go of the message, wherever this entry is still listed."""
        self.state = SETTLED
        self.due_us = 0
        self.consumer = None
        self.message = _NO_MESSAGE


class Subscription:
    """A queue of one topic's messages for one principal's consumers."""

    def __init__(self, topic: Topic, qos: int, principal: str, rules: Rules) -> None:
        self.id: int = 0
        self.topic: Topic = topic
        self.qos: int = qos
        self.principal: str = principal
        self.rules: Rules = rules
        # Of a queue's lanes and views only.
        self.queue: Queue | None = None
        self.priority: int = -1  # a lane may have the messages of one priority only
        self.newest_id: int = 0  # and this is the last of them that may be in the log
        self.unsettled: int = 0  # messages of it that are not settled, wherever they are
        self.is_ledger: bool = False  # a fan-out's lane: only knows what is settled
        self.keeps_nothing: bool = False  # nor even that: whoever is there has it, or nobody
        self.lane: Subscription | None = None  # where a view settles its messages
        self.scope: Settled | None = None  # what is not a view's business, since it began
        self.ended: bool = False
        self.last_used_us: int = 0
        # Waiting messages: durable ones, and those that live in memory only.
        self.ready: deque[Entry] = deque()
        self.volatile: deque[Message] = deque()
        self.held_bytes: int = 0
        self.in_flight: InFlight = InFlight()
        # The place in the log.
        self.cursor: int = 0  # everything up to it was taken in, or is settled
        self.tail: int = 0  # the last message that was
        self.behind: bool = False  # the log holds more than was taken in
        self.reading: bool = False
        self.handed_id: int = 0  # the newest message ever handed out
        self.progress: Progress | None = None  # since the last progress record
        self.is_unsure: bool = False  # some of what has happened could not be recorded yet
        # What is known of messages that were not taken in yet: since a restart, or because they
        # went ahead.
        self.settled: Settled | None = None
        self.known_attempts: dict[int, int] = {}
        # Who wants messages.
        self.consumers: list[Consumer] = []
        self.waiters: list[Peer] = []

    def begin(self, subscription_id: int) -> None:
        """Take the record's id as its own: messages above it are its."""
        self.id = subscription_id
        self.cursor = subscription_id
        self.tail = subscription_id

    def is_over(self, lease_us: int, now_us: int) -> bool:
        """Say whether nobody has used it for too long; to have credit is to use it."""
        for consumer in self.consumers:
            if consumer.credit > 0:
                self.last_used_us = now_us
                return False
        return self.last_used_us + lease_us <= now_us

    def backlog_is_known_open(self, tag: int) -> bool:
        """Say whether *tag* was handed out before a restart and is not taken in yet."""
        settled = self.settled
        if settled is None or not self.cursor < tag <= self.handed_id:
            return False
        return not settled.contains(tag)

    def made_progress(self) -> Progress:
        """Return the progress to note something in."""
        progress = self.progress
        if progress is None:
            progress = Progress()
            self.progress = progress
        return progress

    def take_progress(self) -> Progress | None:
        """Take what is to be recorded, if anything is certain; `is_unsure`: more is to come."""
        progress = self.progress
        assert progress is not None
        self.progress = None
        return progress

    def settled_ranges(self, committed_id: int) -> list[tuple[int, int]]:
        """Return the ranges (after, last] of all that is settled, for a snapshot.

        They go as far as they can, up to *committed_id* when nothing more waits in the log:
        a subscription of a quiet topic must not hold the whole log back.
        """
        if self.is_ledger:
            assert self.settled is not None
            is_settled = self.unsettled == 0 and self.settled.floor >= self.topic.last_id
            if is_settled or self.keeps_nothing:
                return [(0, max(self.settled.floor, committed_id))]
            return self.settled.ranges()
        unsettled = sorted([*self.in_flight.all(), *self.ready], key=_entry_id)
        ranges: list[tuple[int, int]] = []
        at = 0
        for entry in unsettled:
            if entry.id - 1 > at:
                ranges.append((at, entry.id - 1))
            at = entry.id
        end = self.cursor if self.behind else max(self.cursor, committed_id)
        if end > at:
            ranges.append((at, end))
        if self.settled is not None:
            ranges.extend(
                (max(after, self.cursor), last)
                for after, last in self.settled.ranges()
                if last > self.cursor
            )
        return ranges


def _entry_id(entry: Entry) -> int:
    return entry.id
