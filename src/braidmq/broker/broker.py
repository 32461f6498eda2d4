"""The broker: the one file that joins the others.

Verbs change state and leave effects as data, which whoever drives the broker takes after
each turn: `take_records` for the log, `take_reads` for what must be read back from it,
`take_touched` for the peers that have something to send or were waiting. Time is an argument,
in microseconds, and never goes back; `next_deadline_us` says when to call `tick`.
"""

from typing import Final

from braidmq.base.ids import NO_ID
from braidmq.broker import records
from braidmq.broker.admission import REDIRECT, PublishAdmission
from braidmq.broker.cursors import Cursors
from braidmq.broker.dead_letters import is_dead_letter_topic
from braidmq.broker.dedup import DedupWindow
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.backlog import Backlog, ReadRequest
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.rules import Rules, of_settings
from braidmq.broker.delivery.sharing import QueueDeliverer
from braidmq.broker.delivery.subscriptions import Consumer, Peer, Subscription
from braidmq.broker.expiry import expires_us, is_expired
from braidmq.broker.outgoing import (
    Advanced,
    Buried,
    Declared,
    Deleted,
    Ended,
    Outgoing,
    Started,
)
from braidmq.broker.settings import Settings
from braidmq.broker.sinks import Sinks
from braidmq.broker.stats import Stats, TopicRow, topic_rows
from braidmq.broker.topics import Message, Pending, Topic, Topics

DELIVERED: Final = 1
EMPTY: Final = 2
WAIT: Final = 3
"""The answer has to be read back from the log; ask again when the peer is touched."""
UNKNOWN: Final = 4

PROGRESS_BYTES: Final = 1024 * 1024
"""A progress record that has grown to this is followed by another."""

MAINTENANCE_US: Final = 1_000_000
"""How often leases and waiting messages' times are looked at."""


class Broker:
    """Topics, subscriptions and what is on its way between them and the log."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        self.stats: Stats = Stats()
        self.topics: Topics = Topics()
        self.outgoing: Outgoing = Outgoing()
        self.subscriptions: dict[int, Subscription] = {}
        self.dedup: DedupWindow = DedupWindow(settings.dedup_window_us)
        self.deliverer: QueueDeliverer = QueueDeliverer(
            settings, self.topics, self.outgoing, self.stats
        )
        self.backlog: Backlog = Backlog(settings, self.deliverer)
        self.cursors: Cursors = Cursors(self.outgoing)
        self.admission: PublishAdmission = PublishAdmission(
            settings, self.outgoing, self.dedup, self.deliverer, self.stats
        )
        self.sinks: Sinks = Sinks(settings, self.topics, self.outgoing, self.admission)
        self.committed_id: int = NO_ID
        self.latest_us: int = 0  # the newest time that recovery has met
        self._maintenance_us: int = 0
        self._ttl_us: int = settings.message_ttl_us
        self._encoder: records.MessageEncoder = records.MessageEncoder()
        self._leases_over: list[Subscription] = []
        self._rules: Rules = of_settings(settings)
        self._letter_rules: Rules = of_settings(settings, limited=False)

    @property
    def refusal(self) -> str:
        """Why durable publishes are refused now; empty when they are not."""
        return self.admission.refusal

    # What publishers ask for.

    def accept(self, verdict: int, message: Message, dedup_id: str, now_us: int) -> Message:
        """Store what `admission.judge` has let in just now: the message, or its letter."""
        stored = self.admission.take_letter() if verdict == REDIRECT else message
        given = self.publish(stored, now_us)
        if dedup_id:
            self.admission.remember(message.topic, dedup_id, given, now_us)
        return stored

    def publish(self, message: Message, now_us: int) -> int:
        """Store what `admission` let in; return its id, or 0 when it lives in memory only."""
        queue = message.topic.queue
        if queue is not None:
            if queue.policy.ttl_us and message.expires_us == 0:
                message.expires_us = expires_us(now_us, queue.policy.ttl_us)
            if not queue.policy.durable:
                message.qos = 0
            elif message.qos != 0:
                queue.pending += 1
        elif self._ttl_us and message.expires_us == 0:
            message.expires_us = expires_us(now_us, self._ttl_us)
        if message.qos == 0:
            self.deliverer.route(message, now_us)
            return NO_ID
        message.timestamp_us = now_us
        if message.headers:
            record = records.encode_message(
                1,
                message.priority,
                message.origin,
                now_us,
                message.expires_us,
                message.headers,
                message.body,
            )
        else:
            record = self._encoder.encode_plain(message, now_us)
        outgoing = self.outgoing
        outgoing.bytes += len(message.body)
        return outgoing.add(message, record)

    # What consumers ask for.

    def subscribe(self, peer: Peer, topic: Topic, qos: int, now_us: int) -> int:
        """Make a subscription; return its id, which counts once that id is committed."""
        assert peer.principal is not None
        subscription = self.new_subscription(topic, qos, peer.principal.name)
        subscription.last_used_us = now_us
        record = records.encode_subscribe(qos, now_us, subscription.principal, topic.name)
        given = self.outgoing.add(Started(subscription), record)
        subscription.begin(given)
        return given

    def new_subscription(self, topic: Topic, qos: int, principal: str) -> Subscription:
        """Return a subscription that has not begun yet."""
        # Dead letters have no attempt limit: they wait for whoever comes for them.
        rules = self._letter_rules if is_dead_letter_topic(topic.name) else self._rules
        return Subscription(topic, qos, principal, rules)

    def find(self, subscription_id: int) -> Subscription | None:
        """Return the subscription, the lane of a queue or the follower that has this id."""
        found = self.subscriptions.get(subscription_id)
        if found is None:
            found = self.deliverer.lanes.get(subscription_id)
        return self.deliverer.followers.get(subscription_id) if found is None else found

    def attach(self, peer: Peer, subscription_id: int) -> Consumer | None:
        """Return the peer's hold on a subscription, or None when it may have none."""
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None or peer.principal is None:
            return None
        if subscription.principal != peer.principal.name:
            return None
        consumer = Consumer(peer, subscription)
        peer.consumers[subscription_id] = consumer
        return consumer

    def unsubscribe(self, consumer: Consumer) -> int:
        """End a subscription; return the id that must be committed for it."""
        self.stats.unsubscribed += 1
        return self._end(consumer.subscription, records.ENDED_BY_REQUEST)

    def follow(self, peer: Peer, topic: Topic, key: bytes, now_us: int) -> int:
        """Have a topic's messages pushed; return the id to be committed for it, or 0."""
        return self.deliverer.follow(peer, topic, key, now_us)

    def unfollow(self, peer: Peer, topic: Topic) -> int:
        """End what `follow` began; return the id to be committed for it, or 0."""
        return self.deliverer.unfollow(peer, topic)

    def too_large(self, peer: Peer, message: Message, now_us: int) -> None:
        """Make a dead letter of what was pushed to a follower and no frame can carry."""
        letter = self.deliverer.letter_for_too_large(peer, message, now_us)
        if letter is not None:
            self.publish(letter, now_us)

    def subscription_count(self) -> int:
        """Return how many subscriptions there are, followers among them."""
        return len(self.subscriptions) + len(self.deliverer.followers)

    def poll(self, consumer: Consumer, correlation_id: int, now_us: int) -> int:
        """Hand the consumer one message, if there is one: DELIVERED, EMPTY or WAIT."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        if self.deliverer.hand_out(subscription, consumer, correlation_id, now_us):
            return DELIVERED
        if not subscription.reading:
            return EMPTY
        subscription.waiters.append(consumer.peer)
        return WAIT

    def credit(self, consumer: Consumer, count: int, correlation_id: int, now_us: int) -> None:
        """Let the consumer be pushed *count* further messages."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        if count == 0:
            return
        if consumer.credit == 0 and consumer not in subscription.consumers:
            subscription.consumers.append(consumer)
        consumer.credit += count
        consumer.correlation_id = correlation_id
        self.deliverer.pump(subscription, now_us)

    def acknowledge(self, consumer: Consumer, tag: int, now_us: int) -> int:
        """Settle a delivery: DELIVERED, UNKNOWN, or WAIT when the log has to be asked."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        entry = subscription.in_flight.open.get(tag)
        if entry is None:
            if not subscription.backlog_is_known_open(tag):
                return UNKNOWN
            self.backlog.read_now(subscription)
            subscription.waiters.append(consumer.peer)
            return WAIT
        if entry.message.expires_us and is_expired(entry.message.expires_us, now_us):
            self.deliverer.expire_open(entry, now_us)
            outcome = UNKNOWN
        else:
            self.deliverer.settle(entry, now_us)
            outcome = DELIVERED
        if subscription.consumers:
            self.deliverer.pump(subscription, now_us)
        return outcome

    def resume(self, peer: Peer, now_us: int) -> None:
        """Push to a peer that has room again."""
        for consumer in list(peer.consumers.values()):
            if consumer.credit > 0 or consumer.queue is not None:
                self.deliverer.pump(consumer.subscription, now_us)
        self.deliverer.read_for(peer)

    def stop_pushing(self, peer: Peer) -> None:
        """Void the peer's credit; what it holds stays with it."""
        for consumer in peer.consumers.values():
            consumer.credit = 0
            consumer.prefetch = 0

    def detach(self, peer: Peer, now_us: int) -> None:
        """Take back what a peer that is gone was holding."""
        for consumer in list(peer.consumers.values()):
            if not consumer.subscription.ended:
                self.deliverer.consumer_left(consumer, now_us)
                waiters = consumer.subscription.waiters
                consumer.subscription.waiters = [
                    other for other in waiters if other is not peer
                ]
        self.deliverer.leave_followed(peer, now_us)
        peer.consumers = {}
        peer.deliveries = []

    def stop_delivering(self) -> None:
        """Hand nothing out any more: the broker is about to end."""
        self.deliverer.stopped = True

    # The log's side.

    def fence(self) -> int:
        """Return the id whose commit covers all that was accepted, acknowledgements too."""
        if self.deliverer.acknowledged:
            self._advance()
        return self.outgoing.last_id

    def full_fence(self) -> int:
        """Return the id whose commit covers all that has happened, hand-outs and drops too."""
        if self.deliverer.dirty:
            self._advance()
        return self.outgoing.last_id

    def wants_commit(self) -> bool:
        """Say whether there are records for the log.

        Progress becomes one with the next batch, at a fence, or when it is due: until a fence
        asks for it nobody waits for an acknowledgement.
        """
        return len(self.outgoing) > 0

    def take_records(self) -> list[bytes]:
        """Take the records to append next; the first has the id after the last one taken."""
        if self.deliverer.dirty or self.deliverer.acknowledged:
            self._advance()
        return self.outgoing.take_records()

    def committed(self, up_to: int, now_us: int) -> None:
        """Route what is durable now."""
        self.committed_id = up_to
        outgoing = self.outgoing
        for item in outgoing.take_committed(up_to):
            if isinstance(item, Message):
                outgoing.bytes -= len(item.body)
                item.publisher = None
                self.deliverer.route(item, now_us)
            elif isinstance(item, Started):
                self._start(item.subscription)
            elif isinstance(item, Buried):
                outgoing.bytes -= len(item.letter.body)
                self.deliverer.buried(item)
                self.deliverer.route(item.letter, now_us)
        if self.deliverer.replays:
            self.deliverer.go_on_replaying(now_us)

    def refused(self, from_id: int, reason: str, now_us: int) -> list[Pending]:
        """Take back what the log had no room for; return the publishes and subscriptions.

        Progress and ends of subscriptions are queued anew: they may use the log's reserve.
        """
        self.deliverer.log_refuses = True
        taken = self.outgoing.take_back(from_id)
        self.stats.refused -= self.sinks.take_back(from_id)  # nobody is told: they come again
        self.cursors.take_back(taken)
        refused: list[Pending] = []
        ended: list[Ended] = []
        deleted: list[Deleted] = []
        for item in taken:
            if isinstance(item, Message):
                self.outgoing.bytes -= len(item.body)
                self.admission.taken_back(item)
                refused.append(item)
            elif isinstance(item, Started):
                refused.append(item)
                if isinstance(item.subscription, Follower):
                    self.deliverer.drop_follower(item.subscription)
            elif isinstance(item, Buried):
                self.outgoing.bytes -= len(item.letter.body)
                self.deliverer.unbury(item, now_us)
            elif isinstance(item, Ended):
                ended.append(item)
            elif isinstance(item, Deleted):
                deleted.append(item)
            elif isinstance(item, Declared) and item.queue.topic.queue is item.queue:
                self.deliverer.end_queue(item.queue)
        for item in reversed(taken):  # so that each is merged with what came after it
            if isinstance(item, Advanced):
                self._take_progress_back(item.progress)
        for item in ended:
            again = Ended(item.subscription_id, item.reason)
            self.outgoing.add(
                again, records.encode_unsubscribe(item.subscription_id, item.reason)
            )
        for gone in deleted:
            self.outgoing.add(Deleted(gone.queue_id), records.encode_delete(gone.queue_id))
        for item in taken:
            if isinstance(item, Buried):
                # A message that was rejected is not dead: whoever is free gets it again.
                self.deliverer.pump(item.entry.subscription, now_us)
        self.admission.log_refuses(reason)
        return refused

    def accept_again(self) -> None:
        """Take durable publishes again: the log has room."""
        self.admission.log_accepts()
        self.deliverer.log_refuses = False

    def take_reads(self, now_us: int) -> list[ReadRequest]:
        """Take the pieces of backlog that are to be read back from the log."""
        return self.backlog.take_reads(now_us)

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog; *reached_id* is how far it goes.

        Ids that retention has deleted by force are simply not among what is found.
        """
        self.backlog.supply(request, found, reached_id, now_us)

    def take_touched(self) -> list[Peer]:
        """Take the peers that have something to send, or whose answer may be there now."""
        touched = self.deliverer.touched
        if touched:
            self.deliverer.touched = []
            for peer in touched:
                peer.touched = False
        return touched

    def take_leases_over(self) -> list[Subscription]:
        """Take the subscriptions that ended because nobody used them."""
        over = self._leases_over
        self._leases_over = []
        return over

    # Time.

    def next_deadline_us(self) -> int:
        """Return when `tick` is due next."""
        due_us = self._maintenance_us
        retry_us = self.deliverer.retries.next_due_us()
        if 0 < retry_us < due_us:
            due_us = retry_us
        if self.deliverer.dirty and self.deliverer.progress_due_us < due_us:
            due_us = self.deliverer.progress_due_us
        return due_us

    def tick(self, now_us: int) -> None:
        """Do what has fallen due."""
        due = self.deliverer.retries.take_due(now_us)
        if due:
            self.deliverer.timers_ended(due, now_us)
        if self.deliverer.dirty and self.deliverer.progress_due_us <= now_us:
            self._advance()
        if self._maintenance_us <= now_us:
            self._maintenance_us = now_us + MAINTENANCE_US
            self._maintain(now_us)

    # What an operator sees.

    def in_flight_count(self) -> int:
        """Return how many deliveries are with consumers."""
        return self.deliverer.in_flight

    def topic_rows(self, after: str) -> list[TopicRow]:
        """Return the topics with names above *after*, by name."""
        return topic_rows(self.topics, after)

    def needed_id(self) -> int:
        """Return the lowest id that a subscription or a cursor still needs from the log."""
        needed = self.cursors.needed_id(self.committed_id + 1)
        for subscription in self.subscriptions.values():
            if subscription.qos == 0:
                continue
            _, floor = subscription.settled_ranges(self.committed_id)[0]
            needed = min(needed, floor + 1)
        return min(needed, self.deliverer.needed_id(self.committed_id))

    # Inside.

    def _advance(self) -> None:
        progress: dict[int, Progress] = {}
        unsure: dict[int, Subscription] = {}
        size = 0
        for subscription_id, subscription in self.deliverer.dirty.items():
            made = subscription.take_progress()
            if subscription.is_unsure:
                unsure[subscription_id] = subscription
            if made is None:
                continue
            progress[subscription_id] = made
            size += made.size_bytes()
            if size >= PROGRESS_BYTES:
                self._record_progress(progress)
                progress = {}
                size = 0
        self.deliverer.dirty = unsure
        self.deliverer.progress_due_us = self._maintenance_us  # for those that are left
        self.deliverer.acknowledged = False
        if progress:
            self._record_progress(progress)

    def _record_progress(self, progress: dict[int, Progress]) -> None:
        self.outgoing.add(Advanced(progress), records.encode_progress(progress))

    def _take_progress_back(self, progress: dict[int, Progress]) -> None:
        for subscription_id, earlier in progress.items():
            subscription = self.find(subscription_id)
            if subscription is None:
                continue
            if subscription.progress is not None:
                earlier.merge(subscription.progress)
            subscription.progress = earlier
            self.deliverer.dirty[subscription_id] = subscription
            self.deliverer.acknowledged = True

    def _start(self, subscription: Subscription) -> None:
        if isinstance(subscription, Follower):
            self.deliverer.start_follower(subscription)
            return
        self.subscriptions[subscription.id] = subscription
        subscription.topic.subscriptions.append(subscription)

    def _end(self, subscription: Subscription, reason: int) -> int:
        self.deliverer.forget(subscription)
        self.subscriptions.pop(subscription.id, None)
        topic = subscription.topic
        topic.subscriptions = [
            other for other in topic.subscriptions if other is not subscription
        ]
        return self.outgoing.add(
            Ended(subscription.id, reason), records.encode_unsubscribe(subscription.id, reason)
        )

    def _maintain(self, now_us: int) -> None:
        settings = self.settings
        self.dedup.expire(now_us)
        for subscription in self.deliverer.lanes_and_views():
            self.deliverer.drop_expired(subscription, now_us)
        self.deliverer.unblock()
        for subscription in list(self.subscriptions.values()):
            self.deliverer.drop_expired(subscription, now_us)
            lease_us = settings.lease_us if subscription.qos else settings.lease_qos0_us
            if subscription.is_over(lease_us, now_us) and not self.refusal:
                self.stats.leases_ended += 1
                self._leases_over.append(subscription)
                self._end(subscription, records.ENDED_BY_LEASE)
        if not self.refusal:
            self._leases_over.extend(self.deliverer.end_overdue(now_us))
