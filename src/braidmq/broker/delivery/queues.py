"""Queues: all of them by name, and everything that is done with one.

A queue is declared; messages come to it; its consumers share them, or in a fan-out each gets
them all; a consumer acknowledges, rejects or requeues a delivery; operators purge, replay and
delete. What a queue is made of is in `queue`. How a single delivery is made and how it ends is
the same for every channel: see `pushing` and `settling`.
"""

from typing import Final, final

from braidmq.broker import dead_letters, records
from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.channels import (
    LEFT,
    RETURNED,
    SETTLED,
    Channel,
    Delivery,
    Entry,
    Peer,
    open_attempts,
)
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.queue import (
    NO_CONSUMERS,
    QUEUES_MAX,
    TOO_MANY,
    Ledger,
    Queue,
    QueueConsumer,
    View,
)
from braidmq.broker.delivery.replays import Replays
from braidmq.broker.delivery.settling import Settling, queue_of, view_of
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.outgoing import Declared, Deleted, Effects, Outgoing
from braidmq.broker.policy import Policy, SharedRules, for_dead_letters, rounded_up
from braidmq.broker.quotas import QUEUES, Account
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import TOO_MANY as TOO_MANY_TOPICS
from braidmq.broker.topics import Message, Topic

NOT_BURIED: Final = -1
"""In place of a dead letter's id: it cannot be written now."""


@final
class Queues:
    """Every queue by its name, and what is done with one."""

    def __init__(self, settings: Settings, pushing: Pushing) -> None:
        self.by_name: dict[str, Queue] = {}
        self.channels: dict[int, Channel] = {}  # lanes and ledgers, by their ids
        self.pushing: Pushing = pushing
        self.settling: Settling = pushing.settling
        self.effects: Effects = pushing.effects
        self.windows: Windows = pushing.windows
        self.stats: Stats = pushing.stats
        self.replays: Replays = Replays(pushing.settling, self)
        self._settings: Settings = settings
        self._shared: SharedRules = SharedRules(settings)
        self._outgoing: Outgoing = pushing.settling.outgoing
        self._round: list[Queue] = []  # queues that maintenance has yet to come to
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

    def refusal(self, name: str, principal: Principal) -> str:
        """Make the topic of a new queue; return why *principal* may not, "" if it may."""
        topics = self.settling.topics
        if len(self.by_name) >= QUEUES_MAX:
            return TOO_MANY
        refusal = topics.accounts.refusal(principal.name, principal.quotas, QUEUES)
        if not refusal and topics.open(name, principal) is None:
            refusal = TOO_MANY if topics.refusal == TOO_MANY_TOPICS else topics.refusal
        return refusal

    def declare(
        self, topic: Topic, declared: Policy, now_us: int, owner: Account | None = None
    ) -> Queue:
        """Make a queue of *topic*; it is durable once the queue's id is committed."""
        queue = self.new(topic, declared, now_us)
        record = records.encode_declare(topic.name, declared, now_us)
        if owner is not None:
            record = records.encode_declare_by(owner.id, record)
            if topic.owner is owner:
                topic.unrecorded = False  # a replay makes the topic of the queue's owner
        self.begin(queue, self._outgoing.add(Declared(queue), record))
        self.give(queue, owner)
        return queue

    def give(self, queue: Queue, owner: Account | None) -> None:
        """Charge a queue to *owner* instead of the one before; None: to none, as it ended."""
        for account, count in ((queue.owner, -1), (owner, 1)):
            if account is not None:
                account.add(QUEUES, count)
        queue.owner = owner

    def letters_topic(self, name: str, payer: Account | None, now_us: int) -> Topic | None:
        """Return the topic for dead letters of that name; the first letter declares its queue.

        Both are charged to *payer*. None when the log refuses records, or when there are too
        many topics.
        """
        if self.settling.log_refuses:
            return None
        topic = self.settling.topics.make(name, payer)
        if topic is not None and topic.queue is None:
            self.declare(topic, for_dead_letters(), now_us, payer)
        return topic

    def new(self, topic: Topic, declared: Policy, created_us: int) -> Queue:
        """Return a queue that has not begun yet."""
        policy = self._shared.policy(declared)
        return Queue(topic, policy, self._shared.rules(policy), created_us)

    def begin(self, queue: Queue, queue_id: int) -> None:
        """List a queue: it keeps what comes to its topic from *queue_id* on."""
        assert queue.topic.queue is None
        queue.begin(queue_id)
        queue.topic.queue = queue
        self.by_name[queue.topic.name] = queue
        for channel in queue.durable_channels():
            self.channels[channel.id] = channel
        # Either queue may be declared first; one that holds another's dead letters must never
        # give up on them.
        letters = queue.policy.dead_letter_name
        if letters:
            self._letter_names.add(letters)
            if letters in self.by_name:
                self._lift_limits(self.by_name[letters])
        if queue.topic.name in self._letter_names:
            self._lift_limits(queue)

    def _lift_limits(self, queue: Queue) -> None:
        queue.lift_limits(self._shared.rules(for_dead_letters()))

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
        queue.consumers = NO_CONSUMERS
        self.replays.end(queue)
        self.give(queue, None)
        queue.topic.queue = None
        self.by_name.pop(queue.topic.name, None)
        self.unblock(queue)

    def all_channels(self) -> list[Channel]:
        """Return the lanes, ledgers and views of all queues."""
        return [channel for queue in self.by_name.values() for channel in queue.channels()]

    def letter_queues(self) -> set[str]:
        """Return the names of the queues that hold dead letters, by their name or declared."""
        # Not from `_letter_names`, which keeps the names that deleted queues had declared.
        declared = {queue.policy.dead_letter_name for queue in self.by_name.values()}
        is_by_name = dead_letters.is_dead_letter_topic
        return {name for name in self.by_name if name in declared or is_by_name(name)}

    def letter_queue(self, name: str) -> Queue | None:
        """Return the queue called *name* if it holds dead letters."""
        return self.by_name[name] if name in self.letter_queues() else None

    def needed_id(self, committed_id: int) -> int:
        """Return the lowest id that a queue still needs from the log."""
        needed = committed_id + 1
        for channel in self.all_channels():
            needed = min(needed, channel.settled_ranges(committed_id)[0][1] + 1)
        return needed

    def maintain(self, now_us: int, rows_max: int) -> tuple[bool, int]:
        """Do what is due in some queues; say if that was the last, and how many rows it was.

        What has expired becomes a dead letter, whether it has a consumer or not, and publishers
        that waited for that room are woken.
        """
        if not self._round:
            self._round = list(self.by_name.values())
            self._round.reverse()
        rows = 0
        while self._round and rows < rows_max:
            queue = self._round.pop()
            if queue.topic.queue is queue:
                rows += self._maintain_one(queue, now_us)
        return not self._round, rows

    def _maintain_one(self, queue: Queue, now_us: int) -> int:
        rows = 1
        for channel in queue.channels():
            rows += 1
            self.settling.drop_expired(channel, now_us)
            self.settling.drop_expired_returned(channel, now_us)
            channel.rest()
            if queue.ttl_us > 0:
                self.effects.read_ahead(channel)
        self.unblock(queue)
        return rows

    def unblock(self, queue: Queue) -> None:
        """Wake the publishers that wait for room in a queue, if it has some or has ended."""
        if queue.blocked and (queue.topic.queue is not queue or queue.has_room()):
            self._wake(queue)

    def wake_blocked(self) -> None:
        """Wake every publisher that waits for room, even where there is none."""
        for queue in self.by_name.values():
            if queue.blocked:
                self._wake(queue)

    # In: a queue gets a message.

    def route(self, queue: Queue, message: Message, now_us: int) -> None:
        """Put a message before the consumers of a queue."""
        if message.qos != 0:
            if message.id < queue.id:
                return  # it was on its way before the queue was declared
            queue.pending -= 1  # from here on the lane or the ledger counts it
        if queue.ledger is not None:
            self._route_to_views(queue, queue.ledger, message, now_us)
            return
        lane = queue.lane_of(message.priority)
        if message.qos == 0:
            self.windows.offer_volatile(lane, message)
        else:
            lane.unsettled += 1
            lane.last_id = message.id
            # DropOldest needs the window even without consumers: it drops from there.
            if queue.consumers or queue.drops_oldest():
                self.pushing.offer(lane, message, now_us)
            else:
                lane.position.behind = True  # without a consumer it can wait in the log
        self.pump(queue, now_us)
        self.drop_excess(queue, now_us)

    def _route_to_views(
        self, queue: Queue, ledger: Ledger, message: Message, now_us: int
    ) -> None:
        if ledger.keeps_nothing:
            self._broadcast(queue, message)
            return
        if message.qos == 0:
            self.windows.offer_volatile(ledger, message)
        else:
            ledger.unsettled += 1
            for consumer in queue.consumers:
                view = consumer.view
                assert view is not None
                view.unsettled += 1
                self.pushing.offer(view, message, now_us)
        self.pump(queue, now_us)
        self.drop_excess(queue, now_us)

    def _broadcast(self, queue: Queue, message: Message) -> None:
        """Push a message once to every subscriber that has room; the others miss it."""
        pushed = False
        for consumer in list(queue.consumers):
            has_room = consumer.peer.room_bytes > 0 and consumer.prefetch > 0
            if has_room and consumer.is_allowed():
                self.pushing.deliver(consumer.peer, Delivery(message, 0, 0))
                pushed = True
            else:
                self.stats.dropped.overflow += 1
        if not pushed:
            self.stats.dropped.unheard += 1

    def drop_excess(self, queue: Queue, now_us: int) -> None:
        """Drop the oldest messages of a queue that has too many, if that is its policy."""
        if not queue.drops_oldest():
            return
        size_max = queue.size_max
        views = queue.views()
        # Each subscriber of a fan-out has its own backlog, and each is held to the bound.
        for view in views:
            while view.unsettled - view.in_flight.count > size_max:
                if not self._drop_oldest(view, now_us):
                    break
        while not views and queue.waiting() > size_max:
            if not self._drop_oldest(queue.lowest_waiting(), now_us):
                return  # it has to be read from the log first; this is called again then

    def _drop_oldest(self, channel: Channel, now_us: int) -> bool:
        if not self.settling.drop_oldest(channel, now_us):
            return False
        self.stats.dropped.overflow += 1
        return True

    # Out: a consumer gets a message.

    def pump(self, queue: Queue, now_us: int) -> None:
        """Push what waits in a queue to its consumers."""
        if queue.replaying:
            self.replays.send_back(queue, now_us)
        if queue.ledger is not None:
            self._pump_views(queue, queue.ledger, now_us)
        else:
            while True:
                consumer = self._next_consumer(queue)
                # It holds the fewest: if it can get nothing, neither can the others.
                if consumer is None or not self._hand_out_any(queue, consumer, now_us):
                    break
                if len(queue.consumers) > 1:
                    queue.consumers.remove(consumer)
                    queue.consumers.append(consumer)
        if queue.blocked:
            self.unblock(queue)

    def _pump_views(self, queue: Queue, ledger: Ledger, now_us: int) -> None:
        volatile = ledger.volatile
        while volatile and queue.consumers:
            message = volatile.popleft()
            self.windows.release(ledger, message)
            self._broadcast(queue, message)
        for consumer in list(queue.consumers):
            view = consumer.view
            if view is None:
                return  # nothing waits in a fan-out without acknowledgement
            while consumer.may_take() and consumer.is_allowed():
                if not self.pushing.hand_out(view, consumer, 0, now_us):
                    break

    def _next_consumer(self, queue: Queue) -> QueueConsumer | None:
        """Return the consumer that holds fewest and may take one more; equals take turns."""
        while True:
            best: QueueConsumer | None = None
            for consumer in queue.consumers:
                if (best is None or consumer.held < best.held) and consumer.may_take():
                    best = consumer
                    if consumer.held == 0:
                        break
            if best is None or best.is_allowed():
                return best
            # It was barred just now: look again, without it.

    def _hand_out_any(self, queue: Queue, consumer: QueueConsumer, now_us: int) -> bool:
        for number in range(len(queue.lanes) - 1, -1, -1):  # the highest priority first
            lane = queue.lanes[number]
            if self.pushing.hand_out(lane, consumer, 0, now_us):
                return True
            if lane.has_messages():
                return False  # no message of a lower priority goes before them
        return False

    def _wake(self, queue: Queue) -> None:
        """Have the publishers that wait for room in a queue ask for a verdict again."""
        for peer in queue.take_line():
            self.effects.touch(peer)

    # Consumers come and go.

    def join(self, peer: Peer, queue: Queue, prefetch: int) -> QueueConsumer:
        """Make *peer* a consumer of a queue, or change how much it may hold."""
        consumer = peer.queue_consumers.get(queue.id)
        if consumer is None:
            view: View | None = None
            if queue.ledger is not None and not queue.ledger.keeps_nothing:
                view = queue.new_view(queue.ledger)
            consumer = QueueConsumer(peer, queue, view)
            peer.queue_consumers[queue.id] = consumer
            queue.add_consumer(consumer)
        consumer.prefetch = prefetch
        return consumer

    def leave(self, consumer: QueueConsumer, now_us: int, *, counted: bool) -> None:
        """Take back what a consumer was holding; with *counted* each delivery was an attempt.

        An orderly unsubscribe does not count. A broken connection does: the message may have
        crashed the consumer.

        The caller removes the consumer from its peer.
        """
        queue = consumer.queue
        left = [other for other in queue.consumers if other is not consumer]
        queue.consumers = left or NO_CONSUMERS
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
        if queue.topic.queue is queue:  # not if it was deleted
            self.pump(queue, now_us)

    def _uncount_attempt(self, channel: Channel, entry: Entry, now_us: int) -> None:
        entry.attempts -= 1
        self.effects.progress_of(channel, now_us).attempts[entry.id] = entry.attempts

    def _close_view(self, view: View, now_us: int, *, counted: bool) -> None:
        """End a subscriber's view; what no subscriber has acknowledged waits in the ledger."""
        # The next subscriber continues the count of attempts.
        ledger = view.ledger
        known = {**ledger.position.known_attempts, **view.position.known_attempts}
        left: list[Entry] = []
        for entry in view.in_flight.all():
            if not ledger.settled().contains(entry.id):
                if entry.consumer is not None and not counted:
                    self._uncount_attempt(ledger, entry, now_us)
                    left.append(entry)
                known[entry.id] = entry.attempts
        ledger.position.known_attempts = open_attempts(known, ledger.settled())
        self.settling.forget(view)
        # After `forget`, which marks every entry settled.
        for entry in left:
            entry.state = LEFT

    # A consumer ends a delivery.

    def acknowledge(self, entry: Entry, now_us: int) -> None:
        """Settle a message of a queue that was handed out."""
        if entry.state == LEFT:
            self._settle_left(view_of(entry), entry, now_us)
        else:
            self.settling.settle(entry, now_us)
        self.pump(queue_of(entry), now_us)

    def _settle_left(self, view: View, entry: Entry, now_us: int) -> None:
        # What `settle_left` notes must be recorded.
        self.effects.progress_of(view.ledger, now_us)
        if view.settle_left(entry):
            self.effects.acknowledged = True
            self.stats.acknowledged += 1
        entry.state = SETTLED

    def reject(self, entry: Entry, reason: str, now_us: int) -> int:
        """Give up on a message that was handed out, for *reason*.

        Returns the id of its dead letter, which is not committed yet; 0 if there is none, and
        NOT_BURIED if none can be made now: then the message is handed out again.
        """
        if entry.state == LEFT:
            return 0  # its subscriber has left; the message waits for others
        if reason == dead_letters.REJECTED:
            self.stats.nacked += 1
        self.settling.release(entry)
        before = self._outgoing.last_id
        letter_id = NOT_BURIED
        if self.settling.bury(entry, reason, now_us):
            last_id = self._outgoing.last_id
            letter_id = last_id if last_id > before else 0
        self.pump(queue_of(entry), now_us)
        return letter_id

    def requeue(self, entry: Entry, delay_us: int, now_us: int) -> None:
        """Take a message back to be handed out again, after *delay_us* if that is not 0."""
        if entry.state == LEFT or (
            entry.state == RETURNED and entry.due_us == 0 and delay_us == 0
        ):
            return  # it waits for its next delivery already
        self.stats.nacked += 1
        self.settling.release(entry)
        if delay_us > 0 and not entry.channel.rules.is_exhausted(entry.attempts):
            entry.state = RETURNED
            entry.channel.flight().keep(entry)
            self.settling.retries.set(entry, now_us, rounded_up(delay_us))
        else:
            self.settling.give_back(entry, now_us)
        self.pump(queue_of(entry), now_us)

    # What operators and publishers ask for.

    def purge(self, queue: Queue, now_us: int) -> int:
        """Settle everything that waits; return how many messages that was."""
        before = queue.waiting()
        self.settling.empty(queue, now_us)
        self.stats.dropped.purged += before
        self.unblock(queue)
        return before

    def redirect(self, message: Message, queue: Queue, now_us: int) -> Message | None:
        """Return the dead letter of a message that found its queue full, or None."""
        topic = self.letters_topic(queue.letters_name(), queue.owner, now_us)
        if topic is None:
            return None
        return dead_letters.letter_of(message, topic, dead_letters.OVERFLOW, now_us=now_us)
