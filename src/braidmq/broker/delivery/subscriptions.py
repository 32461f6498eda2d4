"""Subscriptions: Blip's channels, their consumers, and how each consumer gets its turn.

A consumer polls for one message at a time, or gives credit and is pushed that many. Consumers
with credit take turns. A subscription that no consumer uses for its whole lease ends.

The only subscription of a topic may hold `delivery.window` messages in memory at first, of
several each its share, and one that is idle for `IDLE_US` only `UNPOLLED_WINDOW`. When as many
wait, it stands aside (`audience`), and the next poll reads them from the log. Each time its
consumers have read up to the log's end it may hold twice as many, up to `delivery.window`, so
one that is polled now and then seldom has to read.
"""

from typing import Final, final

from braidmq.base import refusals
from braidmq.broker import records
from braidmq.broker.authorize import SUBSCRIBE, Principal, authorize
from braidmq.broker.dead_letters import is_dead_letter_topic
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.audience import Audience
from braidmq.broker.delivery.channels import Channel, Delivery, Holder, Peer
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.outgoing import Effects, Ended, LeaseOver, Outgoing
from braidmq.broker.policy import Rules
from braidmq.broker.quotas import SUBSCRIPTIONS, Account, Accounts
from braidmq.broker.settings import US_PER_S, Settings
from braidmq.broker.topics import Message, Topic

SUBSCRIPTIONS_MAX: Final = 100_000
"""Subscriptions of all principals; each lives for its lease, used or not."""

TOO_MANY_SUBSCRIPTIONS: Final = refusals.by_bound(
    "too many subscriptions", SUBSCRIPTIONS_MAX, "in one broker"
)


UNPOLLED_WINDOW: Final = 16
"""Messages that wait in memory for one of many subscriptions, or for one that is idle."""

IDLE_US: Final = 30 * US_PER_S
"""A subscription that was not used for so long leaves to the log what it may."""


@final
class Subscription(Channel):
    """The messages of one topic for one principal's consumers."""

    def __init__(self, topic: Topic, qos: int, principal: str, rules: Rules) -> None:
        super().__init__(topic, rules)
        self.qos: int = qos
        self.principal: str = principal
        self.last_used_us: int = 0  # while a restart reads the log: minus how long ago that was
        self.consumers: list[Consumer] = []  # those that were given credit, in turn
        self.position.window = min(rules.window, UNPOLLED_WINDOW)

    def has_able_consumer(self) -> bool:
        """Say whether a message that came now could be pushed, as far as consumers go."""
        for consumer in self.consumers:
            if consumer.credit > 0 and consumer.peer.room_bytes > 0:
                return True
        return False

    def should_stand_aside(self) -> bool:
        """Say whether what is published would not reach its consumers or its window."""
        if self.position.aside or self.has_able_consumer():
            return False
        if self.position.behind:
            return True
        return len(self.volatile) >= self.position.window

    def charged_to(self, accounts: Accounts) -> Account | None:
        """Return its principal's account: it decides whether messages are given up on."""
        return accounts.of(self.principal)

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
        self._round: list[Subscription] = []  # those that maintenance has yet to come to
        self._rules: Rules = Rules(settings)
        self._letter_rules: Rules = Rules(settings)
        self._letter_rules.lift_limits()
        self._accounts: Accounts = pushing.settling.topics.accounts

    # A subscription's life.

    def new(self, topic: Topic, qos: int, principal: str) -> Subscription:
        """Return a subscription that has not begun yet; its principal's quota counts it."""
        self._accounts.of(principal).add(SUBSCRIPTIONS, 1)
        # Dead letters have no attempt limit: they wait until a consumer takes them.
        rules = self._letter_rules if is_dead_letter_topic(topic.name) else self._rules
        return Subscription(topic, qos, principal, rules)

    def start(self, subscription: Subscription) -> None:
        """List a subscription whose record is committed: from now on it gets messages."""
        self.by_id[subscription.id] = subscription
        topic = subscription.topic
        if topic.audience is None:
            topic.audience = Audience(self.pushing.windows)
        topic.audience.add(subscription)
        # One that is alone starts with all of its window, as its first poll is likely to come.
        # Of many, each starts with its share: together they hold little more than one.
        share = subscription.rules.window // len(topic.audience.subscriptions)
        window = max(subscription.position.window, share)
        subscription.position.window = min(window, subscription.rules.window)

    def unlist(self, subscription: Subscription) -> None:
        """Take a subscription out of the lists; one that has not started is in none."""
        if self.by_id.pop(subscription.id, None) is not None:
            audience = audience_of(subscription)
            audience.remove(subscription)
            if not audience.subscriptions:
                subscription.topic.audience = None

    def drop(self, subscription: Subscription) -> None:
        """Drop a subscription whose end is recorded, or whose record the log refused."""
        self._accounts.of(subscription.principal).add(SUBSCRIPTIONS, -1)
        self.unlist(subscription)

    def end(self, subscription: Subscription, reason: int) -> int:
        """End a subscription; return the id that must be committed for it."""
        self.settling.forget(subscription)
        for consumer in subscription.consumers:
            consumer.credit = 0
        self.drop(subscription)
        return self._outgoing.add(
            Ended(subscription.id, reason), records.encode_unsubscribe(subscription.id, reason)
        )

    def maintain(self, now_us: int, rows_max: int, *, may_end: bool) -> bool:
        """Do what is due in some subscriptions; say whether that were all of them.

        While the log refuses records *may_end* is False: none ends, but credit renews leases.
        """
        if not self._round:
            self._round = list(self.by_id.values())
            self._round.reverse()
        rows = 0
        while self._round and rows < rows_max:
            subscription = self._round.pop()
            rows += 1
            if not subscription.ended:
                self._maintain_one(subscription, now_us, may_end=may_end)
        return not self._round

    def _maintain_one(self, subscription: Subscription, now_us: int, *, may_end: bool) -> None:
        """End what has expired at the front of a window, and a subscription that is overdue."""
        settings = self._settings
        self.settling.drop_expired(subscription, now_us)
        self._let_rest(subscription, now_us)
        if subscription.consumers:
            self.effects.read_ahead(subscription)
        lease_us = settings.lease_us if subscription.qos else settings.lease_qos0_us
        if subscription.is_over(lease_us, now_us) and may_end:
            self.end(subscription, records.ENDED_BY_LEASE)
            self.settling.stats.leases_ended += 1
            self.effects.leases_over.append(
                LeaseOver(subscription.id, subscription.topic.name, subscription.principal)
            )

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

    def refusal(self, principal: Principal, count: int) -> str:
        """Return why *principal* may not subscribe; "" if it may. *count*: of all there are."""
        if count >= SUBSCRIPTIONS_MAX:
            return TOO_MANY_SUBSCRIPTIONS
        return self._accounts.refusal(principal.name, principal.quotas, SUBSCRIPTIONS)

    # Aside, and awake again.

    def put_aside(self, topic: Topic) -> None:
        """Let those subscriptions of a topic stand aside that publishes need not go to."""
        audience = topic.audience
        assert audience is not None
        awake: list[Subscription] = []
        for subscription in audience.awake:
            if subscription.should_stand_aside():
                # As far as it knows: no publish tells it any more that there is something.
                subscription.position.behind = subscription.qos != 0
                lost = audience.stand_aside(subscription, self.pushing.arrivals)
                self.settling.stats.dropped.overflow += lost
            else:
                awake.append(subscription)
        audience.awake = awake

    def wake(self, subscription: Subscription) -> None:
        """Let publishes go to a subscription again."""
        for message in audience_of(subscription).wake(subscription):
            self.pushing.windows.offer_volatile(subscription, message)

    def polled(self, subscription: Subscription) -> None:
        """Wake a subscription that is polled; it may hold more in memory from now on."""
        position = subscription.position
        position.window = min(2 * position.window, subscription.rules.window)
        self.wake(subscription)

    def _let_rest(self, subscription: Subscription, now_us: int) -> None:
        """Leave to the log what a subscription that is not used may leave to it."""
        topic = subscription.topic
        assert topic.audience is not None
        self.settling.stats.expired += topic.audience.drop_expired(subscription, now_us)
        if subscription.last_used_us + IDLE_US <= now_us:
            position = subscription.position
            if not subscription.has_able_consumer():
                position.window = min(subscription.rules.window, UNPOLLED_WINDOW)
                self.pushing.leave_to_log(subscription, position.window)
        if subscription.should_stand_aside():
            self.put_aside(topic)
        subscription.rest()

    # Consumers.

    def attach(self, peer: Peer, subscription_id: int) -> Consumer | None:
        """Make the peer a consumer of a subscription; None when it may not be."""
        subscription = self.by_id.get(subscription_id)
        if subscription is None or peer.principal is None:
            return None
        # As if it did not exist: a foreign principal learns nothing about its id. Nor does one
        # read on whose permission was withdrawn since: a subscription outlives a restart.
        if subscription.principal != peer.principal.name or not authorize(
            peer.principal, SUBSCRIBE, subscription.topic.name
        ):
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


def audience_of(subscription: Subscription) -> Audience:
    """Return the audience that a subscription which has started belongs to."""
    audience = subscription.topic.audience
    assert audience is not None
    return audience
