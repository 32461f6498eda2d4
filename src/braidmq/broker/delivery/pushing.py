"""Delivery: how a message gets to a subscription, and from there to a consumer.

Everything here acts on one subscription at a time and leaves its effects as data: deliveries in
a peer's list, peers in `touched`, subscriptions in `reads`, records in `outgoing`.
"""

from typing import TYPE_CHECKING

from braidmq.broker.delivery.schedule import Deadline
from braidmq.broker.delivery.settling import Settler
from braidmq.broker.delivery.subscriptions import (
    IN_FLIGHT,
    Consumer,
    Delivery,
    Entry,
    Peer,
    Subscription,
)
from braidmq.broker.expiry import is_expired
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import ORIGIN_BLIP, Message, Topics

if TYPE_CHECKING:
    from braidmq.broker.delivery.queues import Queue


class Deliverer(Settler):
    """Moves messages between the states of `subscriptions`' picture."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        super().__init__(settings, topics, outgoing, stats)
        self.stopped: bool = False
        self._arrivals: int = 0

    # What a broker with queues and followers adds.

    def route_to_queue(self, queue: "Queue", message: Message, now_us: int) -> None:
        """Put a message before the consumers of a queue."""
        raise NotImplementedError

    def pump_queue(self, queue: "Queue", now_us: int) -> None:
        """Push what waits in a queue to its consumers."""
        raise NotImplementedError

    def leave_queue(self, consumer: Consumer, now_us: int, *, counted: bool) -> None:
        """Take back what a queue's consumer was holding."""
        raise NotImplementedError

    def route_to_followers(self, message: Message, now_us: int) -> None:
        """Hand a message to the followers of its topic that it is for."""
        raise NotImplementedError

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
        if message.origin != ORIGIN_BLIP:
            stats.count_origin(message.origin)
        if topic.subscriptions:
            self._arrivals += 1
            message.arrival = self._arrivals
            for subscription in topic.subscriptions:
                if message.qos != 0 and subscription.qos != 0:
                    self.offer(subscription, message, now_us)
                elif not subscription.consumers:
                    self.windows.offer_volatile(subscription, message)
                elif not self._pass_on(subscription, message):
                    self.windows.offer_volatile(subscription, message)
                    self.pump(subscription, now_us)
        if topic.followers:
            self.route_to_followers(message, now_us)
        if topic.queue is not None:
            self._arrivals += 1
            message.arrival = self._arrivals
            self.route_to_queue(topic.queue, message, now_us)

    def offer(self, subscription: Subscription, message: Message, now_us: int) -> None:
        """Take a committed message in, or leave it to the log when there is no room."""
        if not subscription.behind:
            if self.windows.has_room(subscription, len(message.body)):
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
        peer.delivered += 1
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
        self.windows.hold(subscription, len(message.body))
        if entry.id <= subscription.handed_id:
            # Handed out before a restart, or to who is gone: it comes back, with the attempts
            # that are known. A view knows of each message whether it ever was.
            unknown = 1 if subscription.lane is None else 0
            entry.attempts = subscription.known_attempts.pop(entry.id, unknown)
            if entry.attempts > 0 or subscription.lane is None:
                self.give_back(entry, now_us)
                return
        subscription.ready.append(entry)

    def take_in_from_log(
        self, subscription: Subscription, message: Message, now_us: int
    ) -> None:
        """Put a message that was read back from the log into the window."""
        self._arrivals += 1
        message.arrival = self._arrivals
        self.take_in(subscription, message, now_us)

    # Out: a consumer gets a message.

    def pump(self, subscription: Subscription, now_us: int) -> None:
        """Push what is ready to consumers that have credit and room, in turn."""
        if subscription.queue is not None:
            self.pump_queue(subscription.queue, now_us)
            return
        consumers = subscription.consumers
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            if (
                consumer.credit > 0
                and consumer.peer.room_bytes > 0
                and self.hand_out(subscription, consumer, consumer.correlation_id, now_us)
            ):
                consumer.credit -= 1
                idle = 0
            else:
                idle += 1
            if len(consumers) > 1:
                consumers.append(consumers.pop(0))

    def hand_out(
        self, subscription: Subscription, consumer: Consumer, correlation_id: int, now_us: int
    ) -> bool:
        """Give the consumer the next message it may have; say whether there was one."""
        if self.stopped:
            return False
        in_flight = subscription.in_flight
        rules = subscription.rules
        may_hold = (
            not consumer.isolated
            and in_flight.count < rules.in_flight_max
            and (in_flight.count == 0 or in_flight.bytes < rules.window_bytes)
        )
        if not may_hold and subscription.queue is not None:
            # A consumer that holds much keeps nothing from those that hold nothing.
            may_hold = consumer.held == 0
        if may_hold and (in_flight.returned or in_flight.last_chances):
            entry = self._next_returned(subscription, consumer, now_us)
            if entry is not None:
                self._hand_out_entry(consumer, entry, now_us)
                return True
            may_hold = not self._last_chance_waits(subscription, now_us)
        # A message whose dead letter the log refused is with nobody, and keeps its place.
        may_hold = may_hold and len(in_flight.open) < rules.in_flight_max
        ready = subscription.ready
        volatile = subscription.volatile
        while True:
            if volatile and not (
                may_hold and ready and ready[0].message.arrival < volatile[0].arrival
            ):
                message = volatile.popleft()
                self.windows.hold(subscription, -len(message.body))
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
                self.expire(entry, now_us)
                continue
            self._hand_out_entry(consumer, entry, now_us)
            return True

    def _next_returned(
        self, subscription: Subscription, consumer: Consumer, now_us: int
    ) -> Entry | None:
        in_flight = subscription.in_flight
        while True:
            entry = in_flight.take_returned(consumer_is_idle=consumer.held == 0)
            if entry is None or not is_expired(entry.message.expires_us, now_us):
                return entry
            in_flight.remove(entry.id)
            self.expire(entry, now_us)

    def _last_chance_waits(self, subscription: Subscription, now_us: int) -> bool:
        in_flight = subscription.in_flight
        while True:
            entry = in_flight.last_chance()
            if entry is None or not is_expired(entry.message.expires_us, now_us):
                return entry is not None
            in_flight.remove(entry.id)
            self.expire(entry, now_us)

    def _hand_out_entry(self, consumer: Consumer, entry: Entry, now_us: int) -> None:
        subscription = entry.subscription
        lane = subscription if subscription.lane is None else subscription.lane
        progress = lane.progress
        if progress is None:
            progress = lane.made_progress()
            self.note_progress(lane, now_us)
        entry.attempts += 1
        if entry.id > lane.handed_id and lane is subscription:
            lane.handed_id = entry.id
            progress.handed_id = entry.id
        else:
            progress.attempts[entry.id] = entry.attempts
            if entry.attempts > 1:
                self.stats.redelivered += 1
        if entry.attempts == subscription.rules.attempts_max:
            consumer.isolated = entry.attempts > 1 or subscription.rules.first_goes_alone
        entry.state = IN_FLIGHT
        entry.consumer = consumer
        consumer.held += 1
        subscription.in_flight.add(entry)
        self.in_flight += 1
        self.retries.set(entry, now_us, subscription.rules.delay_us(entry.attempts))
        self._deliver(consumer.peer, Delivery(entry.message, entry.id, 1, entry))

    def _deliver(self, peer: Peer, delivery: Delivery) -> None:
        peer.deliveries.append(delivery)
        peer.room_bytes -= len(delivery.message.body)
        peer.delivered += 1
        self.stats.delivered += 1
        if not peer.touched:
            self.touch(peer)

    def timers_ended(self, due: list[Deadline], now_us: int) -> None:
        """Take messages back that were not acknowledged in time."""
        subscriptions: dict[Subscription, bool] = {}
        for entry in due:
            assert isinstance(entry, Entry)
            subscriptions[entry.subscription] = True
            self.release(entry)
            self.give_back(entry, now_us)
        # Only now, so that no newer message is pushed ahead of one that has just come back.
        for subscription in subscriptions:
            self.pump(subscription, now_us)

    def consumer_left(self, consumer: Consumer, now_us: int) -> None:
        """Take back at once what a consumer that is gone was holding."""
        if consumer.queue is not None:
            self.leave_queue(consumer, now_us, counted=True)
            return
        subscription = consumer.subscription
        consumer.credit = 0
        subscription.consumers = [
            other for other in subscription.consumers if other is not consumer
        ]
        if consumer.held:
            for entry in subscription.in_flight.all():
                if entry.consumer is consumer:
                    self.uncount(entry)
                    subscription.in_flight.remove(entry.id)
                    self.give_back(entry, now_us)
        self.pump(subscription, now_us)
