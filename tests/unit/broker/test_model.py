"""The broker against a short oracle, over random sequences of events.

`BRAIDMQ_MODEL_EXAMPLES` sets the number of examples.
"""

import os
from typing import Any, Final

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from braidmq.broker import records
from braidmq.broker.broker import DELIVERED, EMPTY, MAINTENANCE_US, UNKNOWN, WAIT
from braidmq.broker.delivery.subscriptions import Consumer
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import MS, ROOM_BYTES, S, peer_of
from tests.unit.broker.oracle import Known, Sub
from tests.unit.broker.pair import TOPICS, Pair

EXAMPLES: Final = int(os.environ.get("BRAIDMQ_MODEL_EXAMPLES", "80"))
OWNERS: Final = ("ada", "bob")
SUBSCRIPTIONS_MAX: Final = 4
TTL_US: Final = 2_500 * MS
RARELY: Final = st.sampled_from([False, True, False])


class Model(Pair):
    """Everything that may happen to a broker."""

    @initialize(
        window=st.sampled_from([1, 2, 4]),
        max_retries=st.sampled_from([1, 2, 3]),
        count=st.integers(0, 9),
    )
    def begin(self, window: int, max_retries: int, count: int) -> None:
        self.start(
            Settings(
                window=window,
                max_retries=max_retries,
                retry_backoff_us=1 * S,
                retry_backoff_max_us=3 * S,
                lease_us=60 * S,
                lease_qos0_us=20 * S,
            )
        )
        self.subscribe("a", 1, "ada")
        self.subscribe("b", 1, "bob")
        self.publish("a", 1, 0, count, is_committed=True)
        self.publish("b", 1, TTL_US, count, is_committed=True)

    # Publishers.

    @rule(
        topic=st.sampled_from(["a", "b", "a", "b", "dlq.a"]),
        qos=st.sampled_from([1, 1, 1, 0]),
        ttl_us=st.sampled_from([0, 0, 0, TTL_US]),
        count=st.integers(1, 6),
        is_committed=st.booleans(),
    )
    def publish(
        self, topic: str, qos: int, ttl_us: int, count: int, is_committed: bool
    ) -> None:
        for _ in range(count):
            self.publish_one(topic, qos, ttl_us if qos and topic != "a" else 0)
        if is_committed:
            self.commit()

    def publish_one(self, topic: str, qos: int, ttl_us: int) -> None:
        if qos and self.drive.broker.refusal:
            return
        self.serial += 1
        payload = b"%d" % self.serial
        message_id = self.drive.publish(topic, payload, qos=qos, ttl_us=ttl_us)
        if qos:
            assert message_id not in self.oracle.messages
            expires_us = self.drive.now_us + ttl_us if ttl_us else 0
            self.oracle.messages[message_id] = Known(topic, payload, expires_us)
            return
        self.oracle.published += 1
        for sub in self.started():
            if sub.topic == topic:
                self.oracle.offer(sub, payload)
        self.absorb()

    # Consumers.

    @rule(
        topic=st.sampled_from(TOPICS),
        qos=st.sampled_from([0, 1, 1]),
        owner=st.sampled_from(OWNERS),
    )
    def subscribe(self, topic: str, qos: int, owner: str) -> None:
        if self.drive.broker.refusal or len(self.oracle.subs) >= SUBSCRIPTIONS_MAX:
            return
        now_us = self.drive.now_us
        qos = qos or int(topic != "a")  # messages that may expire are not for QoS 0
        sub_id = self.drive.broker.subscribe(
            peer_of(owner), self.drive.topic(topic), qos, now_us
        )
        sub = Sub(sub_id, topic, qos, owner, now_us, now_us)
        self.oracle.subs[sub_id] = self.oracle.ever[sub_id] = sub

    @rule(subscription_id=st.integers(0, 20), owner=st.sampled_from(OWNERS))
    def attach_as_any_principal(self, subscription_id: int, owner: str) -> None:
        sub = self.oracle.subs.get(subscription_id)
        is_own = sub is not None and sub in self.started() and sub.owner == owner
        assert is_own == (
            self.drive.broker.subscriptions.attach(peer_of(owner), subscription_id) is not None
        )

    @rule(data=st.data(), count=st.integers(1, 4))
    def poll(self, data: st.DataObject, count: int) -> None:
        consumer = self.consumer(data)
        if consumer is not None:
            for _ in range(count):
                self.poll_with(consumer)

    def poll_with(self, consumer: Consumer) -> int:
        sub = self.use(consumer)
        broker = self.drive.broker
        while True:
            self.credits[consumer] += 1
            outcome = broker.poll(consumer, sub.id, self.drive.now_us)
            self.absorb()
            if outcome == DELIVERED:
                return outcome
            self.credits[consumer] -= 1
            if outcome == EMPTY:
                self.check_is_empty(consumer)
                return outcome
            assert WAIT == outcome
            self.serve_all()
            assert consumer.peer in broker.take_touched()

    @rule(data=st.data(), count=st.integers(0, 5))
    def credit(self, data: st.DataObject, count: int) -> None:
        consumer = self.consumer(data)
        if consumer is None:
            return
        sub = self.use(consumer)
        self.credits[consumer] += count
        self.drive.broker.credit(consumer, count, sub.id, self.drive.now_us)

    @rule(data=st.data(), is_held=st.booleans())
    def ack(self, data: st.DataObject, is_held: bool) -> None:
        consumer = self.consumer(data)
        if consumer is None:
            return
        tags = (
            list(self.sub_of(consumer).held) if is_held else [0, *self.oracle.messages, 2**64]
        )
        if tags:
            self.ack_with(consumer, data.draw(st.sampled_from(tags), label="tag"))

    def ack_with(self, consumer: Consumer, tag: int) -> int:
        sub = self.use(consumer)
        broker = self.drive.broker
        while (outcome := broker.acknowledge(consumer, tag, self.drive.now_us)) == WAIT:
            self.serve_all()
        if tag not in self.oracle.doomed(sub):  # the broker may have dead-lettered it already
            assert (DELIVERED if self.oracle.is_open(sub, tag) else UNKNOWN) == outcome
        if outcome == DELIVERED:
            self.oracle.settle(sub, tag)
        else:
            assert tag not in self.oracle.alive(sub) or tag not in sub.held
            sub.held.pop(tag, None)  # its timer had run out
        return outcome

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        consumer = self.consumer(data)
        if consumer is not None:
            self.disconnect_one(consumer)

    @rule(data=st.data(), rounds=st.integers(1, 3), is_abrupt=st.booleans())
    def neglect(self, data: st.DataObject, rounds: int, is_abrupt: bool) -> None:
        """Take every message and acknowledge none, several times."""
        for _ in range(rounds):
            consumer = self.consumer(data)
            if consumer is None:
                return
            for _ in range(self.limits.window + 1):
                self.poll_with(consumer)
            if is_abrupt:
                self.disconnect_one(consumer)
            else:
                self.advance(self.limits.retry_backoff_max_us)

    def disconnect_one(self, consumer: Consumer) -> None:
        sub = self.sub_of(consumer)
        self.drive.disconnect(consumer)
        self.forget_consumers([consumer])
        sub.held = {i: held for i, held in sub.held.items() if held[0] is not consumer.peer}
        self.absorb()

    @rule(data=st.data(), room_bytes=st.sampled_from([0, 1, ROOM_BYTES]))
    def buffer_changes(self, data: st.DataObject, room_bytes: int) -> None:
        consumer = self.consumer(data)
        if consumer is not None:
            consumer.peer.room_bytes = room_bytes
            self.drive.broker.resume(consumer.peer, self.drive.now_us)

    @rule(data=st.data(), happens=RARELY)
    def unsubscribe(self, data: st.DataObject, happens: bool) -> None:
        consumer = self.consumer(data)
        if consumer is None or not happens:
            return
        self.drive.broker.unsubscribe(consumer)
        self.end(consumer.subscription.id)

    # The log and time.

    @rule()
    def append(self) -> None:
        if self.drive.batch is not None:
            return
        first_id = len(self.drive.log.records) + 1
        for record_id, record in enumerate(self.drive.append(), first_id):
            if record[0] == records.DEAD_LETTER:
                self.check_letter(record_id, records.StoredMessage(record))
        self.taken = self.oracle.checkpoint()

    @rule()
    def commit(self) -> None:
        self.append()
        waits_for_snapshot = self.drive.awaited_snapshot is not None
        self.drive.commit_batch()
        assert self.taken is not None
        self.oracle.durable = max(self.oracle.durable, self.taken, key=lambda one: one[0])
        self.taken = None
        for record_id in range(self.oracle.committed_id + 1, len(self.drive.log.records) + 1):
            self.oracle.committed_id = record_id
            if record_id in self.oracle.subs:
                self.oracle.subs[record_id].used_at_most_us = self.drive.now_us
            message = self.oracle.messages.get(record_id)
            if message is not None:
                self.oracle.published += 1
                for sub in self.started():
                    if sub.qos == 0 and sub.topic == message.topic:
                        self.oracle.offer(sub, message.payload)
            self.absorb()
        if waits_for_snapshot and self.drive.awaited_snapshot is None:
            self.keep_snapshot()

    @rule(lasts=st.booleans())
    def refuse(self, lasts: bool) -> None:
        self.append()
        self.drive.refuse()
        self.taken = None
        self.oracle.take_back(self.oracle.committed_id + 1)
        if not lasts:
            self.make_room()

    @rule()
    def make_room(self) -> None:
        self.drive.broker.accept_again()

    @rule()
    def snapshot(self) -> None:
        now_us = self.drive.now_us
        # Maintenance refreshes the lease of a consumer with credit, so it may lag that much.
        idle_us = {
            s.id: now_us - s.used_us + MAINTENANCE_US
            for s in self.oracle.subs.values()
            if s.qos
        }
        self.drive.snapshot()
        self.snapshotted = (self.oracle.checkpoint(), idle_us)
        if self.drive.awaited_snapshot is None:
            self.keep_snapshot()

    def keep_snapshot(self) -> None:
        assert self.snapshotted is not None
        checkpoint, self.oracle.idle_us = self.snapshotted
        self.oracle.durable = max(self.oracle.durable, checkpoint, key=lambda one: one[0])

    @rule()
    def read_back(self) -> None:
        self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)
        if self.drive.requests:
            self.drive.serve_one_read()

    @rule(downtime_us=st.sampled_from([0, 2 * S, 90 * S]), happens=RARELY)
    def crash(self, downtime_us: int, happens: bool) -> None:
        if happens:
            self.restart(downtime_us)

    def restart(self, downtime_us: int) -> None:
        self.drive.now_us += downtime_us
        self.oracle.now_us = self.drive.now_us
        self.drive.restart()
        self.oracle.crash()
        self.forget_consumers(list(self.consumers))
        self.taken = None

    @rule(delay_us=st.sampled_from([25 * S, 61 * S]), happens=RARELY)
    def pause_for_long(self, delay_us: int, happens: bool) -> None:
        if happens:
            self.advance(delay_us)

    @rule(delay_us=st.sampled_from([1 * S, 3 * S, 2 * S, TTL_US, 200 * MS, 30 * MS]))
    def advance(self, delay_us: int) -> None:
        until_us = self.drive.now_us + delay_us
        while (due_us := self.drive.broker.next_deadline_us()) <= until_us:
            self.pass_time(max(self.drive.now_us, due_us))
            self.drive.tick()
            for sub in self.oracle.subs.values():
                sub.held = {i: h for i, h in sub.held.items() if h[1] > self.drive.now_us}
            self.absorb()
            self.check_leases()
        self.pass_time(until_us)

    @invariant()
    def both_agree(self) -> None:
        self.every_delivery_was_due()
        self.no_consumer_waits_needlessly()
        self.held_bytes_are_counted_exactly()
        self.counters_agree()

    def teardown(self) -> None:
        """In the end every message of a durable subscription was delivered or has ended."""
        if not hasattr(self, "drive"):
            return
        for consumer in list(self.consumers):
            self.disconnect_one(consumer)
        self.absorb()
        self.drive.broker.accept_again()
        for _ in range(4):  # messages, dead letters, and the subscription to those
            self.drain()
            self.advance(self.limits.retry_backoff_max_us)
        self.check_the_end()
        self.restart(0)
        self.drain()
        assert 0 == self.oracle.delivered
        self.check_the_end()

    def drain(self) -> None:
        self.commit_all()
        for sub in self.started():
            if sub.qos == 1:
                consumer = self.connect(sub)
                while self.poll_with(consumer) == DELIVERED:
                    for tag in list(sub.held):
                        self.ack_with(consumer, tag)
                    self.counters_agree()
                self.disconnect_one(consumer)
        self.commit_all()

    def commit_all(self) -> None:
        while self.drive.batch is not None or self.drive.broker.wants_commit():
            self.commit()
        self.serve_all()


TestModel: Any = Model.TestCase
TestModel.settings = hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=50)
