"""Delivery: how a message gets from a subscription to a consumer, and how it ends.

Everything here acts on one subscription at a time and leaves its effects as data: deliveries in
a peer's list, peers in `touched`, subscriptions in `reads`, records in `outgoing`.
"""

from typing import Final

from braidmq.broker import dead_letters, headers, records, retry
from braidmq.broker.expiry import is_expired
from braidmq.broker.outgoing import Buried, Outgoing
from braidmq.broker.schedule import Deadline, Schedule
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.subscriptions import (
    IN_FLIGHT,
    RETURNED,
    Consumer,
    Delivery,
    Entry,
    Peer,
    Subscription,
)
from braidmq.broker.topics import Message, Topics

PROGRESS_DELAY_US: Final = 10_000
"""How long a hand-out or an acknowledgement that no fence asks for may wait to be recorded."""


class Deliverer:
    """Moves messages between the states of `subscriptions`' picture."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        self.settings: Settings = settings
        self.topics: Topics = topics
        self.outgoing: Outgoing = outgoing
        self.stats: Stats = stats
        self.retries: Schedule = Schedule()
        self.touched: list[Peer] = []
        self.reads: list[Subscription] = []
        self.dirty: dict[int, Subscription] = {}  # made progress that is not recorded
        self.acknowledged: bool = False  # and some of it is an acknowledgement
        self.progress_due_us: int = 0
        self.in_flight: int = 0
        self.held_bytes: int = 0
        self.log_refuses: bool = False
        self.stopped: bool = False
        self._arrivals: int = 0
        self._window: int = settings.window

    # In: a message comes to a subscription.

    def route(self, message: Message, now_us: int) -> None:
        """Put a message before every subscription of its topic."""
        topic = message.topic
        if message.id > 0:
            topic.last_id = message.id
            topic.message_count += 1
        stats = self.stats
        stats.published += 1
        stats.published_bytes += len(message.body)
        if topic.subscriptions:
            self._arrivals += 1
            message.arrival = self._arrivals
            for subscription in topic.subscriptions:
                if message.qos != 0 and subscription.qos != 0:
                    self._offer(subscription, message, now_us)
                elif not subscription.consumers:
                    self._offer_volatile(subscription, message)
                elif not self._pass_on(subscription, message):
                    self._offer_volatile(subscription, message)
                    self.pump(subscription, now_us)

    def _offer(self, subscription: Subscription, message: Message, now_us: int) -> None:
        if not subscription.behind:
            if self._has_room(subscription, len(message.body)):
                self.take_in(subscription, message, now_us)
                subscription.cursor = message.id
            else:
                subscription.behind = True
        if subscription.consumers:
            self.pump(subscription, now_us)

    def _pass_on(self, subscription: Subscription, message: Message) -> bool:
        """Push a memory-only message at once when nothing waits before it."""
        consumer = subscription.consumers[0]
        peer = consumer.peer
        if (
            consumer.credit <= 0
            or peer.room_bytes <= 0
            or subscription.volatile
            or subscription.ready
            or subscription.in_flight.open
            or self.stopped
        ):
            return False
        consumer.credit -= 1
        # As `_deliver`, without the call: this is all that happens to most QoS 0 messages.
        peer.deliveries.append(Delivery(message, consumer.correlation_id, 0))
        peer.room_bytes -= len(message.body)
        self.stats.delivered += 1
        if not peer.touched:
            self.touch(peer)
        if len(subscription.consumers) > 1:
            subscription.consumers.append(subscription.consumers.pop(0))
        return True

    def take_in(self, subscription: Subscription, message: Message, now_us: int) -> None:
        """Put a durable message into the window, behind all that is there."""
        entry = Entry(subscription, message, subscription.tail)
        subscription.tail = entry.id
        self._hold(subscription, len(message.body))
        if entry.id <= subscription.handed_id:
            # Handed out before a restart: it comes back, with the attempts that were recorded.
            entry.attempts = subscription.known_attempts.pop(entry.id, 1)
            self.give_back(entry, now_us)
        else:
            subscription.ready.append(entry)

    def take_in_from_log(
        self, subscription: Subscription, message: Message, now_us: int
    ) -> None:
        """Put a message that was read back from the log into the window."""
        self._arrivals += 1
        message.arrival = self._arrivals
        self.take_in(subscription, message, now_us)

    def _offer_volatile(self, subscription: Subscription, message: Message) -> None:
        volatile = subscription.volatile
        size = len(message.body)
        if self._others_spend_the_budget(subscription, size):
            self.stats.dropped_overflow += 1
            return
        while volatile and (
            len(volatile) >= self._window
            or subscription.held_bytes + size > self.settings.window_bytes
            or self.held_bytes + size > self.settings.memory_bytes
        ):
            dropped = volatile.popleft()
            self._hold(subscription, -len(dropped.body))
            self.stats.dropped_overflow += 1
        volatile.append(message)
        self._hold(subscription, size)

    def _others_spend_the_budget(self, subscription: Subscription, size: int) -> bool:
        """Say whether a message would not fit even if all its elders made room for it."""
        if self.held_bytes + size <= self.settings.memory_bytes:
            return False
        others = self.held_bytes - sum(len(elder.body) for elder in subscription.volatile)
        return others > 0 and others + size > self.settings.memory_bytes

    def _has_room(self, subscription: Subscription, size: int) -> bool:
        waiting = len(subscription.ready)
        if waiting >= self._window:
            return False
        # Over the budget it stays in the log, and is read back when somebody asks for it.
        if self.held_bytes > 0 and self.held_bytes + size > self.settings.memory_bytes:
            return False
        # One message always fits the window, however large it is.
        if waiting == 0 and not subscription.in_flight.open:
            return True
        return subscription.held_bytes + size <= self.settings.window_bytes

    def _hold(self, subscription: Subscription, size: int) -> None:
        subscription.held_bytes += size
        self.held_bytes += size

    # Out: a consumer gets a message.

    def pump(self, subscription: Subscription, now_us: int) -> None:
        """Push what is ready to consumers that have credit and room, in turn."""
        consumers = subscription.consumers
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            if (
                consumer.credit > 0
                and consumer.peer.room_bytes > 0
                and self.hand_out(consumer, consumer.correlation_id, now_us)
            ):
                consumer.credit -= 1
                idle = 0
            else:
                idle += 1
            if len(consumers) > 1:
                consumers.append(consumers.pop(0))

    def hand_out(self, consumer: Consumer, correlation_id: int, now_us: int) -> bool:
        """Give the consumer the next message it may have; say whether there was one."""
        if self.stopped:
            return False
        subscription = consumer.subscription
        in_flight = subscription.in_flight
        may_hold = (
            not consumer.isolated
            and in_flight.count < self._window
            and (in_flight.count == 0 or in_flight.bytes < self.settings.window_bytes)
        )
        if may_hold and (in_flight.returned or in_flight.last_chances):
            entry = self._next_returned(consumer, now_us)
            if entry is not None:
                self._hand_out_entry(consumer, entry, now_us)
                return True
            may_hold = not self._last_chance_waits(subscription, now_us)
        # A message whose dead letter the log refused is with nobody, and keeps its place.
        may_hold = may_hold and len(in_flight.open) < self._window
        ready = subscription.ready
        volatile = subscription.volatile
        while True:
            if volatile and not (
                may_hold and ready and ready[0].message.arrival < volatile[0].arrival
            ):
                message = volatile.popleft()
                self._hold(subscription, -len(message.body))
                if is_expired(message.expires_us, now_us):
                    self.stats.expired += 1
                    continue
                self._deliver(consumer.peer, Delivery(message, correlation_id, 0))
                return True
            if not may_hold:
                return False
            if not ready:
                self.read_ahead(subscription)
                return False
            entry = ready.popleft()
            if subscription.behind and not subscription.reading:
                self.read_ahead(subscription)
            if entry.message.expires_us and is_expired(entry.message.expires_us, now_us):
                self._expire(entry, now_us)
                continue
            self._hand_out_entry(consumer, entry, now_us)
            return True

    def _next_returned(self, consumer: Consumer, now_us: int) -> Entry | None:
        in_flight = consumer.subscription.in_flight
        while True:
            entry = in_flight.take_returned(consumer_is_idle=consumer.held == 0)
            if entry is None or not is_expired(entry.message.expires_us, now_us):
                return entry
            in_flight.remove(entry.id)
            self._expire(entry, now_us)

    def _last_chance_waits(self, subscription: Subscription, now_us: int) -> bool:
        in_flight = subscription.in_flight
        while True:
            entry = in_flight.last_chance()
            if entry is None or not is_expired(entry.message.expires_us, now_us):
                return entry is not None
            in_flight.remove(entry.id)
            self._expire(entry, now_us)

    def _hand_out_entry(self, consumer: Consumer, entry: Entry, now_us: int) -> None:
        subscription = consumer.subscription
        progress = subscription.progress
        if progress is None:
            progress = subscription.made_progress()
            self._note_progress(subscription, now_us)
        entry.attempts += 1
        if entry.attempts == 1:
            subscription.handed_id = entry.id
            progress.handed_id = entry.id
        else:
            progress.attempts[entry.id] = entry.attempts
            self.stats.redelivered += 1
            consumer.isolated = (
                entry.attempts == self.settings.max_retries
                and not dead_letters.is_dead_letter_topic(subscription.topic.name)
            )
        entry.state = IN_FLIGHT
        entry.consumer = consumer
        consumer.held += 1
        subscription.in_flight.add(entry)
        self.in_flight += 1
        self.retries.set(entry, now_us, self._retry_delay_us(entry.attempts))
        self._deliver(consumer.peer, Delivery(entry.message, entry.id, 1))

    def _retry_delay_us(self, attempts: int) -> int:
        if attempts == 1:
            return self.settings.retry_backoff_us
        return retry.delay_us(
            attempts,
            backoff_us=self.settings.retry_backoff_us,
            backoff_max_us=self.settings.retry_backoff_max_us,
        )

    def _deliver(self, peer: Peer, delivery: Delivery) -> None:
        peer.deliveries.append(delivery)
        peer.room_bytes -= len(delivery.message.body)
        self.stats.delivered += 1
        if not peer.touched:
            self.touch(peer)

    def touch(self, peer: Peer) -> None:
        """Have the server look after this peer at the end of the turn."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)

    def read_ahead(self, subscription: Subscription) -> None:
        """Ask for more of the backlog when half the window is free."""
        if (
            subscription.behind
            and not subscription.reading
            and 2 * len(subscription.ready) <= self._window
        ):
            subscription.reading = True
            self.reads.append(subscription)

    # The end of a delivery: settled, given back, given up on.

    def settle(self, entry: Entry, now_us: int) -> None:
        """Note that a message that was handed out is acknowledged."""
        if entry.state == IN_FLIGHT:
            self._uncount(entry)
        del entry.subscription.in_flight.open[entry.id]
        self._settle_entry(entry, now_us)
        self.acknowledged = True
        self.stats.acknowledged += 1

    def _release(self, entry: Entry) -> None:
        # Take it from its consumer and close its tag.
        in_flight = entry.subscription.in_flight
        if entry.state == IN_FLIGHT:
            self._uncount(entry)
        in_flight.remove(entry.id)

    def _uncount(self, entry: Entry) -> None:
        entry.subscription.in_flight.uncount(entry)
        self.in_flight -= 1
        consumer = entry.consumer
        assert consumer is not None
        consumer.held -= 1
        consumer.isolated = False
        entry.consumer = None

    def _settle_entry(self, entry: Entry, now_us: int) -> None:
        subscription = entry.subscription
        progress = subscription.progress
        if progress is None:
            progress = subscription.made_progress()
            self._note_progress(subscription, now_us)
        progress.settle(entry.previous, entry.id)
        size = len(entry.message.body)
        subscription.held_bytes -= size
        self.held_bytes -= size
        entry.finish()

    def _note_progress(self, subscription: Subscription, now_us: int) -> None:
        if not self.dirty:
            self.progress_due_us = now_us + PROGRESS_DELAY_US
        self.dirty[subscription.id] = subscription

    def timers_ended(self, due: list[Deadline], now_us: int) -> None:
        """Take messages back that were not acknowledged in time."""
        subscriptions: dict[int, Subscription] = {}
        for entry in due:
            assert isinstance(entry, Entry)
            subscriptions[entry.subscription.id] = entry.subscription
            self._release(entry)
            self.give_back(entry, now_us)
        # Only now, so that no newer message is pushed ahead of one that has just come back.
        for subscription in subscriptions.values():
            self.pump(subscription, now_us)

    def consumer_left(self, consumer: Consumer, now_us: int) -> None:
        """Take back at once what a consumer that is gone was holding."""
        subscription = consumer.subscription
        consumer.credit = 0
        subscription.consumers = [
            other for other in subscription.consumers if other is not consumer
        ]
        if consumer.held:
            for entry in subscription.in_flight.all():
                if entry.consumer is consumer:
                    self._uncount(entry)
                    subscription.in_flight.remove(entry.id)
                    self.give_back(entry, now_us)
        self.pump(subscription, now_us)

    def give_back(self, entry: Entry, now_us: int) -> None:
        """Decide what becomes of a message that was handed out and is with nobody."""
        entry.state = RETURNED
        entry.due_us = 0
        subscription = entry.subscription
        if is_expired(entry.message.expires_us, now_us):
            self._expire(entry, now_us)
            return
        # Dead letters have no attempt limit: they wait for whoever comes for them.
        limited = not dead_letters.is_dead_letter_topic(subscription.topic.name)
        if limited and retry.is_exhausted(entry.attempts, self.settings.max_retries):
            self._bury(entry, now_us)
            return
        last_chance = limited and retry.is_last(entry.attempts, self.settings.max_retries)
        subscription.in_flight.give_back(entry, last_chance=last_chance)

    def drop_expired(self, subscription: Subscription, now_us: int) -> None:
        """End what has waited too long at the front of the window."""
        ready = subscription.ready
        while ready and is_expired(ready[0].message.expires_us, now_us):
            self._expire(ready.popleft(), now_us)
        volatile = subscription.volatile
        while volatile and is_expired(volatile[0].expires_us, now_us):
            self._hold(subscription, -len(volatile.popleft().body))
            self.stats.expired += 1
        if subscription.consumers:
            self.read_ahead(subscription)

    def expire_open(self, entry: Entry, now_us: int) -> None:
        """End a message that was handed out and whose time is over."""
        self._release(entry)
        self._expire(entry, now_us)

    def _expire(self, entry: Entry, now_us: int) -> None:
        self.stats.expired += 1
        self._settle_entry(entry, now_us)

    def _bury(self, entry: Entry, now_us: int) -> None:
        subscription = entry.subscription
        message = entry.message
        topic = self.topics.get(dead_letters.topic_for(subscription.topic.name))
        if self.log_refuses or topic is None:
            # Keep it open, with nobody, and try again when its timer ends once more.
            subscription.in_flight.add(entry)
            subscription.in_flight.uncount(entry)
            self.retries.set(entry, now_us, self.settings.retry_backoff_us)
            return
        block = headers.encode(
            dead_letters.headers_for(
                headers.decode(message.headers),
                reason=dead_letters.MAX_RETRIES,
                topic=subscription.topic.name,
                attempts=entry.attempts,
            )
        )
        body = len(topic.raw).to_bytes(2, "big") + topic.raw + message.payload
        letter = Message(topic, 1, body)
        letter.priority = message.priority
        letter.origin = message.origin
        letter.timestamp_us = now_us
        letter.headers = block
        letter.id = self.outgoing.add(
            Buried(letter, entry, message), _dead_letter_record(letter, entry)
        )
        self.outgoing.bytes += len(body)
        self.stats.dead_lettered += 1
        self._hold(subscription, -len(message.body))
        entry.finish()

    def unbury(self, buried: Buried, now_us: int) -> None:
        """Take a dead letter back that the log refused."""
        entry = buried.entry
        self.stats.dead_lettered -= 1
        if entry.subscription.ended:
            return
        entry.message = buried.message
        self._hold(entry.subscription, len(entry.message.body))
        self.give_back(entry, now_us)

    def forget(self, subscription: Subscription) -> None:
        """Let go of everything a subscription that ended was holding."""
        subscription.ended = True
        for entry in subscription.in_flight.all():
            self._release(entry)
            entry.finish()
        subscription.ready.clear()
        subscription.volatile.clear()
        self._hold(subscription, -subscription.held_bytes)
        subscription.progress = None
        self.dirty.pop(subscription.id, None)
        for consumer in subscription.consumers:
            consumer.credit = 0
        for peer in subscription.waiters:
            self.touch(peer)
        subscription.waiters = []


def _dead_letter_record(letter: Message, entry: Entry) -> bytes:
    stored = records.StoredMessage()
    stored.qos = letter.qos
    stored.priority = letter.priority
    stored.origin = letter.origin
    stored.timestamp_us = letter.timestamp_us
    stored.headers = letter.headers
    stored.body = letter.body
    stored.settles_subscription = entry.subscription.id
    stored.settles_after = entry.previous
    stored.settles_id = entry.id
    return records.encode_dead_letter(stored)
