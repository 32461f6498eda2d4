"""A queue of the broker and its oracle side by side: kept in step and compared.

It chooses no steps. Every connection consumes the one queue.
"""

from typing import Final

from hypothesis.stateful import RuleBasedStateMachine

from braidmq.broker import dead_letters, records
from braidmq.broker.delivery.channels import SETTLED, Channel, Delivery, Entry
from braidmq.broker.delivery.queue import Lane, Ledger, Queue, QueueConsumer
from braidmq.broker.delivery.queue import View as BrokersView
from braidmq.broker.outgoing import Buried
from braidmq.broker.policy import DROP_OLDEST, FAN_OUT_WITHOUT_ACK, Policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive, charged
from tests.unit.broker.queue_oracle import Checkpoint, QueueOracle, View

NAME: Final = "q"
LETTERS: Final = "dlq.q"


class QueuePair(RuleBasedStateMachine):
    """The real broker with one queue, and the oracle."""

    def start(self, policy: Policy, limits: Settings) -> None:
        self.limits = limits
        self.drive = Drive(limits)
        self.serial = 0
        self.rejected: set[int] = set()
        self.entries: list[Entry] = []
        self.taken: Checkpoint | None = None
        self.snapshotted: Checkpoint | None = None
        self.heard: dict[QueueConsumer, list[bytes]] = {}
        self.declare(policy)

    def declare(self, policy: Policy) -> None:
        self.policy = policy
        queue = self.drive.declare(NAME, policy)
        self.oracle = QueueOracle(policy, self.limits, self.drive.now_us)
        self.oracle.queue_id = queue.id
        self.oracle.committed_id = len(self.drive.log.records)
        self.dropped_seen = self.drive.broker.stats.dropped.overflow
        self.ended_seen = self.ended_without_letter()

    @property
    def queue(self) -> Queue:
        return self.drive.queue(NAME)

    @property
    def consumers(self) -> list[QueueConsumer]:
        return list(self.oracle.views)

    def ended_without_letter(self) -> int:
        return sum(self.drive.broker.stats.dropped.by_reason.values())

    def refuses(self) -> bool:
        return bool(self.drive.broker.refusal)

    # Keeping in step.

    def sync(self, *, drops_first: bool = False) -> None:
        """Tell the oracle what the broker did on its own, and check that it was right."""
        letters = self.learn_of_letters()
        self.learn_of_ends()
        if drops_first:
            self.learn_of_drops(letters)
        self.absorb()
        if not drops_first:
            self.learn_of_drops(letters)

    def loaded(self, view: View) -> dict[int, int]:
        """Return the id up to which each lane is in memory."""
        if self.oracle.is_fan_out:
            subscription = self.subscription_of(view)
            return dict.fromkeys(range(4), subscription.position.cursor)
        lanes = self.queue.lanes
        return {n: lanes[n if len(lanes) > 1 else 0].position.cursor for n in range(4)}

    def learn_of_letters(self) -> int:
        """Check the reason of each new dead letter; return how many are new."""
        oracle = self.oracle
        known = len(oracle.letters)
        for item in self.drive.broker.outgoing.pending():
            if not isinstance(item, Buried) or item.id in oracle.letters:
                continue
            view = self.view_of(item.entry)
            headers = decode_headers(item.letter.headers)
            reason = headers[dead_letters.REASON_HEADER]
            message_id = item.entry.id
            attempts = view.attempts.get(message_id, 0)
            assert message_id in view.open
            assert message_id not in view.held
            assert str(attempts) == headers[dead_letters.ATTEMPTS_HEADER]
            assert oracle.messages[message_id].payload == item.letter.payload
            if reason == dead_letters.EXPIRED:
                assert oracle.is_expired(message_id)
            elif reason == dead_letters.MAX_RETRIES:
                assert attempts == self.policy.max_attempts
            else:
                assert reason == dead_letters.REJECTED
                assert message_id in self.rejected
            oracle.end(view, message_id, "letter", item.id)
            oracle.letters[item.id] = (view, message_id)
        return len(oracle.letters) - known

    def learn_of_ends(self) -> None:
        """Without dead letters, a message out of attempts ends at once and is counted."""
        ended = self.ended_without_letter() - self.ended_seen
        self.ended_seen += ended
        if self.policy.dead_letters:
            assert 0 == ended
            return
        for view in self.oracle.all_views():
            for message_id in self.oracle.doomed(view, self.loaded(view)):
                self.oracle.end(view, message_id, "drop")
                ended -= 1
        assert 0 == ended

    def learn_of_drops(self, letters: int) -> None:
        """The broker drops the oldest, no more than exceed the limit, and counts each.

        A message dead-lettered in the same turn may have counted as waiting just before.
        """
        dropped = self.drive.broker.stats.dropped.overflow - self.dropped_seen
        self.dropped_seen += dropped
        if self.policy.overflow != DROP_OLDEST or not self.policy.max_size:
            assert 0 == dropped
            return
        oracle = self.oracle
        size = self.policy.max_size
        while sum(map(len, oracle.volatile.values())) > size:
            del oracle.volatile[oracle.volatile_lane(highest=False)][0]
            dropped -= 1
        for view in oracle.all_views():
            subscriptions: list[Lane | Ledger | BrokersView] = [*self.queue.lanes]
            if oracle.is_fan_out:
                subscriptions = [self.subscription_of(view)]
                view.is_exact = view.is_exact or not subscriptions[0].position.behind
            if view.is_exact:
                left = sum(waiting_in(s) for s in subscriptions) + self.unabsorbed(view)
                dropped -= self.drop(view, view.waiting() - left, letters)
        for view in oracle.all_views():
            if not view.is_exact:  # at most one
                dropped -= self.drop(view, dropped, letters)
        assert 0 == dropped

    def drop(self, view: View, count: int, letters: int) -> int:
        for _ in range(count):
            assert view.waiting() + letters > self.policy.max_size
            self.oracle.end(view, self.oracle.oldest_waiting(view), "overflow")
        return max(0, count)

    def unabsorbed(self, view: View) -> int:
        """Return how many deliveries the oracle does not know of yet."""
        deliveries = [
            d
            for c in self.consumers
            if self.oracle.view_of(c) is view
            for d in c.peer.deliveries
        ]
        return sum(delivery.entry is not None for delivery in deliveries)

    def subscription_of(self, view: View) -> BrokersView | Ledger:
        (found,) = [c for c, one in self.oracle.views.items() if one is view]
        return self.channel_of(found)

    def channel_of(self, consumer: QueueConsumer) -> BrokersView | Ledger:
        """Return the channel in which a fan-out consumer's messages wait."""
        channel = consumer.view or self.queue.ledger
        assert channel is not None
        return channel

    def view_of(self, entry: Entry) -> View:
        if not self.oracle.is_fan_out:
            return self.oracle.shared
        return next(v for c, v in self.oracle.views.items() if c.view is entry.channel)

    def absorb(self) -> None:
        """Pass deliveries to the oracle for as long as it accepts any."""
        agreed = True
        while agreed:
            agreed = False
            for consumer in self.consumers:
                agreed = self.absorb_one(consumer) or agreed

    def absorb_one(self, consumer: QueueConsumer) -> bool:
        peer = consumer.peer
        if not peer.deliveries or not self.allows(consumer, peer.deliveries[0]):
            return False
        delivery = peer.deliveries.pop(0)
        entry = delivery.entry
        if entry is None:
            if self.policy.mode == FAN_OUT_WITHOUT_ACK:
                self.heard[consumer].remove(delivery.message.payload)
            else:
                del self.oracle.volatile[self.oracle.volatile_lane(highest=True)][0]
            return True
        self.oracle.deliver(consumer, entry.id)
        assert self.oracle.messages[entry.id].payload == delivery.message.payload
        assert self.oracle.view_of(consumer).attempts[entry.id] == entry.attempts
        if entry not in self.entries:
            self.entries.append(entry)
        return True

    def allows(self, consumer: QueueConsumer, delivery: Delivery) -> bool:
        oracle = self.oracle
        if self.policy.mode == FAN_OUT_WITHOUT_ACK:
            return [delivery.message.payload] == self.heard[consumer][:1]
        view = oracle.view_of(consumer)
        held = len(view.held_by(consumer))
        if held >= consumer.prefetch:
            return False
        if not oracle.is_fan_out:
            rivals = [len(view.held_by(c)) for c in self.consumers if self.may_take(c)]
            if held != min(rivals):
                return False
        if delivery.entry is None:
            lane = oracle.volatile_lane(highest=True)
            return [delivery.message.payload] == oracle.volatile[lane][:1]
        due = {oracle.next_for(consumer, loaded) for loaded in (self.loaded(view), None)}
        return delivery.message.id in due

    def may_take(self, consumer: QueueConsumer) -> bool:
        view = self.oracle.view_of(consumer)
        return (
            len(view.held_by(consumer)) < consumer.prefetch
            and consumer.peer.room_bytes > 0
            and not self.oracle.is_isolated(view, consumer)
        )

    def expect_broadcast(self, payload: bytes) -> None:
        """Without acknowledgements, every connected consumer with room gets it once."""
        if self.policy.mode == FAN_OUT_WITHOUT_ACK:
            for consumer in self.consumers:
                if consumer.peer.room_bytes > 0:
                    self.heard[consumer].append(payload)
                else:
                    self.dropped_seen += 1

    def ackable(self) -> list[Entry]:
        """Return the deliveries that can still be acknowledged."""
        self.entries = [
            entry
            for entry in self.entries
            if entry.state != SETTLED and not entry.channel.ended
        ]
        return self.entries

    # Checking.

    def every_delivery_was_due(self) -> None:
        for consumer in self.consumers:
            assert [] == consumer.peer.deliveries
            assert [] == self.heard[consumer]
            view = self.oracle.view_of(consumer)
            assert len(view.held_by(consumer)) == consumer.held

    def the_counts_agree(self) -> None:
        oracle = self.oracle
        for view in oracle.all_views():
            if oracle.is_fan_out and not self.subscription_of(view).position.behind:
                view.is_exact = True
        if all(view.is_exact for view in oracle.all_views()):
            assert oracle.waiting() == self.queue.waiting()
        assert oracle.in_flight() == self.queue.in_flight_count()
        assert oracle.in_flight() == self.drive.broker.in_flight_count()
        assert len(oracle.pending) == self.queue.pending
        unsettled = len(oracle.unsettled())
        assert unsettled == self.queue.unsettled()
        letters = self.drive.broker.queues.by_name.get(LETTERS)
        committed = self.committed_letters()
        assert committed == (0 if letters is None else letters.waiting())

    def committed_letters(self) -> int:
        raw = LETTERS.encode()
        return sum(raw == records.describe(record).topic for record in self.drive.log.records)

    def held_bytes_are_counted_exactly(self) -> None:
        broker = self.drive.broker
        total = 0
        for subscription in broker.queues.all_channels():
            assert bytes_of(subscription) == subscription.held_bytes
            # A read requested before a purge can bring one message too many.
            assert len(subscription.ready) <= self.limits.window + 1
            total += charged(subscription)
        assert total == broker.dispatch.windows.held_bytes

    def the_log_keeps_what_is_needed(self) -> None:
        """Retention never deletes an unsettled message."""
        needed = [i for view in self.oracle.all_views() for i in view.open]
        needed += list(self.oracle.unsettled())
        if needed:
            assert self.drive.broker.needed_id() <= min(needed)

    def no_consumer_waits_needlessly(self) -> None:
        """A consumer that may take a message has it, unless the log is being read."""
        oracle = self.oracle
        for consumer in self.consumers:
            channels: list[Channel] = [*self.queue.lanes]
            if oracle.is_fan_out:
                channels = [self.channel_of(consumer)]
            if self.may_take(consumer) and not any(c.position.reading for c in channels):
                assert -1 == oracle.volatile_lane(highest=True)
                view = oracle.view_of(consumer)
                expired = any(oracle.is_expired(i) for i in view.open)
                parked = any(oracle.is_spent(view, i) for i in view.open - view.held.keys())
                if not expired and not parked:
                    # Nothing wakes the broker when a message expires.
                    assert 0 == oracle.next_for(consumer, None)

    def drop_oldest_keeps_its_limit(self) -> None:
        """DropOldest keeps its limit as soon as the backlog is in memory."""
        size = self.policy.max_size
        if not size or self.policy.overflow != DROP_OLDEST or self.policy.mode:
            return
        lane = self.queue.lanes[0]
        if not lane.position.behind and not lane.in_flight.open:
            assert self.queue.waiting() <= size


def waiting_in(subscription: Lane | Ledger | BrokersView) -> int:
    return subscription.unsettled - subscription.in_flight.count


def bytes_of(subscription: Channel) -> int:
    entries = [*subscription.ready, *subscription.in_flight.all()]
    waiting = sum(len(message.body) for message in subscription.volatile)
    return sum(len(entry.message.body) for entry in entries) + waiting
