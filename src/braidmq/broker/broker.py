"""The broker: the one file that joins the others.

Verbs change state and leave effects as data, which whoever drives the broker takes after
each turn: `take_records` for the log, `take_reads` for what must be read back from it,
`take_touched` for the peers that have something to send or were waiting. Time is an argument,
in microseconds, and never goes back; `next_deadline_us` says when to call `tick`.
"""

from typing import Final

from braidmq.base.ids import NO_ID
from braidmq.broker import headers, records
from braidmq.broker.acknowledgements import Progress
from braidmq.broker.backlog import ReadRequest
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.dedup import DedupWindow
from braidmq.broker.delivery import Deliverer
from braidmq.broker.expiry import expires_us, is_expired
from braidmq.broker.outgoing import Advanced, Buried, Ended, Outgoing, Started
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats, TopicRow
from braidmq.broker.subscriptions import Consumer, Peer, Subscription
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
        self.deliverer: Deliverer = Deliverer(settings, self.topics, self.outgoing, self.stats)
        self.refusal: str = ""  # why durable publishes are refused now; empty when they are not
        self.committed_id: int = NO_ID
        self.latest_us: int = 0  # the newest time that recovery has met
        self._maintenance_us: int = 0
        self._ttl_us: int = settings.message_ttl_us
        self._encoder: records.MessageEncoder = records.MessageEncoder()
        self._leases_over: list[Subscription] = []

    # What publishers ask for.

    def publish(self, message: Message, now_us: int) -> int:
        """Accept a message; return its id, or 0 when it lives in memory only.

        Whoever calls has checked permission and, for a durable message, `refusal`.
        """
        if self._ttl_us and message.expires_us == 0:
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

    def publish_once(self, message: Message, dedup_id: str, now_us: int) -> int:
        """Accept a durable message unless it is a repeat; return the id it has in the log."""
        topic = message.topic.name
        known = self.dedup.find(topic, dedup_id, now_us)
        if known:
            self.stats.duplicates += 1
            return known
        message.headers = headers.encode(
            {**headers.decode(message.headers), DEDUP_HEADER: dedup_id}
        )
        given = self.publish(message, now_us)
        self.dedup.remember(topic, dedup_id, given, now_us)
        return given

    # What consumers ask for.

    def subscribe(self, peer: Peer, topic: Topic, qos: int, now_us: int) -> int:
        """Make a subscription; return its id, which counts once that id is committed."""
        assert peer.principal is not None
        subscription = Subscription(topic, qos, peer.principal.name)
        subscription.last_used_us = now_us
        record = records.encode_subscribe(qos, now_us, subscription.principal, topic.name)
        given = self.outgoing.add(Started(subscription), record)
        subscription.begin(given)
        return given

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

    def poll(self, consumer: Consumer, correlation_id: int, now_us: int) -> int:
        """Hand the consumer one message, if there is one: DELIVERED, EMPTY or WAIT."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        if self.deliverer.hand_out(consumer, correlation_id, now_us):
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
            self._read_now(subscription)
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
        for consumer in peer.consumers.values():
            if consumer.credit > 0:
                self.deliverer.pump(consumer.subscription, now_us)

    def stop_pushing(self, peer: Peer) -> None:
        """Void the peer's credit; what it holds stays with it."""
        for consumer in peer.consumers.values():
            consumer.credit = 0

    def detach(self, peer: Peer, now_us: int) -> None:
        """Take back what a peer that is gone was holding."""
        for consumer in peer.consumers.values():
            if not consumer.subscription.ended:
                self.deliverer.consumer_left(consumer, now_us)
                waiters = consumer.subscription.waiters
                consumer.subscription.waiters = [
                    other for other in waiters if other is not peer
                ]
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
                self.deliverer.route(item.letter, now_us)

    def refused(self, from_id: int, reason: str, now_us: int) -> list[Pending]:
        """Take back what the log had no room for; return the publishes and subscriptions.

        Progress and ends of subscriptions are queued anew: they may use the log's reserve.
        """
        self.refusal = reason
        self.deliverer.log_refuses = True
        taken = self.outgoing.take_back(from_id)
        refused: list[Pending] = []
        ended: list[Ended] = []
        for item in taken:
            if isinstance(item, Message):
                self.outgoing.bytes -= len(item.body)
                self.stats.refused += 1
                self._forget_dedup(item)
                refused.append(item)
            elif isinstance(item, Started):
                refused.append(item)
            elif isinstance(item, Buried):
                self.outgoing.bytes -= len(item.letter.body)
                self.deliverer.unbury(item, now_us)
            elif isinstance(item, Ended):
                ended.append(item)
        for item in reversed(taken):  # so that each is merged with what came after it
            if isinstance(item, Advanced):
                self._take_progress_back(item.progress)
        for item in ended:
            again = Ended(item.subscription_id, item.reason)
            self.outgoing.add(
                again, records.encode_unsubscribe(item.subscription_id, item.reason)
            )
        return refused

    def accept_again(self) -> None:
        """Take durable publishes again: the log has room."""
        self.refusal = ""
        self.deliverer.log_refuses = False

    def take_reads(self) -> list[ReadRequest]:
        """Take the pieces of backlog that are to be read back from the log."""
        wanted = self.deliverer.reads
        if not wanted:
            return []
        self.deliverer.reads = []
        requests: list[ReadRequest] = []
        for subscription in wanted:
            request = self._read_request(subscription)
            if request is not None:
                requests.append(request)
        return requests

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog; *reached_id* is how far it goes.

        Ids that retention has deleted by force are simply not among what is found.
        """
        subscription = request.subscription
        if subscription.ended:
            return
        for message_id, record in found:
            message = self._stored(subscription.topic, message_id, record)
            self.deliverer.take_in_from_log(subscription, message, now_us)
        subscription.cursor = max(subscription.cursor, reached_id)
        self._end_reading(subscription)
        if subscription.consumers:
            self.deliverer.pump(subscription, now_us)

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
        rows = [
            TopicRow(topic.name, topic.message_count, topic.last_id, len(topic.subscriptions))
            for topic in self.topics.all()
            if topic.name > after
        ]
        rows.sort(key=_row_name)
        return rows

    def needed_id(self) -> int:
        """Return the lowest id that a durable subscription still needs from the log."""
        needed = self.committed_id + 1
        for subscription in self.subscriptions.values():
            if subscription.qos == 0:
                continue
            _, floor = subscription.settled_ranges(self.committed_id)[0]
            needed = min(needed, floor + 1)
        return needed

    # Inside.

    def _advance(self) -> None:
        progress: dict[int, Progress] = {}
        size = 0
        for subscription_id, subscription in self.deliverer.dirty.items():
            made = subscription.progress
            assert made is not None
            progress[subscription_id] = made
            subscription.progress = None
            size += made.size_bytes()
            if size >= PROGRESS_BYTES:
                self._record_progress(progress)
                progress = {}
                size = 0
        self.deliverer.dirty = {}
        self.deliverer.acknowledged = False
        if progress:
            self._record_progress(progress)

    def _record_progress(self, progress: dict[int, Progress]) -> None:
        self.outgoing.add(Advanced(progress), records.encode_progress(progress))

    def _take_progress_back(self, progress: dict[int, Progress]) -> None:
        for subscription_id, earlier in progress.items():
            subscription = self.subscriptions.get(subscription_id)
            if subscription is None:
                continue
            if subscription.progress is not None:
                earlier.merge(subscription.progress)
            subscription.progress = earlier
            self.deliverer.dirty[subscription_id] = subscription
            self.deliverer.acknowledged = True

    def _forget_dedup(self, message: Message) -> None:
        if message.headers:
            dedup_id = headers.decode(message.headers).get(DEDUP_HEADER)
            if dedup_id is not None:
                self.dedup.forget(message.topic.name, dedup_id)

    def _start(self, subscription: Subscription) -> None:
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

    def _read_now(self, subscription: Subscription) -> None:
        if not subscription.reading:
            subscription.reading = True
            self.deliverer.reads.append(subscription)

    def _read_request(self, subscription: Subscription) -> ReadRequest | None:
        settled = subscription.settled
        if settled is not None:
            skipped_to = settled.skip_from(subscription.cursor)
            if skipped_to > subscription.cursor:
                subscription.cursor = skipped_to
                subscription.tail = skipped_to
        if subscription.ended or subscription.cursor >= subscription.topic.last_id:
            self._end_reading(subscription)
            return None
        request = ReadRequest(subscription, self.settings, self.deliverer.held_bytes)
        if settled is not None:
            next_range = settled.next_range_after(subscription.cursor)
            if next_range:
                request.up_to = min(request.up_to, next_range)
        return request

    def _end_reading(self, subscription: Subscription) -> None:
        subscription.reading = False
        subscription.behind = subscription.cursor < subscription.topic.last_id
        if not subscription.behind:
            subscription.settled = None
            subscription.known_attempts = {}
        for peer in subscription.waiters:
            self.deliverer.touch(peer)
        subscription.waiters = []

    def _stored(self, topic: Topic, message_id: int, record: bytes) -> Message:
        head = records.Head(record)
        message = Message(topic, 1, record[head.body_at :])
        message.id = message_id
        message.priority = head.priority
        message.origin = head.origin
        message.timestamp_us = head.timestamp_us
        message.expires_us = head.expires_us
        if head.headers_at != head.body_at:
            message.headers = record[head.headers_at : head.body_at]
        return message

    def _maintain(self, now_us: int) -> None:
        self.dedup.expire(now_us)
        for subscription in list(self.subscriptions.values()):
            self.deliverer.drop_expired(subscription, now_us)
            if self._lease_is_over(subscription, now_us) and not self.refusal:
                self.stats.leases_ended += 1
                self._leases_over.append(subscription)
                self._end(subscription, records.ENDED_BY_LEASE)

    def _lease_is_over(self, subscription: Subscription, now_us: int) -> bool:
        for consumer in subscription.consumers:
            if consumer.credit > 0:
                subscription.last_used_us = now_us
                return False
        lease_us = self.settings.lease_us if subscription.qos else self.settings.lease_qos0_us
        return subscription.last_used_us + lease_us <= now_us


def _row_name(row: TopicRow) -> str:
    return row.name
