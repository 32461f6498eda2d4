"""Delivery in queues: who gets a message, what happens when there are too many, who leaves.

What a single delivery is, and how it ends, is the same as for every subscription: `delivery`
and `settling` say it.
"""

from typing import Final, final

from braidmq.broker import dead_letters, records
from braidmq.broker.authorize import SUBSCRIBE, authorize
from braidmq.broker.delivery import rules
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.purges import Purger
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.delivery.subscriptions import (
    LEFT,
    RETURNED,
    SETTLED,
    Consumer,
    Delivery,
    Entry,
    Peer,
    Subscription,
)
from braidmq.broker.outgoing import Declared, Deleted, Outgoing
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    Policy,
    for_dead_letters,
)
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic, Topics

_DELAY_STEPS: Final = 16
"""Delays that peers choose are lengthened by up to a sixteenth: few different ones are left."""


@final
class QueueDeliverer(Purger):
    """Everything that delivery does, and queues."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        super().__init__(settings, topics, outgoing, stats)
        self.queues: dict[str, Queue] = {}
        self.lanes: dict[int, Subscription] = {}
        self._letter_names: set[str] = set()  # queues that others declared for dead letters

    # A queue's life.

    def declare(self, topic: Topic, declared: Policy, now_us: int) -> Queue:
        """Make a queue of *topic*; it counts once the queue's id is committed."""
        queue = self.new_queue(topic, declared, now_us)
        record = records.encode_declare(topic.name, declared, now_us)
        self.begin_queue(queue, self.outgoing.add(Declared(queue), record))
        return queue

    def new_policy(self, name: str) -> Policy:
        """Return what a queue of this name has when nothing is said about it."""
        if dead_letters.is_dead_letter_topic(name):
            return for_dead_letters()
        declared = Policy()
        declared.max_attempts = self.settings.queue_attempts_max
        declared.ttl_us = self.settings.queue_ttl_us
        return declared

    def new_queue(self, topic: Topic, declared: Policy, created_us: int) -> Queue:
        """Return a queue that has not begun yet."""
        return Queue(topic, declared, rules.of_policy(declared, self.settings), created_us)

    def begin_queue(self, queue: Queue, queue_id: int) -> None:
        """Let a queue keep what comes to its topic from *queue_id* on."""
        assert queue.topic.queue is None
        queue.begin(queue_id)
        queue.topic.queue = queue
        self.queues[queue.topic.name] = queue
        for lane in queue.lanes:
            self.lanes[lane.id] = lane
        letters = queue.policy.dead_letter_name
        if letters:
            self._letter_names.add(letters)
            if letters in self.queues:
                self.queues[letters].rules.lift_limits()
        if queue.topic.name in self._letter_names:
            queue.rules.lift_limits()

    def declare_letters(self, topic: Topic, now_us: int) -> None:
        """Make a queue of a topic that dead letters are about to come to."""
        self.declare(topic, for_dead_letters(), now_us)

    def delete(self, queue: Queue) -> int:
        """End a queue with all that waits in it; return the id to be committed for it."""
        self.stats.drop("deleted", queue.waiting() + queue.in_flight_count())
        self.end_queue(queue)
        return self.outgoing.add(Deleted(queue.id), records.encode_delete(queue.id))

    def end_queue(self, queue: Queue) -> None:
        """Let go of a queue and of everything it was holding."""
        for consumer in queue.consumers:
            consumer.peer.consumers.pop(queue.id, None)
            if consumer.subscription.lane is not None:
                self.forget(consumer.subscription)
        for lane in queue.lanes:
            self.forget(lane)
            self.lanes.pop(lane.id, None)
        queue.consumers = []
        self.end_replay(queue)
        queue.topic.queue = None
        self.queues.pop(queue.topic.name, None)
        self._unblock(queue)

    def purge(self, queue: Queue, now_us: int) -> int:
        """Settle everything that waits; return how many messages that were."""
        before = queue.waiting()
        self.empty(queue, now_us)
        self.stats.purged += before
        self._unblock(queue)
        return before

    def lanes_and_views(self) -> list[Subscription]:
        """Return all that queues are made of."""
        found: list[Subscription] = []
        for queue in self.queues.values():
            found.extend(queue.lanes)
            if queue.policy.mode == FAN_OUT_WITH_ACK:
                found.extend([consumer.subscription for consumer in queue.consumers])
        return found

    def needed_id(self, committed_id: int) -> int:
        """Return the lowest id that a queue or a follower still needs from the log."""
        needed = self.followers_need(committed_id)
        for subscription in self.lanes_and_views():
            needed = min(needed, subscription.settled_ranges(committed_id)[0][1] + 1)
        return needed

    # In: a message comes to a queue.

    def route_to_queue(self, queue: Queue, message: Message, now_us: int) -> None:
        """Put a message before the consumers of a queue."""
        if message.qos != 0:
            if message.id < queue.id:
                return  # it was on its way before the queue was declared
            queue.pending -= 1
        mode = queue.policy.mode
        if mode == FAN_OUT_WITHOUT_ACK:
            self._broadcast(queue, message)
            return
        if mode == FAN_OUT_WITH_ACK and message.qos != 0:
            queue.lanes[0].unsettled += 1
            for consumer in queue.consumers:
                consumer.subscription.unsettled += 1
                self.offer(consumer.subscription, message, now_us)
        else:
            lane = queue.lane_of(message.priority)
            if message.qos != 0:
                lane.unsettled += 1
                lane.newest_id = message.id
                if queue.consumers or _drops_oldest(queue):
                    self.offer(lane, message, now_us)
                else:
                    lane.behind = True  # nobody is there: it can wait in the log
            else:
                self.windows.offer_volatile(lane, message)
        self.pump_queue(queue, now_us)
        self.drop_excess(queue, now_us)

    def _broadcast(self, queue: Queue, message: Message) -> None:
        """Push a message once to everyone who is there and has room."""
        heard = False
        for consumer in list(queue.consumers):
            has_room = consumer.peer.room_bytes > 0 and consumer.prefetch > 0
            if has_room and self._is_allowed(queue, consumer):
                self._deliver(consumer.peer, Delivery(message, 0, 0))
                heard = True
            else:
                self.stats.dropped_overflow += 1
        if not heard:
            self.stats.dropped_unheard += 1

    def drop_excess(self, queue: Queue, now_us: int) -> None:
        """Drop the oldest waiting messages of a queue that has too many, if that is its way."""
        if not _drops_oldest(queue):
            return
        if queue.policy.mode == FAN_OUT_WITH_ACK and queue.consumers:
            for consumer in queue.consumers:
                view = consumer.subscription
                while view.unsettled - view.in_flight.count > queue.policy.max_size:
                    if not self.drop_oldest(view, now_us):
                        break
                    self.stats.dropped_overflow += 1
            return
        while queue.waiting() > queue.policy.max_size:
            for lane in queue.lanes:  # the lowest priority first
                if lane.unsettled - lane.in_flight.count > 0 or lane.volatile:
                    break
            if not self.drop_oldest(lane, now_us):
                return  # it has to be read back first, and is looked at again then
            self.stats.dropped_overflow += 1

    # Out: a consumer gets a message.

    def pump_queue(self, queue: Queue, now_us: int) -> None:
        """Push what waits in a queue to its consumers."""
        if queue.replaying:
            self.send_back(queue, now_us)
        if queue.is_fan_out:
            self._pump_views(queue, now_us)
        else:
            while True:
                consumer = self._next_consumer(queue)
                if consumer is None or not self._hand_out_any(queue, consumer, now_us):
                    break
                if len(queue.consumers) > 1:
                    queue.consumers.remove(consumer)
                    queue.consumers.append(consumer)
        if queue.blocked:
            self._unblock(queue)

    def _pump_views(self, queue: Queue, now_us: int) -> None:
        volatile = queue.lanes[0].volatile
        while volatile and queue.consumers:
            message = volatile.popleft()
            self.windows.hold(queue.lanes[0], -len(message.body))
            self._broadcast(queue, message)
        if queue.policy.mode == FAN_OUT_WITH_ACK:
            for consumer in list(queue.consumers):
                while _may_take(consumer) and self._is_allowed(queue, consumer):
                    if not self.hand_out(consumer.subscription, consumer, 0, now_us):
                        break

    def _next_consumer(self, queue: Queue) -> Consumer | None:
        """Return who holds fewest and may have one more; among equals, whose turn it is."""
        while True:
            best: Consumer | None = None
            for consumer in queue.consumers:
                if (best is None or consumer.held < best.held) and _may_take(consumer):
                    best = consumer
                    if consumer.held == 0:
                        break
            if best is None or self._is_allowed(queue, best):
                return best
            # Again, without the one that was turned out just now.

    def _is_allowed(self, queue: Queue, consumer: Consumer) -> bool:
        """Say whether the consumer may still have messages: permissions change meanwhile."""
        principal = consumer.peer.principal
        assert principal is not None
        if consumer.allowed == principal.version:
            return True
        if consumer.barred == principal.version:
            return False
        if authorize(principal, SUBSCRIBE, queue.topic.name):
            consumer.allowed = principal.version
            return True
        consumer.barred = principal.version
        return False

    def _hand_out_any(self, queue: Queue, consumer: Consumer, now_us: int) -> bool:
        for number in range(len(queue.lanes) - 1, -1, -1):  # the highest priority first
            lane = queue.lanes[number]
            if self.hand_out(lane, consumer, 0, now_us):
                return True
            if _has_messages(lane):
                return False  # no lower one goes before them
        return False

    def unblock(self) -> None:
        """Have those look again who wait for room in a queue that has some."""
        for queue in self.queues.values():
            self._unblock(queue)

    def _unblock(self, queue: Queue) -> None:
        if queue.blocked and (
            queue.topic.queue is not queue
            or queue.waiting() + queue.pending < queue.policy.max_size
        ):
            blocked = queue.blocked
            queue.blocked = []
            for peer in blocked:
                self.touch(peer)

    # Consumers come and go.

    def join(self, peer: Peer, queue: Queue, prefetch: int) -> Consumer:
        """Make *peer* a consumer of a queue, or change how much it may hold."""
        consumer = peer.consumers.get(queue.id)
        if consumer is None:
            subscription = queue.lanes[0]
            if queue.policy.mode == FAN_OUT_WITH_ACK:
                subscription = self._new_view(queue)
            consumer = Consumer(peer, subscription)
            consumer.queue = queue
            peer.consumers[queue.id] = consumer
            queue.consumers.append(consumer)
        consumer.prefetch = prefetch
        return consumer

    def _new_view(self, queue: Queue) -> Subscription:
        """Return a view of all that nobody has acknowledged and nobody else has to."""
        lane = queue.lanes[0]
        assert lane.settled is not None
        last_id = max(queue.id, queue.topic.last_id)
        scope = lane.settled.copy()
        for consumer in queue.consumers:
            other = consumer.subscription.scope
            assert other is not None
            for after, last in other.open_ranges(last_id):
                scope.add(after, last)
        view = Subscription(queue.topic, 1, "", queue.rules)
        view.queue = queue
        view.lane = lane
        view.scope = scope
        view.settled = scope.copy()
        view.known_attempts = _open_attempts(lane.known_attempts, scope)
        view.handed_id = max(view.known_attempts, default=0)
        lane.known_attempts = _open_attempts(lane.known_attempts, lane.settled)
        view.unsettled = 0 if queue.consumers else lane.unsettled
        view.cursor = scope.floor
        view.tail = scope.floor
        view.behind = view.cursor < queue.topic.last_id
        if not view.behind:
            view.settled = None
        return view

    def leave_queue(self, consumer: Consumer, now_us: int, *, counted: bool) -> None:
        """Take back what a queue's consumer was holding; *counted* says it was an attempt."""
        queue = consumer.queue
        assert queue is not None
        queue.consumers = [other for other in queue.consumers if other is not consumer]
        if consumer.subscription.lane is not None:
            self._close_view(consumer.subscription, now_us, counted=counted)
        elif consumer.held:
            for lane in queue.lanes:
                for entry in lane.in_flight.all():
                    if entry.consumer is consumer:
                        self.uncount(entry)
                        lane.in_flight.remove(entry.id)
                        if not counted:
                            self._uncount_attempt(lane, entry, now_us)
                        self.give_back(entry, now_us)
        if queue.topic.queue is queue:
            self.pump_queue(queue, now_us)

    def _uncount_attempt(self, lane: Subscription, entry: Entry, now_us: int) -> None:
        entry.attempts -= 1
        self.progress_of(lane, now_us).attempts[entry.id] = entry.attempts

    def _close_view(self, view: Subscription, now_us: int, *, counted: bool) -> None:
        """End a subscriber's obligations; what nobody has acknowledged waits in the lane."""
        lane = view.lane
        assert lane is not None
        assert lane.settled is not None
        lane.known_attempts.update(view.known_attempts)
        left: list[Entry] = []
        for entry in view.in_flight.all():
            if not lane.settled.contains(entry.id):
                if entry.consumer is not None and not counted:
                    self._uncount_attempt(lane, entry, now_us)
                    left.append(entry)
                lane.known_attempts[entry.id] = entry.attempts
        lane.known_attempts = _open_attempts(lane.known_attempts, lane.settled)
        self.forget(view)
        for entry in left:
            entry.state = LEFT

    # The end of a delivery, by the consumer's word.

    def acknowledge(self, entry: Entry, now_us: int) -> None:
        """Settle a message of a queue that was handed out."""
        queue = entry.subscription.queue
        assert queue is not None
        if entry.state == LEFT:
            self._settle_left(entry, now_us)
        else:
            self.settle(entry, now_us)
        self.pump_queue(queue, now_us)

    def _settle_left(self, entry: Entry, now_us: int) -> None:
        lane = entry.subscription.lane
        assert lane is not None
        self.progress_of(lane, now_us)
        if self.settle_in_queue(entry, note=True):
            self.acknowledged = True
            self.stats.acknowledged += 1
        entry.state = SETTLED

    def reject(self, entry: Entry, reason: str, now_us: int) -> None:
        """Give a message up, for *reason*."""
        queue = entry.subscription.queue
        assert queue is not None
        if entry.state == LEFT:
            return  # others have it
        if reason == dead_letters.REJECTED:
            self.stats.nacked += 1
        self.release(entry)
        self.bury(entry, reason, now_us)
        self.pump_queue(queue, now_us)

    def requeue(self, entry: Entry, delay_us: int, now_us: int) -> None:
        """Take a message back, to be handed out again, after a while if that was asked."""
        queue = entry.subscription.queue
        assert queue is not None
        if entry.state == LEFT or (
            entry.state == RETURNED and entry.due_us == 0 and delay_us == 0
        ):
            return  # it has come back already
        self.stats.nacked += 1
        self.release(entry)
        if delay_us > 0 and not entry.subscription.rules.is_exhausted(entry.attempts):
            entry.state = RETURNED
            entry.subscription.in_flight.open[entry.id] = entry
            self.retries.set(entry, now_us, _rounded_up(delay_us))
        else:
            self.give_back(entry, now_us)
        self.pump_queue(queue, now_us)

    # Dead letters, from and back to where they came from.

    def redirect(self, message: Message, queue: Queue, now_us: int) -> Message | None:
        """Return the dead letter of a message that its full queue does not take, or None."""
        topic = self._letters_of(queue.lanes[0], now_us)
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


def _has_messages(lane: Subscription) -> bool:
    if lane.ready or lane.in_flight.returned or lane.in_flight.last_chances:
        return True
    settled = lane.settled  # after a restart all that the log has of it may be settled
    return lane.behind and (settled is None or settled.skip_from(lane.cursor) < lane.newest_id)


def _drops_oldest(queue: Queue) -> bool:
    return queue.policy.max_size > 0 and queue.policy.overflow == DROP_OLDEST


def _open_attempts(known: dict[int, int], settled: Settled) -> dict[int, int]:
    return {i: attempts for i, attempts in known.items() if not settled.contains(i)}


def _may_take(consumer: Consumer) -> bool:
    principal = consumer.peer.principal
    return (
        consumer.held < consumer.prefetch
        and consumer.peer.room_bytes > 0
        and not consumer.isolated
        and (principal is None or consumer.barred != principal.version)
    )


def _rounded_up(delay_us: int) -> int:
    step = 1
    while 2 * step * _DELAY_STEPS <= delay_us:
        step *= 2
    return (delay_us + step - 1) // step * step
