"""The broker and the oracle side by side: kept in step and compared. It chooses no steps.

Each connection has one subscription, so that a delivery identifies its subscription.
"""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from braidmq.broker import dead_letters, records
from braidmq.broker.broker import MAINTENANCE_US
from braidmq.broker.delivery.subscriptions import Consumer, Subscription
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive, charged, peer_of
from tests.unit.broker.oracle import Checkpoint, Known, Oracle, Sub

TOPICS: Final = ("a", "b", "dlq.a")


class Pair(RuleBasedStateMachine):
    """The real broker and the oracle."""

    def start(self, limits: Settings) -> None:
        self.limits = limits
        self.drive = Drive(limits)
        self.oracle = Oracle(limits, self.drive.now_us)
        self.consumers: list[Consumer] = []
        self.credits: dict[Consumer, int] = {}
        self.taken: Checkpoint | None = None
        self.snapshotted: tuple[Checkpoint, dict[int, int]] | None = None
        self.refusing_us = 0  # the last time at which the log refused
        self.serial = 0

    # Choosing.

    def started(self) -> list[Sub]:
        return [s for s in self.oracle.subs.values() if s.id <= self.oracle.committed_id]

    def consumer(self, data: st.DataObject) -> Consumer | None:
        """Choose a connection or open one; None when there is no subscription."""
        choices: list[Consumer | Sub] = [*self.consumers, *self.started()]
        if not choices:
            return None
        chosen = choices[data.draw(st.integers(0, len(choices) - 1), label="consumer")]
        return self.connect(chosen) if isinstance(chosen, Sub) else chosen

    def connect(self, sub: Sub) -> Consumer:
        consumer = self.drive.attach(sub.id, peer=peer_of(sub.owner))
        self.consumers.append(consumer)
        self.credits[consumer] = 0
        return consumer

    def sub_of(self, consumer: Consumer) -> Sub:
        return self.oracle.subs[consumer.subscription.id]

    def pass_time(self, now_us: int) -> None:
        self.drive.now_us = self.oracle.now_us = now_us
        if self.drive.broker.refusal:
            self.refusing_us = now_us
        for consumer, credit in self.credits.items():
            if credit:
                self.use(consumer)

    # Keeping in step.

    def use(self, consumer: Consumer) -> Sub:
        sub = self.sub_of(consumer)
        sub.used_us = sub.used_at_most_us = self.drive.now_us
        return sub

    def end(self, subscription_id: int) -> None:
        del self.oracle.subs[subscription_id]
        self.forget_consumers(
            [c for c in self.consumers if c.subscription.id == subscription_id]
        )

    def forget_consumers(self, gone: list[Consumer]) -> None:
        for consumer in gone:
            self.consumers.remove(consumer)
            del self.credits[consumer]

    def serve_all(self) -> None:
        self.absorb()
        self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)
        while self.drive.requests:
            self.drive.serve_one_read()
            self.absorb()
            self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)

    def absorb(self) -> None:
        """Pass deliveries to the oracle for as long as it accepts any."""
        agreed = True
        while agreed:
            agreed = False
            for consumer in self.consumers:
                agreed = self.absorb_one(consumer) or agreed

    def absorb_one(self, consumer: Consumer) -> bool:
        peer = consumer.peer
        sub = self.sub_of(consumer)
        loaded_id = consumer.subscription.position.cursor
        if not peer.deliveries or not self.oracle.allows(
            sub, peer, peer.deliveries[0], loaded_id
        ):
            return False
        self.oracle.deliver(sub, peer, peer.deliveries.pop(0))
        self.credits[consumer] -= 1
        return True

    # Checking.

    def check_letter(self, letter_id: int, letter: records.StoredMessage) -> None:
        """A dead letter follows the last allowed delivery, once, and describes its message."""
        end = (letter.settles_subscription, letter.settles_id)
        assert end not in self.oracle.letters.values()
        message = self.oracle.messages[letter.settles_id]
        topic = dead_letters.topic_for(message.topic)
        payload = letter.body[2 + len(topic) :]
        headers = decode_headers(letter.headers)
        assert (topic, message.payload) == (letter.topic, payload)
        assert {
            "deathReason": "maxRetries",
            "deathQueue": message.topic,
            "deathAttempts": str(self.limits.max_retries),
        } == headers
        self.oracle.letters[letter_id] = end
        self.oracle.messages[letter_id] = Known(topic, payload)
        sub = self.oracle.subs.get(letter.settles_subscription)
        if sub is not None:
            self.oracle.check_is_doomed(sub, letter.settles_id)
            sub.settled.add(letter.settles_id)

    def check_leases(self) -> None:
        now_us = self.drive.now_us
        for sub in self.started():
            lease_us = self.limits.lease_us if sub.qos else self.limits.lease_qos0_us
            if sub.id in self.drive.broker.subscriptions.by_id:
                last_us = max(sub.used_at_most_us + lease_us, self.refusing_us)
                assert now_us <= last_us + 2 * MAINTENANCE_US
            else:
                assert sub.used_us + lease_us - MAINTENANCE_US <= now_us
                self.end(sub.id)

    def check_is_empty(self, consumer: Consumer) -> None:
        sub = self.sub_of(consumer)
        due = self.oracle.next_durable(sub, consumer.peer, self.oracle.committed_id)
        # Messages whose dead letters the log refuses keep their place in the window.
        is_full = len(sub.held) + self.oracle.parked(sub) >= self.limits.window
        assert due == 0 or (is_full and due not in sub.attempts)
        assert [] == sub.volatile

    def every_delivery_was_due(self) -> None:
        self.absorb()
        for consumer in self.consumers:
            assert [] == consumer.peer.deliveries
            assert self.credits[consumer] == consumer.credit

    def no_consumer_waits_needlessly(self) -> None:
        """A consumer with credit and room has every message, unless the log is being read."""
        for consumer in self.consumers:
            if consumer.credit and consumer.peer.room_bytes > 0:
                if self.oracle.has_expired_open(self.sub_of(consumer)):
                    # Nothing wakes the broker when a message expires.
                    self.drive.broker.resume(consumer.peer, self.drive.now_us)
                    self.absorb()
                if consumer.credit and not consumer.subscription.position.reading:
                    self.check_is_empty(consumer)

    def held_bytes_are_counted_exactly(self) -> None:
        broker = self.drive.broker
        held_bytes = 0
        for subscription in broker.subscriptions.by_id.values():
            assert len(subscription.ready) <= self.limits.window
            assert len(subscription.volatile) <= self.limits.window
            assert subscription.in_flight.count <= self.limits.window
            # Refused dead letters come back to a window that has filled up meanwhile.
            parked = self.oracle.parked(self.oracle.subs[subscription.id])
            assert len(subscription.in_flight) <= self.limits.window + parked
            assert bytes_of(subscription) == subscription.held_bytes
            held_bytes += charged(subscription)
        # Dead letters have a queue, where memory-only publishes wait.
        held_bytes += sum(map(charged, broker.queues.all_channels()))
        for topic in broker.topics.all():
            rings = [] if topic.audience is None else topic.audience.rings()
            held_bytes += sum(ring.held_bytes for ring in rings)
        assert held_bytes == broker.dispatch.windows.held_bytes
        assert {s.id for s in self.started()} == set(broker.subscriptions.by_id)

    def counters_agree(self) -> None:
        oracle = self.oracle
        broker = self.drive.broker
        held = {s.id: len(s.held) for s in oracle.subs.values() if s.held}
        flying = {s.id: s.in_flight.count for s in broker.subscriptions.by_id.values()}
        assert held == {i: count for i, count in flying.items() if count}
        assert sum(held.values()) == broker.in_flight_count()
        stats = broker.stats
        assert (oracle.published, oracle.delivered) == (stats.published, stats.delivered)
        assert (oracle.dropped, oracle.redelivered) == (
            stats.dropped.overflow,
            stats.redelivered,
        )
        assert oracle.acknowledged == stats.acknowledged

    def check_the_end(self) -> None:
        broker = self.drive.broker
        for sub in self.started():
            if sub.qos == 1:
                assert [] == self.oracle.alive(sub)
                assert [] == self.oracle.doomed(sub)
                assert 0 == bytes_of(broker.subscriptions.by_id[sub.id]) - volatile_bytes(
                    broker.subscriptions.by_id[sub.id]
                )
        for name in TOPICS:
            ids = [i for i, m in self.oracle.messages.items() if m.topic == name]
            topic = self.drive.topic(name)
            assert (max(ids, default=0), len(ids)) == (topic.last_id, topic.message_count)


def volatile_bytes(subscription: Subscription) -> int:
    return sum(len(message.body) for message in subscription.volatile)


def bytes_of(subscription: Subscription) -> int:
    entries = [*subscription.ready, *subscription.in_flight.all()]
    return sum(len(entry.message.body) for entry in entries) + volatile_bytes(subscription)
