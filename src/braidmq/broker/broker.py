"""The broker: the one file that joins the others.

Verbs change state and leave effects as data, which the driver takes after each turn:
`take_records` for the log, `take_reads` for what must be read back from it, `take_touched` for
the peers that have something to send or were waiting. Time is an argument, in microseconds, and
never goes back; `next_deadline_us` says when to call `tick`.

    publish ──▶ outgoing ──▶ (log) ──▶ committed ──▶ dispatch.route ──▶ a peer's deliveries

The verbs for queues are methods of `queues`, those for sinks of `sinks`, those for cursors of
`cursors`.
"""

from typing import Final

from braidmq.base.ids import NO_ID
from braidmq.broker import records
from braidmq.broker.admission import REDIRECT, PublishAdmission
from braidmq.broker.cursors import Cursors
from braidmq.broker.dedup import DedupWindow
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Channel, Peer
from braidmq.broker.delivery.dispatch import Dispatch, ReadRequest
from braidmq.broker.delivery.followers import Followers
from braidmq.broker.delivery.queues import Queues
from braidmq.broker.delivery.subscriptions import Consumer, Subscriptions
from braidmq.broker.outgoing import (
    Advanced,
    Buried,
    Declared,
    Deleted,
    Ended,
    Followed,
    LeaseOver,
    Outgoing,
    Started,
    TopicEnded,
    topic_of,
)
from braidmq.broker.settings import Settings
from braidmq.broker.sinks import Sinks
from braidmq.broker.stats import Stats
from braidmq.broker.times import Times
from braidmq.broker.topics import Message, Pending, Topic, Topics

DELIVERED: Final = 1
EMPTY: Final = 2
WAIT: Final = 3
"""The answer has to be read back from the log; ask again when the peer is touched."""
UNKNOWN: Final = 4

MAINTENANCE_US: Final = 1_000_000
"""How often the broker looks for leases and waiting messages that have expired."""

MAINTENANCE_ROWS_MAX: Final = 5_000
"""Subscriptions and channels of queues that one turn looks at; the rest follows soon."""

MAINTENANCE_PAUSE_US: Final = 5_000
"""Between two turns of one round."""


class Broker:
    """Topics, subscriptions and what is on its way between them and the log."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        self.stats: Stats = Stats()
        self.topics: Topics = Topics()
        self.outgoing: Outgoing = Outgoing()
        self.times: Times = Times(self.outgoing)
        self.dedup: DedupWindow = DedupWindow(settings.dedup_window_us)
        self.dispatch: Dispatch = Dispatch(
            settings, self.topics, self.outgoing, self.stats, self.times
        )
        self.subscriptions: Subscriptions = self.dispatch.subscriptions
        self.followers: Followers = self.dispatch.followers
        self.queues: Queues = self.dispatch.queues
        self.cursors: Cursors = Cursors(self.outgoing)
        self.admission: PublishAdmission = PublishAdmission(
            settings, self.outgoing, self.dedup, self.queues, self.stats
        )
        self.sinks: Sinks = Sinks(settings, self.topics, self.outgoing, self.admission)
        self.committed_id: int = NO_ID
        self.maintenance_us: int = 0  # when maintenance is due next

    @property
    def refusal(self) -> str:
        """Why durable publishes are refused now; empty when they are not."""
        return self.admission.refusal

    # What publishers ask for.

    def accept(self, verdict: int, message: Message, dedup_id: str, now_us: int) -> Message:
        """Store what `admission.judge` has just let in: the message, or its dead letter."""
        if verdict == REDIRECT:
            stored = self.admission.take_letter()
            given = self.store_letter(stored)
        else:
            stored = message
            given = self.publish(message, now_us)
        if dedup_id:
            # Under the topic that the publisher named, wherever a letter went: a repeat names
            # that topic again.
            owner = message.topic.owner_id()
            self.dedup.remember(message.topic.name, dedup_id, given, now_us, owner)
        return stored

    def publish(self, message: Message, now_us: int) -> int:
        """Store an admitted message; return its id, or 0 when it lives in memory only."""
        queue = message.topic.queue
        if queue is not None:
            if queue.ttl_us:
                message.set_ttl(queue.ttl_us, now_us)
            if not queue.policy.durable:
                message.qos = 0
            elif message.qos != 0:
                # It takes a place in the queue from now on, not from its commit: otherwise all
                # publishes of one batch could share the last free place.
                queue.pending += 1
        elif self.settings.message_ttl_us:
            message.set_ttl(self.settings.message_ttl_us, now_us)
        if message.qos == 0:
            # Routed at once, so it may overtake durable messages that are being committed.
            self.dispatch.route(message, now_us)
            return NO_ID
        message.timestamp_us = now_us
        outgoing = self.outgoing
        if message.topic.unrecorded:
            record = records.encode_first_message(message, message.topic.claim())
        elif message.headers:
            record = records.encode_message(message)
        else:
            record = outgoing.encoder.encode_plain(message, now_us)
        outgoing.bytes += len(message.body)
        return outgoing.add(message, record)

    def store_letter(self, letter: Message) -> int:
        """Store a dead letter, which was made just now; return its id.

        As a letter that settles a delivery it has a record and does not expire, whatever was
        declared of its queue: its publisher was told that it is durable.
        """
        if letter.topic.queue is not None:
            letter.topic.queue.pending += 1
        self.outgoing.bytes += len(letter.body)
        return self.outgoing.add(letter, records.encode_message(letter))

    # What consumers ask for.

    def subscribe(self, peer: Peer, topic: Topic, qos: int, now_us: int) -> int:
        """Make a subscription; return its id. It takes effect when that id is committed."""
        assert peer.principal is not None
        subscription = self.subscriptions.new(topic, qos, peer.principal.name)
        subscription.last_used_us = now_us
        record = records.encode_subscribe(qos, now_us, subscription.principal, topic.name)
        given = self.outgoing.add(Started(subscription), record)
        subscription.begin(given)
        return given

    def unsubscribe(self, consumer: Consumer) -> int:
        """End a subscription; return the id that must be committed for it."""
        self.stats.unsubscribed += 1
        return self.subscriptions.end(consumer.subscription, records.ENDED_BY_REQUEST)

    def too_large(self, peer: Peer, message: Message, now_us: int) -> None:
        """Make a dead letter of a message for a follower that is too large for any frame."""
        letter = self.followers.letter_of_too_large(peer, message, now_us)
        if letter is not None:
            # Not judged by the admission: the broker accepted this message once already.
            self.store_letter(letter)

    def subscription_count(self) -> int:
        """Return how many subscriptions there are, followers among them."""
        return len(self.subscriptions.by_id) + len(self.followers.by_id)

    def poll(self, consumer: Consumer, correlation_id: int, now_us: int) -> int:
        """Hand the consumer one message, if there is one: DELIVERED, EMPTY or WAIT."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        if subscription.position.aside:
            self.subscriptions.polled(subscription)
        if self.dispatch.pushing.hand_out(subscription, consumer, correlation_id, now_us):
            return DELIVERED
        if not subscription.position.reading:
            return EMPTY
        # EMPTY must hold for the log as well: POLL then PING is how a client asks whether
        # anything is left.
        subscription.position.wait(consumer.peer)
        return WAIT

    def credit(self, consumer: Consumer, count: int, correlation_id: int, now_us: int) -> None:
        """Allow *count* further messages to be pushed to the consumer."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        if count == 0:
            return
        # One that has used up its credit stays listed, and keeps its turn.
        if consumer.credit == 0 and consumer not in subscription.consumers:
            subscription.consumers.append(consumer)
        consumer.credit += count
        consumer.correlation_id = correlation_id
        subscription.position.window = subscription.rules.window
        if subscription.position.aside:
            self.subscriptions.wake(subscription)
        self.subscriptions.pump(subscription, now_us)

    def acknowledge(self, consumer: Consumer, tag: int, now_us: int) -> int:
        """Settle a delivery: DELIVERED, UNKNOWN, or WAIT when the log has to be asked."""
        subscription = consumer.subscription
        subscription.last_used_us = now_us
        entry = subscription.in_flight.open.get(tag)
        if entry is None:
            if not subscription.position.is_known_open(tag):
                return UNKNOWN
            # It was handed out before a restart, and its entry is not read back yet. Only the
            # entry knows the message before it, and a settled range begins there.
            self.dispatch.effects.read_now(subscription)
            subscription.position.wait(consumer.peer)
            return WAIT
        if entry.message.expires_us and entry.message.is_expired(now_us):
            self.dispatch.settling.expire_open(entry, now_us)
            outcome = UNKNOWN
        else:
            self.dispatch.settling.settle(entry, now_us)
            outcome = DELIVERED
        if subscription.consumers:
            self.subscriptions.pump(subscription, now_us)
        return outcome

    def resume(self, peer: Peer, now_us: int) -> None:
        """Push to a peer that has room again."""
        for consumer in list(peer.consumers.values()):
            if consumer.credit > 0:
                if consumer.subscription.position.aside:
                    self.subscriptions.wake(consumer.subscription)
                self.subscriptions.pump(consumer.subscription, now_us)
        for joined in list(peer.queue_consumers.values()):
            self.queues.pump(joined.queue, now_us)
        self.followers.read_for(peer)

    def stop_pushing(self, peer: Peer) -> None:
        """Withdraw the peer's credit; the deliveries that it holds stay with it."""
        for consumer in peer.consumers.values():
            consumer.credit = 0
        for joined in peer.queue_consumers.values():
            joined.prefetch = 0

    def detach(self, peer: Peer, now_us: int) -> None:
        """Take back what a peer that is gone was holding."""
        for consumer in list(peer.consumers.values()):
            subscription = consumer.subscription
            if not subscription.ended:  # one that has ended has taken everything back
                self.subscriptions.leave(consumer, now_us)
                subscription.position.stop_waiting(peer)
        for joined in list(peer.queue_consumers.values()):
            self.queues.leave(joined, now_us, counted=True)
        self.followers.leave(peer, now_us)
        peer.consumers = {}
        peer.queue_consumers = {}
        peer.deliveries = []

    def stop_delivering(self) -> None:
        """Hand out nothing more: the broker is shutting down."""
        self.dispatch.pushing.stopped = True

    # The log's side.

    def barrier(self) -> int:
        """Return the id whose commit covers everything accepted, acknowledgements too."""
        # Hand-outs alone need no record here. If a crash loses them, the message is delivered
        # again counted with one attempt too few, never with one too many.
        if self.dispatch.effects.acknowledged:
            self._advance()
        return self.outgoing.last_id

    def full_barrier(self) -> int:
        """Return the id whose commit covers everything so far, hand-outs and drops too."""
        if self.dispatch.effects.is_dirty():
            self._advance()
        return self.outgoing.last_id

    def wants_commit(self) -> bool:
        """Return whether there are records for the log.

        Progress becomes a record with the next batch, at a barrier, or when it is due: until a
        barrier asks, no peer waits for the commit of an acknowledgement.
        """
        return len(self.outgoing) > 0

    def take_records(self) -> list[bytes]:
        """Take the records to append next; the first has the id after the last one taken."""
        effects = self.dispatch.effects
        if effects.dirty or effects.acknowledged or effects.dirty_followers:
            self._advance()
        return self.outgoing.take_records()

    def committed(self, up_to: int, now_us: int) -> None:
        """Route what is durable now."""
        self.committed_id = up_to
        outgoing = self.outgoing
        dispatch = self.dispatch
        for item in outgoing.take_committed(up_to):
            if isinstance(item, Message):
                outgoing.bytes -= len(item.body)
                # Only a refusal needs it; the message may outlive that connection by days.
                item.publisher = None
                dispatch.route(item, now_us)
            elif isinstance(item, Started):
                self.subscriptions.start(item.subscription)
            elif isinstance(item, Followed):
                self.followers.start(item.follower)
            elif isinstance(item, Buried):
                outgoing.bytes -= len(item.letter.body)
                dispatch.settling.buried(item)
                dispatch.route(item.letter, now_us)
        replays = self.queues.replays
        if replays.running:
            replays.go_on(now_us)

    def refused(self, from_id: int, reason: str, now_us: int) -> list[Pending]:
        """Take back what the log had no room for; return the publishes and subscriptions.

        Progress and ends of subscriptions and queues are queued again: they may use the space
        that the log reserves for them.
        """
        # Set first: messages that are given back below may have no attempts left, and must not
        # become dead letters while the log takes no records.
        self.refuse(reason)
        taken = self.outgoing.take_back(from_id)
        self.stats.refused -= self.sinks.take_back(from_id)  # rows are retried, not reported
        self.cursors.take_back(taken)
        self.times.take_back(taken, now_us)
        refused = self._take_back(taken, now_us)
        for item in reversed(taken):  # so that each is merged with what came after it
            if isinstance(item, Advanced):
                self._take_progress_back(item.progress)
        for item in taken:
            if isinstance(item, Ended):
                again = Ended(item.subscription_id, item.reason)
                record = records.encode_unsubscribe(item.subscription_id, item.reason)
                self.outgoing.add(again, record)
            elif isinstance(item, Deleted):
                self.outgoing.add(Deleted(item.queue_id), records.encode_delete(item.queue_id))
            elif isinstance(item, TopicEnded):
                again_id = self.outgoing.add(item, records.encode_end_topic(item.name))
                self.topics.ended_id = again_id
        for item in taken:
            if isinstance(item, Buried):
                # A message whose dead letter was refused is handed out again.
                self.dispatch.pump(item.entry.channel, now_us)
        return refused

    def refuse(self, reason: str) -> None:
        """Take no durable publish, and make no dead letter: the log has no room."""
        self.dispatch.settling.log_refuses = True
        self.admission.log_refuses(reason)

    def accept_again(self) -> None:
        """Take durable publishes again: the log has room."""
        self.admission.log_accepts()
        self.dispatch.settling.log_refuses = False

    def take_reads(self, now_us: int) -> list[ReadRequest]:
        """Take the pieces of backlog that are to be read back from the log."""
        return self.dispatch.take_reads(now_us)

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog; *reached_id* is how far it goes."""
        self.dispatch.supply(request, found, reached_id, now_us)

    def take_touched(self) -> list[Peer]:
        """Take the peers that have something to send, or whose answer may be there now."""
        return self.dispatch.effects.take_touched()

    def take_leases_over(self) -> list[LeaseOver]:
        """Take the subscriptions and followers that ended because they were not used."""
        return self.dispatch.effects.take_leases_over()

    # Time.

    def next_deadline_us(self) -> int:
        """Return when `tick` is due next."""
        due_us = self.maintenance_us
        retry_us = self.dispatch.settling.retries.next_due_us()
        if 0 < retry_us < due_us:
            due_us = retry_us
        effects = self.dispatch.effects
        if effects.progress_due_us < due_us and effects.is_dirty():
            due_us = effects.progress_due_us
        return due_us

    def tick(self, now_us: int) -> None:
        """Do what has fallen due."""
        due = self.dispatch.settling.retries.take_due(now_us)
        if due:
            self.dispatch.timers_ended(due, now_us)
        effects = self.dispatch.effects
        if effects.progress_due_us <= now_us and effects.is_dirty():
            self._advance()
        if self.maintenance_us <= now_us:
            # With very many subscriptions or queues a round takes several turns.
            is_done = self._maintain(now_us)
            self.maintenance_us = now_us + (MAINTENANCE_US if is_done else MAINTENANCE_PAUSE_US)

    # What an operator sees.

    def find(self, channel_id: int) -> Channel | None:
        """Return the subscription, or the lane or ledger of a queue, that has this id."""
        found = self.subscriptions.by_id.get(channel_id)
        return self.queues.channels.get(channel_id) if found is None else found

    def topic_of(self, channel_id: int) -> Topic | None:
        """Return the topic of a subscription, a part of a queue, or a follower."""
        channel = self.find(channel_id)
        if channel is not None:
            return channel.topic
        follower = self.followers.by_id.get(channel_id)
        return None if follower is None else follower.topic

    def in_flight_count(self) -> int:
        """Return how many deliveries are with consumers."""
        return self.dispatch.settling.in_flight

    def retry_count(self) -> int:
        """Return how many delivery timers are scheduled, stale ones included."""
        return len(self.dispatch.settling.retries)

    def memory_bytes(self) -> int:
        """Return how many bytes of messages are in memory."""
        return self.dispatch.windows.held_bytes + self.outgoing.bytes

    def needed_id(self) -> int:
        """Return the lowest id that a subscription or a cursor still needs from the log."""
        committed_id = self.committed_id
        return min(
            self.cursors.needed_id(committed_id + 1),
            self.subscriptions.needed_id(committed_id),
            self.queues.needed_id(committed_id),
            self.followers.needed_id(committed_id),
        )

    # Inside.

    def _advance(self) -> None:
        """Queue records of all the progress that can be recorded."""
        for progress in self.dispatch.effects.take_progress(self.maintenance_us):
            self.outgoing.add(Advanced(progress), records.encode_progress(progress))

    def _take_back(self, taken: list[Pending], now_us: int) -> list[Pending]:
        """Undo what was accepted; return the publishes and subscriptions among it."""
        refused: list[Pending] = []
        for item in taken:
            if isinstance(item, Message):
                self.outgoing.bytes -= len(item.body)
                self.admission.taken_back(item)
                item.topic.unrecorded = item.topic.owner is not None
                refused.append(item)
            elif isinstance(item, Started):
                refused.append(item)
                self.subscriptions.drop(item.subscription)
            elif isinstance(item, Followed):
                refused.append(item)
                self.followers.drop(item.follower)
            elif isinstance(item, Buried):
                self.outgoing.bytes -= len(item.letter.body)
                self.dispatch.settling.unbury(item, now_us)
            elif isinstance(item, Declared) and item.queue.topic.queue is item.queue:
                item.queue.topic.unrecorded = item.queue.topic.owner is not None
                self.queues.end(item.queue)
        return refused

    def _take_progress_back(self, progress: dict[int, Progress]) -> None:
        """Have refused progress recorded again, together with what came after it."""
        effects = self.dispatch.effects
        for channel_id, earlier in progress.items():
            channel = self.find(channel_id)
            follower = self.followers.by_id.get(channel_id)
            if channel is not None:
                channel.progress = earlier.followed_by(channel.progress)
                effects.dirty[channel_id] = channel
                effects.acknowledged = True  # it may be: a reply may wait for this record
            elif follower is not None:
                follower.progress = earlier.followed_by(follower.progress)
                effects.dirty_followers[channel_id] = follower
                effects.acknowledged = True

    def _maintain(self, now_us: int) -> bool:
        self.dedup.expire(now_us)
        may_end, rows = not self.refusal, MAINTENANCE_ROWS_MAX
        goes_on = may_end and self.followers.is_in_round()  # the others have had their turns
        if not goes_on and not self.dispatch.maintain(now_us, rows, may_end=may_end):
            return False
        if may_end and not self.followers.end_overdue(now_us, rows):
            return False
        if idle := self.topics.idle(now_us):
            # A message or a subscription on its way to the log needs its topic.
            self.topics.forget(idle, {topic_of(item) for item in self.outgoing.pending()})
        return True
