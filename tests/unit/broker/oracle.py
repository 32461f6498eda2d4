"""The delivery rules as sets and dicts, which the model test checks the broker against.

It knows nothing of prefetch windows, cursors, heaps or lanes: a message waits until it is
settled.
"""

from dataclasses import dataclass, field

from braidmq.broker.delivery.channels import Delivery, Peer
from braidmq.broker.settings import Settings


@dataclass
class Known:
    """A message as its publisher knows it."""

    topic: str
    payload: bytes
    expires_us: int = 0


@dataclass
class Sub:
    """A subscription: settled messages, delivery attempts, and who holds what until when."""

    id: int
    topic: str
    qos: int
    owner: str
    used_us: int
    used_at_most_us: int
    settled: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    held: dict[int, tuple[Peer, int]] = field(default_factory=dict)
    volatile: list[bytes] = field(default_factory=list)

    @property
    def is_limited(self) -> bool:
        return not self.topic.startswith("dlq.")


Checkpoint = tuple[int, dict[int, tuple[set[int], dict[int, int]]]]


class Oracle:
    """What must be true of every subscription."""

    def __init__(self, rules: Settings, now_us: int) -> None:
        self.rules = rules
        self.now_us = now_us
        self.committed_id = 0
        self.messages: dict[int, Known] = {}  # accepted and durable
        self.subs: dict[int, Sub] = {}  # including the uncommitted
        self.ever: dict[int, Sub] = {}
        self.letters: dict[int, tuple[int, int]] = {}  # id: the subscription, the message
        self.durable: Checkpoint = (0, {})
        self.checkpoints = 0
        self.idle_us: dict[int, int] = {}  # by subscription, in the newest snapshot
        self.count_from_zero()

    def count_from_zero(self) -> None:
        self.published = self.delivered = self.redelivered = self.dropped = 0
        self.acknowledged = 0

    def checkpoint(self) -> Checkpoint:
        """Return everything that the broker could recover after a restart now."""
        self.checkpoints += 1
        kept = {s.id: (set(s.settled), dict(s.attempts)) for s in self.subs.values() if s.qos}
        return self.checkpoints, kept

    def alive(self, sub: Sub) -> list[int]:
        """Return the committed messages of *sub* that are neither settled nor expired."""
        return [
            message_id
            for message_id, message in sorted(self.messages.items())
            if sub.id < message_id <= self.committed_id
            and sub.topic == message.topic
            and message_id not in sub.settled
            and not 0 < message.expires_us <= self.now_us
        ]

    def doomed(self, sub: Sub) -> list[int]:
        """Return the messages that wait to be dead-lettered."""
        return [i for i in self.alive(sub) if i not in sub.held and self._is_spent(sub, i)]

    def parked(self, sub: Sub) -> int:
        """Return how many messages at most keep a place while the log refuses dead letters.

        The broker notices that one has expired when its next timer ends.
        """
        since_us = self.now_us - self.rules.retry_backoff_us
        expired = [
            message_id
            for message_id in sub.attempts.keys() - sub.settled - sub.held.keys()
            if self._is_spent(sub, message_id)
            and since_us < self.messages[message_id].expires_us <= self.now_us
        ]
        return len(self.doomed(sub)) + len(expired)

    def _is_spent(self, sub: Sub, message_id: int) -> bool:
        return sub.is_limited and sub.attempts.get(message_id, 0) >= self.rules.max_retries

    def _is_last_chance(self, sub: Sub, message_id: int) -> bool:
        tried = sub.attempts.get(message_id, 0)
        return sub.is_limited and 0 < tried == self.rules.max_retries - 1

    def next_durable(self, sub: Sub, peer: Peer, up_to: int) -> int:
        """Return the message up to id *up_to* that *peer* must get next, or 0."""
        own = [message_id for message_id, (holder, _) in sub.held.items() if holder is peer]
        alone = self.rules.max_retries > 1 and any(self._is_spent(sub, i) for i in own)
        if sub.qos == 0 or alone or len(sub.held) >= self.rules.window:
            return 0
        free = [i for i in self.alive(sub) if i not in sub.held and not self._is_spent(sub, i)]
        last_chance = [i for i in free if self._is_last_chance(sub, i) and i <= up_to]
        returned = [i for i in free if i in sub.attempts and i not in last_chance]
        returned = [i for i in returned if i <= up_to]
        if last_chance and not own:
            return last_chance[0]
        if returned:
            return returned[0]
        fresh = [i for i in free if i not in sub.attempts]
        return fresh[0] if fresh and not last_chance else 0

    def allows(self, sub: Sub, peer: Peer, delivery: Delivery, loaded_id: int) -> bool:
        """Say whether *delivery* may come next; after a restart the log is read in parts."""
        if delivery.qos == 0:
            return [delivery.message.payload] == sub.volatile[:1]
        due = {self.next_durable(sub, peer, up_to) for up_to in (loaded_id, self.committed_id)}
        return delivery.correlation_id in due

    def deliver(self, sub: Sub, peer: Peer, delivery: Delivery) -> None:
        self.delivered += 1
        if delivery.qos == 0:
            del sub.volatile[0]
            assert sub.id == delivery.correlation_id  # the model's polls and credits carry it
            return
        tag = delivery.correlation_id
        assert tag == delivery.message.id
        assert self.messages[tag].payload == delivery.message.payload
        tried = sub.attempts[tag] = sub.attempts.get(tag, 0) + 1
        self.redelivered += tried > 1
        delay_us = self.rules.retry_backoff_us * 2 ** (tried - 1)
        sub.held[tag] = (peer, self.now_us + min(delay_us, self.rules.retry_backoff_max_us))

    def offer(self, sub: Sub, payload: bytes) -> None:
        if len(sub.volatile) == self.rules.window:
            del sub.volatile[0]
            self.dropped += 1
        sub.volatile.append(payload)

    def check_is_doomed(self, sub: Sub, message_id: int) -> None:
        assert message_id not in sub.settled
        assert message_id not in sub.held
        assert sub.attempts[message_id] == self.rules.max_retries
        assert sub.is_limited

    def has_expired_open(self, sub: Sub) -> bool:
        return any(i not in sub.settled and i not in self.alive(sub) for i in sub.attempts)

    def is_open(self, sub: Sub, tag: int) -> bool:
        return tag in sub.attempts and tag in self.alive(sub)

    def settle(self, sub: Sub, tag: int) -> None:
        sub.settled.add(tag)
        sub.held.pop(tag, None)
        self.acknowledged += 1

    def take_back(self, from_id: int) -> None:
        """Undo what the log refused or a crash lost."""
        for letter_id, (sub_id, message_id) in list(self.letters.items()):
            if letter_id >= from_id:
                del self.letters[letter_id]
                if sub_id in self.subs:
                    self.subs[sub_id].settled.remove(message_id)
        self.messages = {i: m for i, m in self.messages.items() if i < from_id}
        self.subs = {i: s for i, s in self.subs.items() if i < from_id}

    def crash(self) -> None:
        """Forget what was not durable."""
        self.take_back(self.committed_id + 1)
        self.subs = {}
        for sub_id, (settled, attempts) in self.durable[1].items():
            sub = self.ever[sub_id]
            used_us = self.now_us - self.idle_us.get(sub_id, 0)
            self.subs[sub_id] = Sub(sub_id, sub.topic, 1, sub.owner, used_us, self.now_us)
            self.subs[sub_id].settled = set(settled)
            self.subs[sub_id].attempts = dict(attempts)
        self.count_from_zero()
