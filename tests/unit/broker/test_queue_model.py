"""Queues against a short oracle, over random sequences of events.

`BRAIDMQ_MODEL_EXAMPLES` sets the number of examples.
"""

import os
from typing import Any, Final

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from braidmq.broker import dead_letters
from braidmq.broker.delivery.channels import Entry
from braidmq.broker.delivery.queue import QueueConsumer
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    REDIRECT_TO_DLQ,
    ROUND_ROBIN,
    Policy,
    of_values,
)
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import MS, ROOM_BYTES, S, peer_of
from tests.unit.broker.queue_oracle import Checkpoint, Known
from tests.unit.broker.queue_pair import NAME, QueuePair

EXAMPLES: Final = int(os.environ.get("BRAIDMQ_MODEL_EXAMPLES", "100"))
CONSUMERS_MAX: Final = 4
TTL_US: Final = 7 * S
RARELY: Final = st.sampled_from([False, True, False])

MODES: Final = (ROUND_ROBIN, FAN_OUT_WITH_ACK, PRIORITY_BASED, FAN_OUT_WITHOUT_ACK)
STRATEGIES: Final = (DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ)


@st.composite
def policies(draw: st.DrawFn) -> list[int | str | bool]:
    """Draw any policy that the oracle can follow."""
    policy = Policy()
    policy.mode = draw(st.sampled_from(MODES))
    policy.max_size = draw(st.sampled_from([0, 0, 1, 2, 5]))
    policy.overflow = draw(st.sampled_from(STRATEGIES))
    policy.max_attempts = draw(st.sampled_from([3, 2, 1]))
    policy.ttl_us = draw(st.sampled_from([0, 0, TTL_US]))
    if policy.mode in {ROUND_ROBIN, PRIORITY_BASED} and not policy.ttl_us:
        # Otherwise the oracle could not tell which messages have ended.
        policy.dead_letters = draw(st.sampled_from([True, True, False]))
        policy.durable = draw(st.sampled_from([True, True, True, False]))
    return policy.values()


class QueueModel(QueuePair):
    """Everything that may happen to a queue."""

    @initialize(
        policy=policies(), window=st.sampled_from([1, 2, 4, 64]), count=st.integers(0, 6)
    )
    def begin(self, policy: list[int | str | bool], window: int, count: int) -> None:
        self.start(
            of_values(policy),
            Settings(
                window=window,
                retry_backoff_us=1 * S,
                queue_ack_timeout_us=3 * S,
                queue_backoff_us=1 * S,
                queue_backoff_max_us=3 * S,
            ),
        )
        self.publish(1, count, is_committed=True)

    # Publishers.

    @rule(priority=st.integers(0, 3), count=st.integers(1, 5), is_committed=st.booleans())
    def publish(self, priority: int, count: int, is_committed: bool) -> None:
        for _ in range(count):
            self.publish_one(priority)
        if is_committed:
            self.commit()

    def publish_one(self, priority: int) -> None:
        if self.refuses() and self.policy.durable:
            return
        has_room = self.queue.has_room()
        self.check_room(has_room)
        drive = self.drive
        self.serial += 1
        payload = b"%d" % self.serial
        message = drive.message(NAME, payload)
        message.priority = priority
        if has_room:
            message_id = drive.broker.publish(message, drive.now_us)
            if message_id:
                self.oracle.messages[message_id] = Known(payload, priority, message.expires_us)
                self.oracle.pending.append(message_id)
            else:
                self.publish_volatile(payload, priority)
        elif self.policy.overflow == REDIRECT_TO_DLQ and self.policy.dead_letters:
            letter = drive.broker.queues.redirect(message, self.queue, drive.now_us)
            assert (letter is None) == self.refuses()
            if letter is not None:
                drive.broker.publish(letter, drive.now_us)

    def publish_volatile(self, payload: bytes, priority: int) -> None:
        waiting = self.oracle.volatile[self.oracle.lane_for(priority)]
        if len(waiting) == self.limits.window:
            del waiting[0]
            self.dropped_seen += 1
        waiting.append(payload)
        self.sync()

    def check_room(self, has_room: bool) -> None:
        """The limit is exact: accepted but uncommitted messages count as waiting."""
        oracle = self.oracle
        if not all(view.is_exact for view in oracle.all_views()):
            return
        size = self.policy.max_size
        is_below = size == 0 or oracle.waiting() + len(oracle.pending) < size
        assert (is_below or self.policy.overflow == DROP_OLDEST) == has_room

    # Consumers.

    @rule(prefetch=st.sampled_from([1, 2, 3, 100]))
    def join(self, prefetch: int) -> None:
        exact = all(view.is_exact for view in self.oracle.all_views())
        if len(self.consumers) >= CONSUMERS_MAX:
            return
        if not exact and self.policy.overflow == DROP_OLDEST:
            return  # with two inexact views the oracle could not tell whose oldest was dropped
        consumer = self.drive.broker.queues.join(peer_of("ada"), self.queue, prefetch)
        self.heard[consumer] = []
        self.oracle.join(consumer)
        if self.oracle.is_fan_out:
            self.learn_attempts(consumer)
        self.drive.broker.queues.pump(self.queue, self.drive.now_us)
        self.sync()

    def learn_attempts(self, consumer: QueueConsumer) -> None:
        """Attempts of earlier subscribers carry over, but are never overcounted."""
        view = self.oracle.view_of(consumer)
        for message_id, attempts in self.channel_of(consumer).position.known_attempts.items():
            if message_id in view.open and attempts:
                assert attempts <= self.oracle.peak[message_id]
                view.attempts[message_id] = attempts

    @rule(data=st.data(), prefetch=st.sampled_from([1, 2, 100]))
    def change_prefetch(self, data: st.DataObject, prefetch: int) -> None:
        consumer = self.choose(data)
        if consumer is not None:
            self.drive.broker.queues.join(consumer.peer, self.queue, prefetch)
            self.drive.broker.queues.pump(self.queue, self.drive.now_us)
            self.sync()

    @rule(data=st.data(), counted=st.booleans())
    def leave(self, data: st.DataObject, counted: bool) -> None:
        consumer = self.choose(data)
        if consumer is not None:
            self.leave_with(consumer, counted=counted)

    def leave_with(self, consumer: QueueConsumer, *, counted: bool) -> None:
        self.oracle.leave(consumer, counted=counted)
        if counted:
            self.drive.disconnect(consumer)
        else:
            self.drive.leave(consumer)
        self.sync()

    def choose(self, data: st.DataObject) -> QueueConsumer | None:
        if not self.consumers:
            return None
        number = data.draw(st.integers(0, len(self.consumers) - 1), label="consumer")
        return self.consumers[number]

    @rule(data=st.data(), room_bytes=st.sampled_from([0, ROOM_BYTES]))
    def buffer_changes(self, data: st.DataObject, room_bytes: int) -> None:
        consumer = self.choose(data)
        if consumer is not None:
            consumer.peer.room_bytes = room_bytes
            self.drive.broker.resume(consumer.peer, self.drive.now_us)
            self.sync()

    def choose_delivery(self, data: st.DataObject) -> Entry | None:
        entries = self.ackable()
        if not entries:
            return None
        return entries[data.draw(st.integers(0, len(entries) - 1), label="delivery")]

    @rule(data=st.data(), count=st.integers(1, 3))
    def ack(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            entry = self.choose_delivery(data)
            if entry is not None:
                self.ack_one(entry)

    def ack_one(self, entry: Entry) -> None:
        self.oracle.end(self.view_of(entry), entry.id, "ack")
        self.drive.broker.queues.acknowledge(entry, self.drive.now_us)
        self.sync()

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        entry = self.choose_delivery(data)
        if entry is None:
            return
        view = self.view_of(entry)
        self.oracle.give_back(view, [entry.id])
        self.rejected.add(entry.id)
        if not self.policy.dead_letters:
            self.oracle.end(view, entry.id, "drop")
            self.ended_seen += 1
        self.drive.broker.queues.reject(entry, dead_letters.REJECTED, self.drive.now_us)
        if entry.due_us:  # the log refused its dead letter
            assert self.refuses()
            view.aside[entry.id] = entry.due_us
        self.sync()

    @rule(data=st.data(), delay_us=st.sampled_from([0, 0, 1 * S, 5 * S]))
    def requeue(self, data: st.DataObject, delay_us: int) -> None:
        entry = self.choose_delivery(data)
        if entry is None:
            return
        view = self.view_of(entry)
        if delay_us or entry.consumer is not None:
            self.oracle.give_back(view, [entry.id])
        now_us = self.drive.now_us
        spent = self.oracle.is_spent(view, entry.id)
        if not delay_us:
            self.oracle.give_back(view, [entry.id])
        elif not spent:
            view.aside[entry.id] = now_us + delay_us
        self.drive.broker.queues.requeue(entry, delay_us, now_us)
        if delay_us and not spent:
            assert now_us + delay_us <= entry.due_us <= now_us + delay_us * 17 // 16
            view.aside[entry.id] = entry.due_us
        self.sync()

    # Operators.

    @rule(happens=RARELY)
    def purge(self, happens: bool) -> None:
        if not happens or not all(view.is_exact for view in self.oracle.all_views()):
            return
        waiting = self.oracle.waiting()
        self.oracle.purge()
        assert waiting == self.drive.broker.queues.purge(self.queue, self.drive.now_us)
        self.sync()

    @rule(policy=policies(), happens=RARELY)
    def delete_and_declare(self, policy: list[int | str | bool], happens: bool) -> None:
        if not happens:
            return
        self.make_room()
        while self.drive.batch is not None:
            self.commit()
        self.drive.broker.queues.delete(self.queue)
        self.drive.commit()
        self.declare(of_values(policy))
        self.taken = self.snapshotted = None

    # The log and time.

    @rule()
    def append(self) -> None:
        if self.drive.batch is None:
            self.drive.append()
            self.taken = self.oracle.checkpoint()

    @rule()
    def commit(self) -> None:
        self.append()
        drive = self.drive
        assert drive.batch is not None
        drive.log.records.extend(drive.batch)
        drive.batch = None
        for record_id in range(self.oracle.committed_id + 1, len(drive.log.records) + 1):
            self.oracle.committed_id = record_id
            if record_id in self.oracle.messages:
                self.oracle.commit(record_id)
                self.expect_broadcast(self.oracle.messages[record_id].payload)
            drive.broker.committed(record_id, drive.now_us)
            self.oracle.letters.pop(record_id, None)
            self.sync()
        if self.taken is not None:
            self.oracle.durable = self.newer(self.taken)
            self.taken = None
        if drive.awaited_snapshot and drive.awaited_snapshot[0] <= self.oracle.committed_id:
            drive.log.snapshots.append(drive.awaited_snapshot)
            drive.awaited_snapshot = None
            self.keep_snapshot()

    def newer(self, checkpoint: Checkpoint) -> Checkpoint:
        return max(self.oracle.durable, checkpoint, key=lambda one: one.number)

    @rule()
    def snapshot(self) -> None:
        self.drive.snapshot()
        self.snapshotted = self.oracle.checkpoint()
        if self.drive.awaited_snapshot is None:
            self.keep_snapshot()

    def keep_snapshot(self) -> None:
        if self.snapshotted is not None:
            self.oracle.durable = self.newer(self.snapshotted)

    @rule(lasts=st.booleans())
    def refuse(self, lasts: bool) -> None:
        self.append()
        self.oracle.take_back(self.oracle.committed_id + 1)
        self.drive.refuse()
        self.taken = None
        self.sync()
        if not lasts:
            self.make_room()

    @rule()
    def make_room(self) -> None:
        self.drive.broker.accept_again()

    @rule()
    def read_back(self) -> None:
        self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)
        if self.drive.requests:
            self.drive.serve_one_read()
            self.sync(drops_first=True)

    @rule(happens=RARELY)
    def crash(self, happens: bool) -> None:
        if happens:
            self.restart()

    def restart(self) -> None:
        self.drive.restart()
        self.oracle.crash()
        self.entries = []
        self.taken = None
        self.dropped_seen = self.ended_seen = 0

    @rule(delay_us=st.sampled_from([1 * S, 4 * S, 8 * S, 200 * MS]))
    def advance(self, delay_us: int) -> None:
        until_us = self.drive.now_us + delay_us
        while (due_us := self.drive.broker.next_deadline_us()) <= until_us:
            self.pass_time(max(self.drive.now_us, due_us))
            self.oracle.timers_ended()
            self.drive.tick()
            self.sync()
        self.pass_time(until_us)

    def pass_time(self, now_us: int) -> None:
        self.drive.now_us = self.oracle.now_us = now_us

    @invariant()
    def both_agree(self) -> None:
        if hasattr(self, "drive"):
            self.every_delivery_was_due()
            self.the_counts_agree()
            self.held_bytes_are_counted_exactly()
            self.the_log_keeps_what_is_needed()
            self.no_consumer_waits_needlessly()
            self.drop_oldest_keeps_its_limit()

    def teardown(self) -> None:
        """In the end every message was acknowledged or has ended, and was counted."""
        if not hasattr(self, "drive") or self.policy.mode == FAN_OUT_WITHOUT_ACK:
            return
        for consumer in self.consumers:
            self.leave_with(consumer, counted=False)
        self.make_room()
        for _ in range(3):
            self.drain()
            self.advance(8 * S)
        self.commit_all()
        assert set() == self.oracle.unsettled()
        assert (0, 0) == (self.queue.waiting(), self.queue.in_flight_count())
        self.restart()
        self.drain()
        assert 0 == self.drive.broker.stats.delivered
        assert (0, 0) == (self.queue.waiting(), self.queue.in_flight_count())
        self.both_agree()

    def drain(self) -> None:
        self.commit_all()
        self.join(100)
        consumer = self.consumers[-1]
        while True:
            self.serve_all()
            held = [e for e in self.ackable() if e.consumer is consumer]
            if not held:
                break
            for entry in held:
                self.ack_one(entry)
            self.both_agree()
        self.leave_with(consumer, counted=False)
        self.commit_all()

    def serve_all(self) -> None:
        self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)
        while self.drive.requests:
            self.read_back()
            self.drive.requests += self.drive.broker.take_reads(self.drive.now_us)

    def commit_all(self) -> None:
        while self.drive.batch is not None or self.drive.broker.wants_commit():
            self.commit()
        self.drive.broker.full_barrier()
        self.commit()
        self.serve_all()


TestQueueModel: Any = QueueModel.TestCase
TestQueueModel.settings = hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=50)
