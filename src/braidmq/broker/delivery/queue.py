"""A queue: a topic with a declared policy, the channels it is made of, and its consumers.

    RoundRobin          one lane, shared by all consumers
    PriorityBased       one lane for each priority, each with its own position in the log
    FanOutWithAck       a ledger of what is settled, and a view of it for each subscriber
    FanOutWithoutAck    a ledger that keeps nothing: a message is pushed once, or dropped

Lanes and ledgers are durable: their progress is recorded under ids made from the queue's. A
view is not: what it settles is recorded as the ledger's progress, and what is not settled when
its subscriber leaves waits in the log for the next one. The verbs for queues are methods of
`queues.Queues`.
"""

from typing import Final, final

from braidmq.base import refusals
from braidmq.broker import dead_letters
from braidmq.broker.authorize import SUBSCRIBE, authorize
from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.channels import (
    NEVER,
    Channel,
    Entry,
    Holder,
    Peer,
    open_attempts,
)
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    Policy,
    Rules,
)
from braidmq.broker.quotas import Account
from braidmq.broker.topics import PRIORITY_CRITICAL, Topic

QUEUES_MAX: Final = 100_000
"""Queues of one broker; inventing more names must not use up its memory."""

TOO_MANY: Final = refusals.by_bound("too many queues", QUEUES_MAX, "in one broker")
"""Why no principal gets a new queue; what one alone may have is a quota."""

_LANE_SHIFT: Final = 60
"""Lane ids differ from each other from this bit on, which no id of a log ever reaches."""


def lane_id(queue_id: int, priority: int) -> int:
    """Return the id of a queue's lane; the only one of a queue without priorities has -1."""
    return queue_id + (priority + 1 << _LANE_SHIFT)


class QueueChannel(Channel):
    """A part of a queue; unlike a subscription it knows how much is not settled."""

    def __init__(self, queue: "Queue") -> None:
        super().__init__(queue.topic, queue.rules)
        self.queue: Queue = queue
        self.unsettled: int = 0  # messages that are not settled, wherever they are

    def waiting(self) -> int:
        """Return how many messages wait for a consumer."""
        return max(0, self.unsettled - self.in_flight.count) + len(self.volatile)

    def queue_of(self) -> "Queue | None":
        """Return the queue that this channel belongs to."""
        return self.queue

    def unsettle(self) -> None:
        """Undo the settling of one entry."""
        self.unsettled += 1

    def caught_up(self) -> None:
        """Note that nothing is left to read from the log."""
        self.position.forget_settled()
        # Only now is the number certain: what forced retention has deleted no longer counts.
        self.unsettled = len(self.ready) + len(self.in_flight.open)

    def replay_letter(self, after_id: int, message_id: int) -> None:
        """Apply the record of a dead letter again, for the message it was made of."""
        settled = self.position.settled
        assert settled is not None
        if not settled.contains(message_id):
            self.unsettled -= 1
        settled.add(after_id, message_id)

    def replay_progress(self, made: Progress) -> None:
        """Apply a progress record again."""
        super().replay_progress(made)
        self.unsettled -= made.settled_count


@final
class Lane(QueueChannel):
    """What waits in a queue, of one priority or of all; its consumers share it."""

    def __init__(self, queue: "Queue", priority: int) -> None:
        super().__init__(queue)
        self.priority: int = priority  # -1: messages of every priority
        self.last_id: int = 0  # of the newest message of that priority

    def settle(self, entry: Entry) -> bool:
        """Note the end of an entry; say whether this is the first progress to be recorded."""
        if self.unsettled > 0:
            self.unsettled -= 1
        return super().settle(entry)

    def settle_by_letter(self, entry: Entry) -> bool:  # noqa: ARG002 - it only counts
        """Note the end of an entry whose dead letter's record settles it."""
        if self.unsettled > 0:
            self.unsettled -= 1
        return False

    def newest_id(self) -> int:
        """Return the last message that the log may hold for this lane."""
        # Messages of other priorities must not keep a lane behind: while they flow, reading for
        # it would never end.
        return self.last_id if self.priority >= 0 else self.topic.last_id

    def has_messages(self) -> bool:
        """Say whether durable messages wait, in memory or in the log."""
        if self.ready or self.in_flight.returned or self.in_flight.last_chances:
            return True
        position = self.position
        # A lane that is behind may still have nothing: after a restart everything that the log
        # holds of it may be settled. It must not hold up the lanes of lower priority.
        settled = position.settled
        return position.behind and (
            settled is None or settled.skip_from(position.cursor) < self.last_id
        )

    def recover(self, now_us: int) -> None:
        """Begin to work after a restart."""
        # Of any priority: which ids are this lane's is only known once they are read.
        self.last_id = self.topic.last_id
        super().recover(now_us)


@final
class Ledger(QueueChannel):
    """What is settled of a fan-out queue, by whichever subscriber acknowledged it first.

    Durable messages wait in its views, or without subscribers in the log, so it has no window
    and is never behind. Memory-only messages wait here for the first subscriber.
    """

    def __init__(self, queue: "Queue", *, keeps_nothing: bool) -> None:
        super().__init__(queue)
        self.keeps_nothing: bool = keeps_nothing  # a message without a subscriber is dropped
        self.burying: set[int] = set()  # settled by a view's dead letter that is not committed

    def begin(self, channel_id: int) -> None:
        """Take the record's id as its own: messages above it belong to the queue."""
        super().begin(channel_id)
        self.position.settled = Settled(channel_id)

    def settled(self) -> Settled:
        """Return what is settled."""
        settled = self.position.settled
        assert settled is not None
        return settled

    def settled_ranges(self, committed_id: int) -> list[tuple[int, int]]:
        """Return the ranges (after, last] of all that is settled, for a snapshot."""
        settled = self.settled()
        is_settled = self.unsettled == 0 and settled.floor >= self.topic.last_id
        # As for a channel that is not behind: a quiet queue must not hold back retention.
        if is_settled or self.keeps_nothing:
            return [(0, max(settled.floor, committed_id))]
        return settled.ranges()

    def replay_letter(self, after_id: int, message_id: int) -> None:
        """Apply the record of a dead letter again, for the message it was made of."""
        if not self.settled().contains(message_id):
            self.burying.add(message_id)
        super().replay_letter(after_id, message_id)

    def replay_progress(self, made: Progress) -> None:
        """Apply a progress record again."""
        super().replay_progress(made)
        # One subscriber may acknowledge a message that another one gave up on. When the record
        # of that dead letter came first, this record counts the message a second time.
        twice = [
            message_id
            for message_id in self.burying
            if any(after < message_id <= last for after, last in made.ranges)
        ]
        self.burying.difference_update(twice)
        self.unsettled += len(twice)

    def recover(self, now_us: int) -> None:  # noqa: ARG002 - it has no lease
        """Begin to work after a restart."""
        self.burying.clear()  # dead letters that were read from the log are committed
        position = self.position
        position.begin(self.settled().floor)
        position.known_attempts = open_attempts(position.known_attempts, self.settled())


@final
class View(QueueChannel):
    """What one subscriber of a fan-out has yet to receive; it settles in the ledger."""

    def __init__(self, queue: "Queue", ledger: Ledger, scope: Settled) -> None:
        super().__init__(queue)
        self.ledger: Ledger = ledger
        self.journal = ledger  # a view has no records of its own
        self.scope: Settled = scope  # messages that were not for this subscriber when it joined

    def settle(self, entry: Entry) -> bool:
        """Note the end of an entry; say whether this is the first progress to be recorded."""
        is_first = self.ledger.progress is None
        self.settle_left(entry)
        return is_first

    def settle_left(self, entry: Entry) -> bool:
        """Note the end of an entry, also after the subscriber left; say if it was the first."""
        ledger = self.ledger
        progress = ledger.made_progress()
        if self._settle_in_ledger(entry):
            progress.settle(entry.previous, entry.id)
            return True
        # If the log refuses the dead letter that settled it, this end still counts.
        ledger.burying.discard(entry.id)
        return False

    def settle_by_letter(self, entry: Entry) -> bool:
        """Note the end of an entry whose dead letter's record settles it."""
        if not self._settle_in_ledger(entry):
            return False
        self.ledger.burying.add(entry.id)
        return True

    def _settle_in_ledger(self, entry: Entry) -> bool:
        """Count a message once, however many views have it; say whether this was the first."""
        if self.unsettled > 0:
            self.unsettled -= 1
        ledger = self.ledger
        settled = ledger.settled()
        if settled.contains(entry.id):
            return False
        settled.add(entry.previous, entry.id)
        ledger.unsettled -= 1
        return True

    def attempts_before(self, message_id: int) -> int:
        """Return how often the message was handed out, NEVER if it was not.

        The ids that were handed out to one subscriber or another are not consecutive, so unlike
        a lane a view assumes nothing of a message that it does not know.
        """
        attempts = self.position.known_attempts.pop(message_id, 0)
        return attempts if attempts > 0 else NEVER


@final
class QueueConsumer(Holder):
    """One peer's hold on one queue."""

    def __init__(self, peer: Peer, queue: "Queue", view: View | None) -> None:
        super().__init__(peer)
        self.queue: Queue = queue
        self.view: View | None = view  # in a fan-out with acknowledgement: its own view
        self.prefetch: int = 0  # deliveries that it may hold
        # Versions of the principal that was found to be allowed to consume, or not to be.
        self.allowed: int = -1
        self.barred: int = -1

    def may_take(self) -> bool:
        """Say whether it has room for one more delivery, and is not known to be barred."""
        principal = self.peer.principal
        return (
            self.held < self.prefetch
            and self.peer.room_bytes > 0
            and not self.isolated
            and (principal is None or self.barred != principal.version)
        )

    def is_allowed(self) -> bool:
        """Say whether it may still get messages; its permissions may have changed."""
        principal = self.peer.principal
        assert principal is not None
        if self.allowed == principal.version:
            return True
        if self.barred == principal.version:
            return False
        if authorize(principal, SUBSCRIBE, self.queue.topic.name):
            self.allowed = principal.version
            return True
        self.barred = principal.version
        return False


# What queues share, since most have none of these; `Queue` replaces them before it adds to one.
NO_CONSUMERS: Final[list[QueueConsumer]] = []
_NO_LINE: Final[list[Peer]] = []
_NONE_UNSENDABLE: Final[list[Entry]] = []


@final
class Queue:
    """One queue: its channels, its consumers, and the publishers that wait for room in it."""

    def __init__(self, topic: Topic, policy: Policy, rules: Rules, created_us: int) -> None:
        self.id: int = 0
        self.owner: Account | None = None  # who declared it; None: an earlier version did
        self.topic: Topic = topic
        self.policy: Policy = policy
        self.rules: Rules = rules
        self.size_max: int = policy.max_size  # waiting messages; 0: no bound
        self.ttl_us: int = policy.ttl_us  # of what is published to it; 0: none
        self.created_us: int = created_us
        self.lanes: list[Lane] = []  # by priority; none in a fan-out
        self.ledger: Ledger | None = None  # of a fan-out
        self.consumers: list[QueueConsumer] = NO_CONSUMERS
        self.blocked: list[Peer] = _NO_LINE  # publishers that wait for room; see `line`
        self.pending: int = 0  # durable messages that are accepted and not committed
        self.replaying: int = 0  # dead letters that are still to be sent back
        self.unsendable: list[Entry] = _NONE_UNSENDABLE  # letters of an origin not credible
        # By rising priority, as are a snapshot's rows; `_hand_out_any` starts at the end.
        if policy.mode == PRIORITY_BASED:
            self.lanes = [Lane(self, priority) for priority in range(PRIORITY_CRITICAL + 1)]
        elif policy.mode == FAN_OUT_WITH_ACK:
            self.ledger = Ledger(self, keeps_nothing=False)
        elif policy.mode == FAN_OUT_WITHOUT_ACK:
            self.ledger = Ledger(self, keeps_nothing=True)
        else:
            self.lanes = [Lane(self, -1)]

    def begin(self, queue_id: int) -> None:
        """Take the record's id as its own: messages above it belong to the queue."""
        assert queue_id >> _LANE_SHIFT == 0
        self.id = queue_id
        for lane in self.lanes:
            lane.begin(queue_id)
            lane.id = lane_id(queue_id, lane.priority)
        if self.ledger is not None:
            self.ledger.begin(queue_id)

    def add_consumer(self, consumer: QueueConsumer) -> None:
        """List a consumer."""
        if self.consumers is NO_CONSUMERS:
            self.consumers = []
        self.consumers.append(consumer)

    def line(self) -> list[Peer]:
        """Return the publishers that wait for room, to join them."""
        if self.blocked is _NO_LINE:
            self.blocked = []
        return self.blocked

    def take_line(self) -> list[Peer]:
        """Take the publishers that wait for room: they ask again."""
        blocked = self.blocked
        self.blocked = _NO_LINE
        return blocked

    def add_unsendable(self, entry: Entry) -> None:
        """Note a dead letter that a replay must not meet again."""
        if self.unsendable is _NONE_UNSENDABLE:
            self.unsendable = []
        self.unsendable.append(entry)

    def take_unsendable(self) -> list[Entry]:
        """Take the dead letters that a replay could not send."""
        unsendable = self.unsendable
        self.unsendable = _NONE_UNSENDABLE
        return unsendable

    def letters_name(self) -> str:
        """Return the name of the queue for its dead letters."""
        return self.policy.dead_letter_name or dead_letters.queue_for(self.topic.name)

    def lift_limits(self, rules: Rules) -> None:
        """Obey no bound or TTL any more, and the *rules* of a queue that holds dead letters."""
        self.size_max = 0
        self.ttl_us = 0
        self.rules = rules
        for channel in self.channels():
            channel.rules = rules

    def lane_of(self, priority: int) -> Lane:
        """Return the lane that a message of *priority* belongs to."""
        return self.lanes[priority if len(self.lanes) > 1 else 0]

    def durable_channels(self) -> list[Lane | Ledger]:
        """Return the lanes, or the ledger: what has an id of its own in the log."""
        if self.ledger is not None:
            return [self.ledger]
        return [*self.lanes]

    def channels(self) -> list[QueueChannel]:
        """Return all its channels, views too."""
        return [*self.durable_channels(), *self.views()]

    def channel_of(self, priority: int) -> Lane | Ledger:
        """Return the durable channel that a message of *priority* belongs to."""
        return self.lane_of(priority) if self.ledger is None else self.ledger

    def unsettled(self) -> int:
        """Return how many committed messages are not settled, in flight ones too."""
        return sum(channel.unsettled for channel in self.durable_channels())

    def views(self) -> list[View]:
        """Return the views of a fan-out's subscribers."""
        return [consumer.view for consumer in self.consumers if consumer.view is not None]

    def waiting(self) -> int:
        """Return how many messages wait for a consumer, committed ones only.

        In a fan-out with subscribers it is what the slowest of them has yet to receive.
        """
        ledger = self.ledger
        if ledger is None:
            total = 0
            for lane in self.lanes:
                total += lane.waiting()
            return total
        if self.consumers and not ledger.keeps_nothing:
            return max(view.waiting() for view in self.views())
        if self.drops_oldest():
            # Without subscribers nothing is held but a position in the log. What is too much
            # is dropped when a subscriber comes and the log is read.
            return min(ledger.unsettled, self.size_max) + len(ledger.volatile)
        return ledger.waiting()

    def has_room(self) -> bool:
        """Say whether one more message may come: there is room, or the oldest is dropped.

        Messages that are accepted and not committed yet count as waiting: the bound is exact.
        """
        size_max = self.size_max
        return (
            size_max == 0
            or self.policy.overflow == DROP_OLDEST
            or self.waiting() + self.pending < size_max
        )

    def drops_oldest(self) -> bool:
        """Say whether the oldest message is dropped when there are too many."""
        return self.size_max > 0 and self.policy.overflow == DROP_OLDEST

    def in_flight_count(self) -> int:
        """Return how many deliveries are with consumers."""
        return sum(channel.in_flight.count for channel in [*self.lanes, *self.views()])

    def lowest_waiting(self) -> QueueChannel:
        """Return the channel with the lowest priority of those where messages wait."""
        if self.ledger is not None:
            return self.ledger
        for lane in self.lanes:
            if lane.waiting() > 0:
                break
        return lane

    def new_view(self, ledger: Ledger) -> View:
        """Return a view of what is not settled and no other subscriber will receive.

        What a departed subscriber had not settled goes to the next one that joins. Messages
        that arrive from now on go to all.
        """
        last_id = max(self.id, self.topic.last_id)
        scope = ledger.settled().copy()
        for other in self.views():
            for after, last in other.scope.open_ranges(last_id):
                scope.add(after, last)
        view = View(self, ledger, scope)
        known = ledger.position.known_attempts
        position = view.position
        position.settled = scope.copy()
        position.known_attempts = open_attempts(known, scope)
        position.handed_id = max(position.known_attempts, default=0)
        ledger.position.known_attempts = open_attempts(known, ledger.settled())
        # With other subscribers present, it is not known how much of the backlog is left for
        # this one; `caught_up` corrects the number.
        view.unsettled = 0 if self.consumers else ledger.unsettled
        position.begin(scope.floor)
        position.behind = position.cursor < self.topic.last_id
        if not position.behind:
            position.settled = None
        return view
