"""The queue rules as sets and dicts, which the model test checks the broker against.

It knows nothing of lane positions, cursors, heaps or windows: a message waits until it is
settled. Competing consumers share one `View`; each subscriber of a fan-out has its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from braidmq.broker.delivery.queue import QueueConsumer
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    Policy,
)
from braidmq.broker.settings import Settings

Cause = tuple[str, int]
"""How a message ended, and which dead letter or which subscriber's view ended it."""


@dataclass
class Known:
    """A message as its publisher knows it."""

    payload: bytes
    priority: int
    expires_us: int


@dataclass
class View:
    """The messages that some consumers share: what is open, and who holds what."""

    number: int
    open: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)  # every message that was ever open here
    attempts: dict[int, int] = field(default_factory=dict)  # of delivered messages
    held: dict[int, tuple[QueueConsumer, int]] = field(default_factory=dict)  # holder, until
    aside: dict[int, int] = field(default_factory=dict)  # with no consumer, until
    is_exact: bool = True  # the broker can count it without reading it

    def waiting(self) -> int:
        return len(self.open) - len(self.held)

    def held_by(self, consumer: QueueConsumer) -> list[int]:
        return [i for i, (holder, _) in self.held.items() if holder is consumer]


@dataclass
class Checkpoint:
    """Everything that the broker could recover if it restarted at one moment."""

    number: int
    ends: dict[int, set[Cause]]
    attempts: dict[int, int]


class QueueOracle:
    """What must be true of one queue."""

    def __init__(self, policy: Policy, limits: Settings, now_us: int) -> None:
        self.policy = policy
        self.limits = limits
        self.now_us = now_us
        self.queue_id = 0
        self.committed_id = 0
        self.messages: dict[int, Known] = {}  # accepted and durable
        self.pending: list[int] = []  # of those, the uncommitted
        self.ends: dict[int, set[Cause]] = {}
        self.letters: dict[int, tuple[View, int]] = {}  # pending dead letters by id
        self.peak: dict[int, int] = {}  # the most attempts in any view
        self.volatile: dict[int, list[bytes]] = {lane: [] for lane in (3, 2, 1, 0)}
        self.views: dict[QueueConsumer, View] = {}
        self.numbers = 0
        self.shared = self.new_view()
        self.durable = Checkpoint(0, {}, {})
        self.checkpoints = 0

    @property
    def is_fan_out(self) -> bool:
        return self.policy.mode == FAN_OUT_WITH_ACK

    def new_view(self) -> View:
        self.numbers += 1
        return View(self.numbers)

    def view_of(self, consumer: QueueConsumer) -> View:
        return self.views[consumer] if self.is_fan_out else self.shared

    def all_views(self) -> list[View]:
        return list(self.views.values()) if self.is_fan_out else [self.shared]

    def checkpoint(self) -> Checkpoint:
        self.checkpoints += 1
        ends = {i: set(causes) for i, causes in self.ends.items() if causes}
        return Checkpoint(self.checkpoints, ends, dict(self.shared.attempts))

    # State.

    def unsettled(self) -> set[int]:
        """Return the committed messages that have not ended yet."""
        return {
            i
            for i in self.messages
            if self.queue_id < i <= self.committed_id and not self.ends.get(i)
        }

    def waiting(self) -> int:
        if self.is_fan_out and self.views:
            return max(view.waiting() for view in self.views.values())
        if not self.is_fan_out:
            return self.shared.waiting() + sum(map(len, self.volatile.values()))
        waiting = len(self.unsettled())
        if self.policy.max_size and self.policy.overflow == DROP_OLDEST:
            return min(waiting, self.policy.max_size)
        return waiting

    def in_flight(self) -> int:
        return sum(len(view.held) for view in self.all_views())

    def is_expired(self, message_id: int) -> bool:
        return 0 < self.messages[message_id].expires_us <= self.now_us

    def is_spent(self, view: View, message_id: int) -> bool:
        return view.attempts.get(message_id, 0) >= self.policy.max_attempts

    def is_isolated(self, view: View, consumer: QueueConsumer) -> bool:
        return any(self.is_spent(view, i) for i in view.held_by(consumer))

    def lane_of(self, message_id: int) -> int:
        return self.lane_for(self.messages[message_id].priority)

    def lane_for(self, priority: int) -> int:
        return priority if self.policy.mode == PRIORITY_BASED else 0

    # Rules.

    def next_for(self, consumer: QueueConsumer, loaded: dict[int, int] | None) -> int:
        """Return what the consumer must get next of what is *loaded* (None: all), or 0."""
        view = self.view_of(consumer)
        if self.is_isolated(view, consumer):
            return 0
        is_idle = not view.held_by(consumer)
        for lane in (3, 2, 1, 0):
            free = [i for i in self.free(view) if self.lane_of(i) == lane]
            at_hand = [i for i in free if loaded is None or i <= loaded[lane]]
            last = [i for i in at_hand if self.is_last_chance(view, i)]
            back = [i for i in at_hand if i in view.attempts and i not in last]
            fresh = [i for i in free if i not in view.attempts]
            if last and is_idle:
                return last[0]
            if back:
                return back[0]
            if last:
                return 0
            if fresh:
                return fresh[0]
            if free:
                return 0  # lower priorities wait until these are loaded
        return 0

    def free(self, view: View) -> list[int]:
        """Return the deliverable messages that no consumer holds, oldest first."""
        return [
            i
            for i in sorted(view.open)
            if i not in view.held
            and i not in view.aside
            and not self.is_spent(view, i)
            and not self.is_expired(i)
        ]

    def is_last_chance(self, view: View, message_id: int) -> bool:
        return 0 < view.attempts.get(message_id, 0) == self.policy.max_attempts - 1

    def doomed(self, view: View, loaded: dict[int, int]) -> list[int]:
        """Return the messages that are out of attempts and that no consumer holds."""
        return [
            i
            for i in sorted(view.open)
            if i not in view.held
            and self.is_spent(view, i)
            and i not in view.aside
            and i <= loaded[self.lane_of(i)]
        ]

    # Events.

    def commit(self, message_id: int) -> None:
        self.pending.remove(message_id)
        if self.policy.mode == FAN_OUT_WITHOUT_ACK:
            self.ends[message_id] = {("broadcast", 0)}
            return
        for view in self.all_views():
            view.open.add(message_id)
            view.ever.add(message_id)

    def deliver(self, consumer: QueueConsumer, message_id: int) -> None:
        view = self.view_of(consumer)
        tried = view.attempts[message_id] = view.attempts.get(message_id, 0) + 1
        self.peak[message_id] = max(self.peak.get(message_id, 0), tried)
        limits = self.limits
        backoff_us = min(
            limits.queues.backoff_us * 2 ** (tried - 1), limits.queues.backoff_max_us
        )
        due_us = self.now_us + limits.queues.ack_timeout_us + backoff_us
        view.held[message_id] = (consumer, due_us)

    def end(self, view: View, message_id: int, cause: str, number: int = 0) -> None:
        view.open.discard(message_id)
        view.held.pop(message_id, None)
        view.aside.pop(message_id, None)
        self.ends.setdefault(message_id, set()).add((cause, number or view.number))

    def give_back(self, view: View, ids: Iterable[int]) -> None:
        for message_id in list(ids):
            view.held.pop(message_id, None)
            view.aside.pop(message_id, None)

    def timers_ended(self) -> None:
        for view in self.all_views():
            self.give_back(view, [i for i, (_, due) in view.held.items() if due <= self.now_us])
            self.give_back(view, [i for i, due in view.aside.items() if due <= self.now_us])

    def join(self, consumer: QueueConsumer) -> None:
        """Give a new subscriber the messages not acknowledged and in no other view."""
        if not self.is_fan_out:
            self.views[consumer] = self.shared
            return
        view = self.new_view()
        view.open = set(self.unsettled())
        for other in self.views.values():
            view.open -= other.ever
        view.ever = set(view.open)
        view.is_exact = not self.views
        self.views[consumer] = view

    def leave(self, consumer: QueueConsumer, *, counted: bool) -> None:
        view = self.view_of(consumer)
        held = view.held_by(consumer)
        if not counted:
            for message_id in held:
                view.attempts[message_id] -= 1
        self.give_back(view, held)
        del self.views[consumer]

    def purge(self) -> None:
        held: set[int] = set()
        for view in self.all_views():
            held |= view.held.keys()
            view.open &= view.held.keys()
            view.aside = {}
        for message_id in self.unsettled() - held:
            self.ends.setdefault(message_id, set()).add(("purge", 0))
        self.volatile = {lane: [] for lane in (3, 2, 1, 0)}

    def volatile_lane(self, *, highest: bool) -> int:
        """Return the highest or lowest priority with a memory-only message, or -1."""
        lanes = [lane for lane, waiting in self.volatile.items() if waiting]
        return (max(lanes) if highest else min(lanes)) if lanes else -1

    def oldest_waiting(self, view: View) -> int:
        """Return what is dropped first on overflow: the oldest of the lowest priority."""
        return min(view.open - view.held.keys(), key=lambda i: (self.lane_of(i), i))

    def take_back(self, from_id: int) -> None:
        """Undo what the log refused or a crash lost."""
        for letter_id, (view, message_id) in list(self.letters.items()):
            if letter_id >= from_id:
                del self.letters[letter_id]
                self.ends[message_id].discard(("letter", letter_id))
                view.open.add(message_id)
        self.pending = [i for i in self.pending if i < from_id]
        self.messages = {i: m for i, m in self.messages.items() if i < from_id}

    def crash(self) -> None:
        """Forget what was not durable."""
        self.take_back(self.committed_id + 1)
        self.letters = {}
        self.ends = {i: set(causes) for i, causes in self.durable.ends.items()}
        if self.policy.mode == FAN_OUT_WITHOUT_ACK:
            self.ends = {i: {("broadcast", 0)} for i in self.messages}
        self.views = {}
        self.volatile = {lane: [] for lane in (3, 2, 1, 0)}
        self.shared = self.new_view()
        if not self.is_fan_out:
            self.shared.open = self.unsettled()
            self.shared.attempts = dict(self.durable.attempts)
