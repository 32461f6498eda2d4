"""Subscriptions: Blip's channels, their consumers, and how each consumer gets its turn.

A consumer polls for one message at a time, or gives credit and is pushed that many. Consumers
with credit take turns. A subscription that no consumer uses for its whole lease ends.
"""

from typing import Final, final

from braidmq.broker import records
from braidmq.broker.dead_letters import is_dead_letter_topic
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Channel, Delivery, Holder, Peer
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.outgoing import Effects, Ended, LeaseOver, Outgoing
from braidmq.broker.policy import Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic

SUBSCRIPTIONS_MAX: Final = 100_000
"""Subscriptions of all principals; each lives for its lease, used or not."""


@final
class Subscription(Channel):
    """The messages of one topic for one principal's consumers."""

    def __init__(self, topic: Topic, qos: int, principal: str, rules: Rules) -> None:
        super().__init__(topic, rules)
        self.qos: int = qos
        self.principal: str = principal
        self.last_used_us: int = 0  # while a restart reads the log: minus how long ago that was
        self.consumers: list[Consumer] = []  # those that were given credit, in turn

    def is_over(self, lease_us: int, now_us: int) -> bool:
        """Say whether its lease is over; a consumer that holds credit renews it."""
        for consumer in self.consumers:
            if consumer.credit > 0:
                self.last_used_us = now_us
                return False
        return self.last_used_us + lease_us <= now_us

    def replay_progress(self, made: Progress) -> None:
        """Apply a progress record again."""
        super().replay_progress(made)
        self.last_used_us = 0  # it was used after the snapshot that may say otherwise

    def recover(self, now_us: int) -> None:
        """Begin to work after a restart; the lease goes on from where the snapshot had it."""
        super().recover(now_us)
        self.last_used_us += now_us


@final
class Consumer(Holder):
    """One peer's hold on one subscription."""

    def __init__(self, peer: Peer, subscription: Subscription) -> None:
        super().__init__(peer)
        self.subscription: Subscription = subscription
        self.credit: int = 0
        self.correlation_id: int = 0  # of the latest CREDIT


@final
class Subscriptions:
    """Every Blip subscription by its id."""

    def __init__(self, settings: Settings, pushing: Pushing) -> None:
        self.by_id: dict[int, Subscription] = {}
        self.pushing: Pushing = pushing
        self.settling: Settling = pushing.settling
        self.effects: Effects = pushing.effects
        self._settings: Settings = settings
        self._outgoing: Outgoing = pushing.settling.outgoing
        self._rules: Rules = Rules(settings)
        self._letter_rules: Rules = Rules(settings)
        self._letter_rules.lift_limits()

    # A subscription's life.

    def new(self, topic: Topic, qos: int, principal: str) -> Subscription:
        """Return a subscription that has not begun yet."""
        # Dead letters have no attempt limit: they wait until a consumer takes them.
        rules = self._letter_rules if is_dead_letter_topic(topic.name) else self._rules
        return Subscription(topic, qos, principal, rules)

    def start(self, subscription: Subscription) -> None:
        """List a subscription whose record is committed: from now on it gets messages."""
        self.by_id[subscription.id] = subscription
        subscription.topic.subscriptions.append(subscription)

    def end(self, subscription: Subscription, reason: int) -> int:
        """End a subscription; return the id that must be committed for it."""
        self.settling.forget(subscription)
        for consumer in subscription.consumers:
            consumer.credit = 0
        self.by_id.pop(subscription.id, None)
        topic = subscription.topic
        topic.subscriptions = [
            other for other in topic.subscriptions if other is not subscription
        ]
        return self._outgoing.add(
            Ended(subscription.id, reason), records.encode_unsubscribe(subscription.id, reason)
        )

    def end_overdue(self, now_us: int, *, may_end: bool) -> None:
        """End the subscriptions whose lease is over.

        While the log refuses records *may_end* is False: none ends, but credit renews leases.
        """
        settings = self._settings
        for subscription in list(self.by_id.values()):
            lease_us = settings.lease_us if subscription.qos else settings.lease_qos0_us
            if subscription.is_over(lease_us, now_us) and may_end:
                self.end(subscription, records.ENDED_BY_LEASE)
                self.settling.stats.leases_ended += 1
                self.effects.leases_over.append(
                    LeaseOver(subscription.id, subscription.topic.name, subscription.principal)
                )

    def drop_expired(self, now_us: int) -> None:
        """End what has expired at the front of each window."""
        for subscription in self.by_id.values():
            self.settling.drop_expired(subscription, now_us)
            if subscription.consumers:
                self.effects.read_ahead(subscription)

    def needed_id(self, committed_id: int) -> int:
        """Return the lowest id that a subscription still needs from the log."""
        needed = committed_id + 1
        for subscription in self.by_id.values():
            if subscription.qos != 0:
                # The first range begins at 0 and is never empty: no message of a subscription
                # has an id below that of the subscription itself.
                _, floor = subscription.settled_ranges(committed_id)[0]
                needed = min(needed, floor + 1)
        return needed

    # Consumers.

    def attach(self, peer: Peer, subscription_id: int) -> Consumer | None:
        """Make the peer a consumer of a subscription; None when it may not be."""
        subscription = self.by_id.get(subscription_id)
        if subscription is None or peer.principal is None:
            return None
        # As if it did not exist: a foreign principal learns nothing about its id.
        if subscription.principal != peer.principal.name:
            return None
        consumer = Consumer(peer, subscription)
        peer.consumers[subscription_id] = consumer
        return consumer

    def leave(self, consumer: Consumer, now_us: int) -> None:
        """Take back at once what a consumer that is gone was holding."""
        subscription = consumer.subscription
        consumer.credit = 0
        subscription.consumers = [
            other for other in subscription.consumers if other is not consumer
        ]
        if consumer.held:
            for entry in subscription.in_flight.all():
                if entry.consumer is consumer:
                    self.settling.release(entry)
                    self.settling.give_back(entry, now_us)
        self.pump(subscription, now_us)

    # Out: which consumer is next.

    def pump(self, subscription: Subscription, now_us: int) -> None:
        """Push what is ready to consumers that have credit and room, in turn."""
        consumers = subscription.consumers
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            if (
                consumer.credit > 0
                and consumer.peer.room_bytes > 0
                and self.pushing.hand_out(
                    subscription, consumer, consumer.correlation_id, now_us
                )
            ):
                consumer.credit -= 1
                idle = 0
            else:
                idle += 1
            if len(consumers) > 1:
                consumers.append(consumers.pop(0))

    def pass_on(self, subscription: Subscription, message: Message) -> bool:
        """Push a memory-only message at once when nothing waits before it."""
        consumer = subscription.consumers[0]
        peer = consumer.peer
        pushing = self.pushing
        if (
            consumer.credit <= 0
            or peer.room_bytes <= 0
            or subscription.volatile
            or subscription.ready
            or subscription.in_flight.open
            or pushing.stopped
        ):
            return False
        consumer.credit -= 1
        # As `Pushing.deliver`, without the call: most QoS 0 messages go this way only.
        peer.deliveries.append(Delivery(message, consumer.correlation_id, 0))
        peer.room_bytes -= len(message.body)
        peer.delivered += 1
        pushing.stats.delivered += 1
        if not peer.touched:
            self.effects.touch(peer)
        if len(subscription.consumers) > 1:
            subscription.consumers.append(subscription.consumers.pop(0))
        return True
