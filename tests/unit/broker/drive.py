"""Drives a real broker as the server does, over a log that is a list. It asserts nothing.

Time moves only when a test moves it; a crash keeps only what was committed.
"""

from typing import Final

from braidmq.broker import records, state
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import DELIVERED, WAIT, Broker
from braidmq.broker.dedup import HEADER, NEW
from braidmq.broker.delivery.channels import Channel, Delivery, Entry, Holder, Peer
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.broker.delivery.queue import Queue, QueueConsumer
from braidmq.broker.delivery.subscriptions import Consumer, Subscription
from braidmq.broker.delivery.windows import ENTRY_BYTES
from braidmq.broker.policy import Policy, Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import PRIORITY_NORMAL, Message, Pending, Topic, encode_headers

MS: Final = 1_000
S: Final = 1_000_000
START_US: Final = 1_700_000_000 * S
ROOM_BYTES: Final = 1 << 30
CORRELATION_ID: Final = 4_711
FULL: Final = "no space left"


def body_of(topic: str, payload: bytes = b"") -> bytes:
    """Return topic and payload as a PUBLISH frame carries them."""
    raw = topic.encode()
    return len(raw).to_bytes(2, "big") + raw + payload


def message_of(
    body: bytes,
    *,
    priority: int = 1,
    origin: int = 1,
    timestamp_us: int = 1,
    block: bytes = b"",
) -> Message:
    """Return a durable message for `records` to encode; *body* holds its topic name."""
    message = Message(Topic(""), 1, body)
    message.priority, message.origin = priority, origin
    message.timestamp_us, message.headers = timestamp_us, block
    return message


def peer_of(name: str) -> Peer:
    """Return a new connection of principal *name*, with room for any delivery."""
    peer = Peer()
    peer.principal = Principal(name, publish=["*"], subscribe=["*"])
    peer.room_bytes = ROOM_BYTES
    return peer


def policy_of(**given: int | bool | str) -> Policy:
    """Return the default policy with some values changed."""
    policy = Policy()
    for name, value in given.items():
        assert hasattr(policy, name)
        setattr(policy, name, value)
    return policy


def subscription_at(subscription_id: int) -> Subscription:
    """Return a durable subscription that starts at a record id, outside of any broker."""
    subscription = Subscription(Topic("a"), 1, "ada", Rules(Settings()))
    subscription.begin(subscription_id)
    return subscription


def replayed(*log: bytes) -> Broker:
    """Return a broker recovered from these records alone."""
    broker = Broker(Settings())
    for record_id, record in enumerate(log, 1):
        state.replay(broker, record_id, record)
    state.recovered(broker, len(log) + 1, START_US)
    return broker


class MemoryLog:
    """The committed records (index i has id i + 1) and their snapshots."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.snapshots: list[tuple[int, bytes]] = []
        self.reads: list[ReadRequest] = []

    def read(self, request: ReadRequest) -> tuple[list[tuple[int, bytes]], int]:
        """Answer as a real log does: the first match always, more within the limits."""
        self.reads.append(request)
        found: list[tuple[int, bytes]] = []
        size = 0
        up_to = min(request.up_to, len(self.records))
        for record_id in range(request.after_id + 1, up_to + 1):
            record = self.records[record_id - 1]
            described = records.describe(record)
            if described.topic != request.topic:
                continue
            if request.priority not in {-1, described.priority}:
                continue
            if found and size + len(record) > request.bytes_max:
                return found, record_id - 1
            found.append((record_id, record))
            size += len(record)
            if len(found) == request.count_max:
                return found, record_id
        return found, up_to


class Drive:
    """A broker, its log, a clock, and the batches and reads in progress."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.log = MemoryLog()
        self.now_us = START_US
        self.batch: list[bytes] | None = None  # appended, not committed
        self.requests: list[ReadRequest] = []
        self.awaited_snapshot: tuple[int, bytes] | None = None
        self.broker = Broker(self.settings)
        self.restart()

    # Operations.

    def topic(self, name: str) -> Topic:
        topics = self.broker.topics
        topic = topics.make(name, topics.accounts.of("ada"))
        assert topic is not None
        return topic

    def message(self, topic: str, payload: bytes = b"x", *, qos: int = 1) -> Message:
        return Message(self.topic(topic), qos, body_of(topic, payload))

    def publish_once(self, message: Message, dedup_id: str) -> int:
        """Publish unless it is a duplicate, as the strands do; return its id in the log."""
        broker, topic = self.broker, message.topic.name
        known = broker.dedup.find(topic, dedup_id, self.now_us)
        if known != NEW:
            broker.stats.duplicates += 1
            return known
        message.headers += encode_headers({HEADER: dedup_id})
        message_id = broker.publish(message, self.now_us)
        broker.dedup.remember(topic, dedup_id, message_id, self.now_us)
        return message_id

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        *,
        qos: int = 1,
        ttl_us: int = 0,
        priority: int = PRIORITY_NORMAL,
    ) -> int:
        message = self.message(topic, payload, qos=qos)
        message.priority = priority
        message.expires_us = self.now_us + ttl_us if ttl_us else 0
        return self.broker.publish(message, self.now_us)

    def declare(self, name: str, policy: Policy | None = None) -> Queue:
        """Declare a queue and commit it."""
        declared = policy or self.broker.queues.new_policy(name)
        topic = self.topic(name)
        queue = self.broker.queues.declare(topic, declared, self.now_us, topic.owner)
        self.commit()
        return queue

    def queue(self, name: str) -> Queue:
        return self.broker.queues.by_name[name]

    def join(
        self, queue: Queue, prefetch: int = 100, *, name: str = "ada", peer: Peer | None = None
    ) -> QueueConsumer:
        """Add a consumer to a queue, and read the queue's backlog."""
        queues = self.broker.queues
        consumer = queues.join(peer or peer_of(name), queue, prefetch)
        queues.pump(queue, self.now_us)
        self.serve_reads()
        return consumer

    def leave(self, consumer: QueueConsumer, *, counted: bool = False) -> None:
        consumer.peer.queue_consumers.pop(consumer.queue.id, None)
        self.broker.queues.leave(consumer, self.now_us, counted=counted)

    def taken(self, consumer: QueueConsumer) -> list[Entry]:
        """Take the entries pushed to a queue's consumer that need an acknowledgement."""
        return [d.entry for d in self.pushed(consumer) if d.entry is not None]

    def ack_all(self, consumer: QueueConsumer) -> list[int]:
        """Acknowledge every delivery until none is left; return the ids."""
        ids: list[int] = []
        while entries := self.taken(consumer):
            for entry in entries:
                ids.append(entry.id)
                self.broker.queues.acknowledge(entry, self.now_us)
            self.serve_reads()
        return ids

    def publish_many(self, topic: str, count: int) -> list[int]:
        ids = [self.publish(topic, b"%d" % number) for number in range(count)]
        self.commit()
        return ids

    def subscribe(
        self, topic: str, *, qos: int = 1, name: str = "ada", peer: Peer | None = None
    ) -> Consumer:
        peer = peer or peer_of(name)
        subscription_id = self.broker.subscribe(peer, self.topic(topic), qos, self.now_us)
        self.commit()
        return self.attach(subscription_id, peer=peer)

    def attach(self, subscription_id: int, *, peer: Peer | None = None) -> Consumer:
        consumer = self.broker.subscriptions.attach(peer or peer_of("ada"), subscription_id)
        assert consumer is not None
        return consumer

    def poll(self, consumer: Consumer) -> Delivery | None:
        """Poll, reading the log when the broker waits for it; take the delivery."""
        while (outcome := self.broker.poll(consumer, CORRELATION_ID, self.now_us)) == WAIT:
            self.serve_reads()
            assert consumer.peer in self.broker.take_touched()
        taken = self.pushed(consumer)
        assert (1 if outcome == DELIVERED else 0) == len(taken)
        return taken[0] if taken else None

    def poll_id(self, consumer: Consumer) -> int:
        """Poll, and return the delivered message's id, or 0."""
        delivery = self.poll(consumer)
        return 0 if delivery is None else delivery.message.id

    def poll_ids(self, consumer: Consumer, count: int) -> list[int]:
        return [self.poll_id(consumer) for _ in range(count)]

    def credit(self, consumer: Consumer, count: int) -> list[int]:
        """Give credit; return the ids of the pushed messages."""
        self.broker.credit(consumer, count, CORRELATION_ID, self.now_us)
        return self.pushed_ids(consumer)

    def pushed(self, consumer: Holder) -> list[Delivery]:
        """Take the deliveries pushed to the consumer's peer, as if it had sent them."""
        taken = consumer.peer.deliveries
        consumer.peer.deliveries = []
        return taken

    def pushed_ids(self, consumer: Holder) -> list[int]:
        return [delivery.message.id for delivery in self.pushed(consumer)]

    def pushed_to(self, *consumers: Holder) -> list[list[int]]:
        """Return the ids pushed to each consumer."""
        return [self.pushed_ids(consumer) for consumer in consumers]

    def ack(self, consumer: Consumer, tag: int) -> int:
        """Acknowledge, reading the log when the broker waits for it."""
        while (outcome := self.broker.acknowledge(consumer, tag, self.now_us)) == WAIT:
            self.serve_reads()
        return outcome

    def ack_once(self, consumer: Consumer, tag: int) -> int:
        return self.broker.acknowledge(consumer, tag, self.now_us)

    def disconnect(self, consumer: Holder) -> None:
        self.broker.detach(consumer.peer, self.now_us)

    # The log.

    def append(self) -> list[bytes]:
        """Let the writer take the pending records, unless it has a batch already."""
        if self.batch is None:
            self.batch = self.broker.take_records()
        return self.batch

    def commit(self) -> None:
        """Commit everything accepted, and answer the broker's reads."""
        self.broker.barrier()
        while self.batch is not None or self.broker.wants_commit():
            self.commit_batch()
        self.serve_reads()

    def commit_batch(self) -> None:
        self.log.records.extend(self.append())
        self.batch = None
        committed_id = len(self.log.records)
        self.broker.committed(committed_id, self.now_us)
        if self.awaited_snapshot and self.awaited_snapshot[0] <= committed_id:
            self.log.snapshots.append(self.awaited_snapshot)
            self.awaited_snapshot = None

    def refuse(self) -> list[Pending]:
        """Refuse the batch and everything after it, as a full disk does."""
        self.append()
        self.batch = None
        self.awaited_snapshot = None
        return self.broker.refused(len(self.log.records) + 1, FULL, self.now_us)

    def serve_reads(self) -> None:
        """Answer reads until the broker asks for no more."""
        self.requests += self.broker.take_reads(self.now_us)
        while self.requests:
            self.serve_one_read()
            self.requests += self.broker.take_reads(self.now_us)

    def serve_one_read(self) -> None:
        request = self.requests.pop(0)
        found, reached_id = self.log.read(request)
        self.broker.supply(request, found, reached_id, self.now_us)

    def snapshot(self) -> None:
        """Take a snapshot; it is stored once everything in it is committed."""
        self.awaited_snapshot = state.snapshot(self.broker, self.now_us)
        if self.awaited_snapshot[0] <= self.broker.committed_id:
            self.log.snapshots.append(self.awaited_snapshot)
            self.awaited_snapshot = None

    def restart(self) -> None:
        """Crash, and restart from what was committed."""
        self.batch = None
        self.requests = []
        self.awaited_snapshot = None
        self.broker = Broker(self.settings)
        after_id = 0
        if self.log.snapshots:
            after_id, data = self.log.snapshots[-1]
            state.restore(self.broker, data)
        for record_id, record in enumerate(self.log.records, 1):
            if record_id > after_id:
                state.replay(self.broker, record_id, record)
        state.recovered(self.broker, len(self.log.records) + 1, self.now_us)

    # Time.

    def tick(self) -> None:
        self.broker.tick(self.now_us)

    def advance(self, delay_us: int) -> None:
        """Let time pass, with a tick whenever one is due."""
        until_us = self.now_us + delay_us
        while (due_us := self.broker.next_deadline_us()) <= until_us:
            self.now_us = max(self.now_us, due_us)
            self.tick()
        self.now_us = until_us

    # Inspection.

    def subscription(self, subscription_id: int) -> Subscription:
        return self.broker.subscriptions.by_id[subscription_id]

    def dead_letters(self, topic: str) -> list[records.StoredMessage]:
        """Return the committed dead letters of *topic*, in order."""
        found = [
            records.StoredMessage(r) for r in self.log.records if r[0] == records.DEAD_LETTER
        ]
        return [letter for letter in found if letter.topic == topic]


def entries_of(subscription: Channel) -> int:
    """Return how many messages the subscription holds in memory."""
    return len(subscription.ready) + len(subscription.in_flight) + len(subscription.volatile)


def charged(channel: Channel) -> int:
    """Return what a channel takes of the memory budget."""
    return channel.held_bytes + entries_of(channel) * ENTRY_BYTES
