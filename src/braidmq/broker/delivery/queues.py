"""Queues: topics with a declared policy, and what peers and operators do with them.

    RoundRobin          one lane, shared by all consumers
    PriorityBased       one lane for each priority, each with its own position in the log
    FanOutWithAck       a ledger of what is settled, and a view of it for each subscriber
    FanOutWithoutAck    a ledger that keeps nothing: a message is pushed once, or dropped

`lanes` has the channels, `sharing` says which consumer is next, `settling` how a delivery ends.
"""

from typing import TYPE_CHECKING, Final, final

from braidmq.broker import dead_letters, records
from braidmq.broker.delivery.channels import (
    LEFT,
    RETURNED,
    SETTLED,
    Channel,
    Entry,
    Holder,
    Peer,
    open_attempts,
)
from braidmq.broker.delivery.queue import Lane, Ledger, View
from braidmq.broker.delivery.settling import Settling, view_of
from braidmq.broker.outgoing import Declared, Deleted, Effects, Outgoing
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    Policy,
    Rules,
    for_dead_letters,
    of_policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import PRIORITY_CRITICAL, Message, Topic

if TYPE_CHECKING:
    from braidmq.broker.delivery.purges import Purges
    from braidmq.broker.delivery.replays import Replays
    from braidmq.broker.delivery.sharing import Sharing

QUEUES_MAX: Final = 100_000
"""Queues of one broker; a publisher cannot grow memory by inventing more."""

PREFETCH_DEFAULT: Final = 100
PREFETCH_MAX: Final = 10_000
"""Unacknowledged deliveries that one consumer may hold."""

_LANE_SHIFT: Final = 60
"""Lane ids differ from each other above this bit, which no id of a log ever reaches."""

_DELAY_STEPS: Final = 16
"""A peer's delay is lengthened by up to a sixteenth, so that there are few different ones."""


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


@final
class Queue:
    """One queue: its channels, its consumers, and the publishers that wait for room in it."""

    def __init__(self, topic: Topic, policy: Policy, rules: Rules, created_us: int) -> None:
        self.id: int = 0
        self.topic: Topic = topic
        self.policy: Policy = policy
        self.rules: Rules = rules
        self.created_us: int = created_us
        self.lanes: list[Lane] = []  # by priority; none in a fan-out
        self.ledger: Ledger | None = None  # of a fan-out
        self.consumers: list[QueueConsumer] = []
        self.blocked: list[Peer] = []  # publishers that wait for room
        self.pending: int = 0  # durable messages that are accepted and not committed
        self.replaying: int = 0  # dead letters that are still to be sent back
        self.unsendable: list[Entry] = []  # dead letters without a believable origin
        if not rules.dead_letter_topic:
            rules.dead_letter_topic = dead_letters.queue_for(topic.name)
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
            lane.id = queue_id + (lane.priority + 1 << _LANE_SHIFT)
        if self.ledger is not None:
            self.ledger.begin(queue_id)

    def lane_of(self, priority: int) -> Lane:
        """Return the lane that a message of *priority* belongs to."""
        return self.lanes[priority if len(self.lanes) > 1 else 0]

    def durable_channels(self) -> list[Lane | Ledger]:
        """Return the lanes, or the ledger: what has an id of its own in the log."""
        if self.ledger is not None:
            return [self.ledger]
        return [*self.lanes]

    def channel_of(self, priority: int) -> Lane | Ledger:
        """Return the durable channel that a message of *priority* belongs to."""
        return self.lane_of(priority) if self.ledger is None else self.ledger

    def unsettled(self) -> int:
        """Return how many committed messages are not settled, in flight ones too."""
        total = 0
        for channel in self.durable_channels():
            total += channel.unsettled
        return total

    def views(self) -> list[View]:
        """Return the views of a fan-out's subscribers."""
        return [consumer.view for consumer in self.consumers if consumer.view is not None]

    def waiting(self) -> int:
        """Return how many messages wait for a consumer, committed ones only.

        In a fan-out with subscribers it is what the slowest of them still has to get.
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
            return min(ledger.unsettled, self.policy.max_size) + len(ledger.volatile)
        return ledger.waiting()

    def has_room(self) -> bool:
        """Say whether one more message may come: there is room, or the oldest is dropped.

        Messages that are accepted and not committed yet count as waiting: the bound is exact.
        """
        policy = self.policy
        return (
            policy.max_size == 0
            or policy.overflow == DROP_OLDEST
            or self.waiting() + self.pending < policy.max_size
        )

    def drops_oldest(self) -> bool:
        """Say whether the oldest message is dropped when there are too many."""
        return self.policy.max_size > 0 and self.policy.overflow == DROP_OLDEST

    def in_flight_count(self) -> int:
        """Return how many deliveries are with consumers."""
        total = 0
        for lane in self.lanes:
            total += lane.in_flight.count
        for view in self.views():
            total += view.in_flight.count
        return total


@final
class Queues:
    """Every queue by its name, and what is done with one."""

    sharing: "Sharing"  # set by `Dispatch`, as are the next two: they need queues in turn
    replays: "Replays"
    purges: "Purges"

    def __init__(self, settings: Settings, settling: Settling) -> None:
        self.by_name: dict[str, Queue] = {}
        self.channels: dict[int, Channel] = {}  # lanes and ledgers, by their ids
        self.settling: Settling = settling
        self.effects: Effects = settling.effects
        self.stats: Stats = settling.stats
        self._settings: Settings = settings
        self._outgoing: Outgoing = settling.outgoing
        self._letter_names: set[str] = set()  # that other queues declared for dead letters

    # A queue's life.

    def new_policy(self, name: str) -> Policy:
        """Return the policy of a queue of this name when nothing is declared."""
        if dead_letters.is_dead_letter_topic(name):
            return for_dead_letters()
        declared = Policy()
        declared.max_attempts = self._settings.queues.attempts_max
        declared.ttl_us = self._settings.queues.ttl_us
        return declared

    def declare(self, topic: Topic, declared: Policy, now_us: int) -> Queue:
        """Make a queue of *topic*; it counts once the queue's id is committed."""
        queue = self.new(topic, declared, now_us)
        record = records.encode_declare(topic.name, declared, now_us)
        self.begin(queue, self._outgoing.add(Declared(queue), record))
        return queue

    def declare_letters(self, topic: Topic, now_us: int) -> None:
        """Make a queue of a topic that is about to get its first dead letter."""
        self.declare(topic, for_dead_letters(), now_us)

    def new(self, topic: Topic, declared: Policy, created_us: int) -> Queue:
        """Return a queue that has not begun yet."""
        return Queue(topic, declared, of_policy(declared, self._settings), created_us)

    def begin(self, queue: Queue, queue_id: int) -> None:
        """Let a queue keep what comes to its topic from *queue_id* on."""
        assert queue.topic.queue is None
        queue.begin(queue_id)
        queue.topic.queue = queue
        self.by_name[queue.topic.name] = queue
        for channel in queue.durable_channels():
            self.channels[channel.id] = channel
        letters = queue.policy.dead_letter_name
        if letters:
            self._letter_names.add(letters)
            if letters in self.by_name:
                self.by_name[letters].rules.lift_limits()
        if queue.topic.name in self._letter_names:
            queue.rules.lift_limits()

    def delete(self, queue: Queue) -> int:
        """End a queue with all that waits in it; return the id to be committed for it."""
        self.stats.drop("deleted", queue.waiting() + queue.in_flight_count())
        self.end(queue)
        return self._outgoing.add(Deleted(queue.id), records.encode_delete(queue.id))

    def end(self, queue: Queue) -> None:
        """Drop a queue and everything it was holding."""
        for consumer in queue.consumers:
            consumer.peer.queue_consumers.pop(queue.id, None)
            if consumer.view is not None:
                self.settling.forget(consumer.view)
        for channel in queue.durable_channels():
            self.settling.forget(channel)
            self.channels.pop(channel.id, None)
        queue.consumers = []
        self.replays.end(queue)
        queue.topic.queue = None
        self.by_name.pop(queue.topic.name, None)
        self.sharing.unblock(queue)

    def all_channels(self) -> list[Channel]:
        """Return the lanes, ledgers and views of all queues."""
        found: list[Channel] = []
        for queue in self.by_name.values():
            found.extend(queue.durable_channels())
            found.extend(queue.views())
        return found

    def needed_id(self, committed_id: int) -> int:
        """Return the lowest id that a queue still needs from the log."""
        needed = committed_id + 1
        for channel in self.all_channels():
            needed = min(needed, channel.settled_ranges(committed_id)[0][1] + 1)
        return needed

    def drop_expired(self, now_us: int) -> None:
        """Make dead letters of what has expired, whether it has a consumer or not."""
        for queue in list(self.by_name.values()):
            for channel in [*queue.durable_channels(), *queue.views()]:
                self.settling.drop_expired(channel, now_us)
                self.settling.drop_expired_returned(channel, now_us)
                if queue.policy.ttl_us > 0:
                    self.effects.read_ahead(channel)

    def unblock(self) -> None:
        """Wake the publishers that wait for room in a queue that has some now."""
        for queue in self.by_name.values():
            self.sharing.unblock(queue)

    def wake_blocked(self) -> None:
        """Wake every publisher that waits for room, also where there is none."""
        for queue in self.by_name.values():
            if queue.blocked:
                self.sharing.wake_blocked(queue)

    # Consumers come and go.

    def join(self, peer: Peer, queue: Queue, prefetch: int) -> QueueConsumer:
        """Make *peer* a consumer of a queue, or change how much it may hold."""
        consumer = peer.queue_consumers.get(queue.id)
        if consumer is None:
            view: View | None = None
            if queue.ledger is not None and not queue.ledger.keeps_nothing:
                view = _new_view(queue, queue.ledger)
            consumer = QueueConsumer(peer, queue, view)
            peer.queue_consumers[queue.id] = consumer
            queue.consumers.append(consumer)
        consumer.prefetch = prefetch
        return consumer

    def leave(self, consumer: QueueConsumer, now_us: int, *, counted: bool) -> None:
        """Take back what a consumer was holding; *counted* says that it was an attempt.

        The caller removes the consumer from its peer.
        """
        queue = consumer.queue
        queue.consumers = [other for other in queue.consumers if other is not consumer]
        if consumer.view is not None:
            self._close_view(consumer.view, now_us, counted=counted)
        elif consumer.held:
            for lane in queue.lanes:
                for entry in lane.in_flight.all():
                    if entry.consumer is consumer:
                        self.settling.release(entry)
                        if not counted:
                            self._uncount_attempt(lane, entry, now_us)
                        self.settling.give_back(entry, now_us)
        if queue.topic.queue is queue:
            self.sharing.pump(queue, now_us)

    def _uncount_attempt(self, channel: Channel, entry: Entry, now_us: int) -> None:
        entry.attempts -= 1
        self.effects.progress_of(channel, now_us).attempts[entry.id] = entry.attempts

    def _close_view(self, view: View, now_us: int, *, counted: bool) -> None:
        """End a subscriber's view; what no subscriber has acknowledged waits in the ledger."""
        ledger = view.ledger
        known = ledger.position.known_attempts
        known.update(view.position.known_attempts)
        left: list[Entry] = []
        for entry in view.in_flight.all():
            if not ledger.settled().contains(entry.id):
                if entry.consumer is not None and not counted:
                    self._uncount_attempt(ledger, entry, now_us)
                    left.append(entry)
                known[entry.id] = entry.attempts
        ledger.position.known_attempts = open_attempts(known, ledger.settled())
        self.settling.forget(view)
        for entry in left:
            entry.state = LEFT

    # The end of a delivery, by the consumer's word.

    def acknowledge(self, entry: Entry, now_us: int) -> None:
        """Settle a message of a queue that was handed out."""
        if entry.state == LEFT:
            self._settle_left(view_of(entry), entry, now_us)
        else:
            self.settling.settle(entry, now_us)
        self.sharing.pump(_queue_of(entry), now_us)

    def _settle_left(self, view: View, entry: Entry, now_us: int) -> None:
        self.effects.progress_of(view.ledger, now_us)
        if view.settle_left(entry):
            self.effects.acknowledged = True
            self.stats.acknowledged += 1
        entry.state = SETTLED

    def reject(self, entry: Entry, reason: str, now_us: int) -> None:
        """Give up on a message that was handed out, for *reason*."""
        if entry.state == LEFT:
            return  # its subscriber has left; the message waits for others
        if reason == dead_letters.REJECTED:
            self.stats.nacked += 1
        self.settling.release(entry)
        self.settling.bury(entry, reason, now_us)
        self.sharing.pump(_queue_of(entry), now_us)

    def requeue(self, entry: Entry, delay_us: int, now_us: int) -> None:
        """Take a message back to be handed out again, after *delay_us* if that is not 0."""
        if entry.state == LEFT or (
            entry.state == RETURNED and entry.due_us == 0 and delay_us == 0
        ):
            return  # it has come back already
        self.stats.nacked += 1
        self.settling.release(entry)
        if delay_us > 0 and not entry.channel.rules.is_exhausted(entry.attempts):
            entry.state = RETURNED
            entry.channel.in_flight.open[entry.id] = entry
            self.settling.retries.set(entry, now_us, _rounded_up(delay_us))
        else:
            self.settling.give_back(entry, now_us)
        self.sharing.pump(_queue_of(entry), now_us)

    # What operators and publishers ask for.

    def pump(self, queue: Queue, now_us: int) -> None:
        """Push what waits in a queue to its consumers."""
        self.sharing.pump(queue, now_us)

    def replay(self, queue: Queue, count: int, now_us: int) -> None:
        """Send the *count* oldest waiting dead letters back to where they came from."""
        self.replays.replay(queue, count, now_us)

    def replay_one(self, queue: Queue, letter_id: int, now_us: int) -> int:
        """Send one waiting dead letter back; return the outcome, as `replays` names it."""
        return self.replays.replay_one(queue, letter_id, now_us)

    def replay_ahead(self, queue: Queue, letter: Message, previous: int, now_us: int) -> int:
        """Send one dead letter back that was read from the log; return the outcome."""
        return self.replays.replay_ahead(queue, letter, previous, now_us)

    def purge(self, queue: Queue, now_us: int) -> int:
        """Settle everything that waits; return how many messages that were."""
        before = queue.waiting()
        self.purges.empty(queue, now_us)
        self.stats.dropped.purged += before
        self.sharing.unblock(queue)
        return before

    def redirect(self, message: Message, queue: Queue, now_us: int) -> Message | None:
        """Return the dead letter of a message that its full queue does not take, or None."""
        topic = self.settling.letters_topic(queue.rules.dead_letter_topic, now_us)
        if topic is None:
            return None
        return dead_letters.letter_of(
            message,
            topic,
            reason=dead_letters.OVERFLOW,
            attempts=0,
            keep_id=False,
            now_us=now_us,
        )


def _new_view(queue: Queue, ledger: Ledger) -> View:
    """Return a view of all that is not settled and that no other subscriber has to get."""
    last_id = max(queue.id, queue.topic.last_id)
    scope = ledger.settled().copy()
    for other in queue.views():
        for after, last in other.scope.open_ranges(last_id):
            scope.add(after, last)
    view = View(queue, ledger, scope)
    known = ledger.position.known_attempts
    position = view.position
    position.settled = scope.copy()
    position.known_attempts = open_attempts(known, scope)
    position.handed_id = max(position.known_attempts, default=0)
    ledger.position.known_attempts = open_attempts(known, ledger.settled())
    view.unsettled = 0 if queue.consumers else ledger.unsettled
    position.begin(scope.floor)
    position.behind = position.cursor < queue.topic.last_id
    if not position.behind:
        position.settled = None
    return view


def _queue_of(entry: Entry) -> Queue:
    queue = entry.channel.queue_of()
    assert queue is not None
    return queue


def _rounded_up(delay_us: int) -> int:
    step = 1
    while 2 * step * _DELAY_STEPS <= delay_us:
        step *= 2
    return (delay_us + step - 1) // step * step
