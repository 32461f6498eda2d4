"""Lanes: the channels that a queue is made of.

    RoundRobin, PriorityBased    lanes: consumers share what waits in them
    FanOut*                      a ledger, which knows what is settled, and in memory one view
                                 of it for each subscriber that acknowledges

Lanes and ledgers are durable: their progress is recorded under ids made from the queue's. A
view is not: what it settles is recorded as the ledger's progress, and what is not settled when
its subscriber leaves waits in the log for the next one.
"""

from typing import TYPE_CHECKING, final

from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.channels import NEVER, Channel, Entry, open_attempts

if TYPE_CHECKING:
    from braidmq.broker.delivery.queues import Queue


@final
class Lane(Channel):
    """What waits in a queue, of one priority or of all; its consumers share it."""

    def __init__(self, queue: "Queue", priority: int) -> None:
        super().__init__(queue.topic, queue.rules)
        self.queue: Queue = queue
        self.priority: int = priority  # -1: messages of every priority
        self.last_id: int = 0  # of the newest message of that priority
        self.unsettled: int = 0  # messages that are not settled, wherever they are

    def waiting(self) -> int:
        """Return how many messages wait for a consumer."""
        return max(0, self.unsettled - self.in_flight.count) + len(self.volatile)

    def queue_of(self) -> "Queue | None":
        """Return the queue that this is a part of."""
        return self.queue

    def settle(self, entry: Entry) -> bool:
        """Note the end of an entry; say whether this is the first progress to be recorded."""
        if self.unsettled > 0:
            self.unsettled -= 1
        progress = self.progress
        if progress is None:
            self.made_progress().settle(entry.previous, entry.id)
            return True
        progress.settle(entry.previous, entry.id)
        return False

    def settle_by_letter(self, entry: Entry) -> bool:  # noqa: ARG002 - it only counts
        """Note the end of an entry whose dead letter's record settles it."""
        if self.unsettled > 0:
            self.unsettled -= 1
        return False

    def unsettle(self) -> None:
        """Take back that one entry is settled."""
        self.unsettled += 1

    def newest_id(self) -> int:
        """Return the last message that the log may hold for this lane."""
        # Messages of other priorities must not keep a lane behind: while they flow, reading for
        # it would never end.
        return self.last_id if self.priority >= 0 else self.topic.last_id

    def caught_up(self) -> None:
        """Note that nothing waits in the log any more."""
        self.position.forget_settled()
        # Only now is the number certain: what forced retention has deleted no longer counts.
        self.unsettled = len(self.ready) + len(self.in_flight.open)

    def replay_letter(self, after_id: int, message_id: int) -> None:
        """Do again what a dead letter's record says of the message that it was made of."""
        settled = self.position.settled
        assert settled is not None
        if not settled.contains(message_id):
            self.unsettled -= 1
        settled.add(after_id, message_id)

    def replay_progress(self, made: Progress) -> None:
        """Do again what a progress record says."""
        super().replay_progress(made)
        self.unsettled -= made.settled_count

    def recover(self, now_us: int) -> None:
        """Begin to work after a restart."""
        self.last_id = self.topic.last_id
        super().recover(now_us)


@final
class Ledger(Channel):
    """What is settled of a fan-out queue, by whichever subscriber acknowledged it first.

    Durable messages wait in its views, or without subscribers in the log, so it has no window
    and is never behind. Memory-only messages wait here for the first subscriber.
    """

    def __init__(self, queue: "Queue", *, keeps_nothing: bool) -> None:
        super().__init__(queue.topic, queue.rules)
        self.queue: Queue = queue
        self.keeps_nothing: bool = keeps_nothing  # a message without a subscriber is dropped
        self.unsettled: int = 0  # messages that no subscriber has settled
        self.burying: set[int] = set()  # settled by a view's dead letter that is not committed

    def begin(self, channel_id: int) -> None:
        """Take the record's id as its own: messages above it belong to the queue."""
        super().begin(channel_id)
        self.position.settled = Settled(channel_id)

    def settled(self) -> Settled:
        """Return what is settled."""
        settled = self.position.settled
        assert settled is not None
        return settled

    def waiting(self) -> int:
        """Return how many messages no subscriber has settled."""
        return self.unsettled + len(self.volatile)

    def queue_of(self) -> "Queue | None":
        """Return the queue that this is a part of."""
        return self.queue

    def settled_ranges(self, committed_id: int) -> list[tuple[int, int]]:
        """Return the ranges (after, last] of all that is settled, for a snapshot."""
        settled = self.settled()
        is_settled = self.unsettled == 0 and settled.floor >= self.topic.last_id
        if is_settled or self.keeps_nothing:
            return [(0, max(settled.floor, committed_id))]
        return settled.ranges()

    def replay_letter(self, after_id: int, message_id: int) -> None:
        """Do again what a dead letter's record says of the message that it was made of."""
        if not self.settled().contains(message_id):
            self.unsettled -= 1
            self.burying.add(message_id)
        self.settled().add(after_id, message_id)

    def replay_progress(self, made: Progress) -> None:
        """Do again what a progress record says."""
        super().replay_progress(made)
        # One subscriber may acknowledge a message that another one gave up on. When the record
        # of that dead letter came first, this record counts the message a second time.
        twice = [
            message_id
            for message_id in self.burying
            if any(after < message_id <= last for after, last in made.ranges)
        ]
        self.burying.difference_update(twice)
        self.unsettled -= made.settled_count - len(twice)

    def recover(self, now_us: int) -> None:  # noqa: ARG002 - it has no lease
        """Begin to work after a restart."""
        self.burying.clear()  # dead letters that were read from the log are committed
        position = self.position
        position.begin(self.settled().floor)
        position.known_attempts = open_attempts(position.known_attempts, self.settled())


@final
class View(Channel):
    """What one subscriber of a fan-out still has to get; it settles messages in the ledger."""

    def __init__(self, queue: "Queue", ledger: Ledger, scope: Settled) -> None:
        super().__init__(queue.topic, queue.rules)
        self.queue: Queue = queue
        self.ledger: Ledger = ledger
        self.scope: Settled = scope  # what was not this subscriber's to get when it joined
        self.unsettled: int = 0

    def waiting(self) -> int:
        """Return how many messages wait for the subscriber."""
        return max(0, self.unsettled - self.in_flight.count) + len(self.volatile)

    def queue_of(self) -> "Queue | None":
        """Return the queue that this is a part of."""
        return self.queue

    def journal(self) -> Channel:
        """Return the ledger: a view has no records of its own."""
        return self.ledger

    def settle(self, entry: Entry) -> bool:
        """Note the end of an entry; say whether this is the first progress to be recorded."""
        ledger = self.ledger
        is_first = ledger.progress is None
        progress = ledger.made_progress()
        if self._settle_in_ledger(entry):
            progress.settle(entry.previous, entry.id)
        else:
            # If the log refuses the dead letter that settled it, this end still counts.
            ledger.burying.discard(entry.id)
        return is_first

    def settle_left(self, entry: Entry) -> bool:
        """Settle what was handed out before the subscriber left; say whether that was news."""
        if self._settle_in_ledger(entry):
            self.ledger.made_progress().settle(entry.previous, entry.id)
            return True
        self.ledger.burying.discard(entry.id)
        return False

    def settle_by_letter(self, entry: Entry) -> bool:
        """Note the end of an entry whose dead letter's record settles it."""
        if not self._settle_in_ledger(entry):
            return False
        self.ledger.burying.add(entry.id)
        return True

    def _settle_in_ledger(self, entry: Entry) -> bool:
        """Count a message once, however many views have it; say whether this was the first."""
        if self.unsettled > 0:
            self.unsettled -= 1
        ledger = self.ledger
        settled = ledger.settled()
        if settled.contains(entry.id):
            return False
        settled.add(entry.previous, entry.id)
        ledger.unsettled -= 1
        return True

    def unsettle(self) -> None:
        """Take back that one entry is settled."""
        self.unsettled += 1

    def attempts_before(self, message_id: int) -> int:
        """Return how often the message was handed out, NEVER if it was not.

        The ids that were handed out to one subscriber or another are not consecutive, so unlike
        a lane a view assumes nothing of a message that it does not know.
        """
        attempts = self.position.known_attempts.pop(message_id, 0)
        return attempts if attempts > 0 else NEVER

    def caught_up(self) -> None:
        """Note that nothing waits in the log any more."""
        self.position.forget_settled()
        # Only now is the number certain: what forced retention has deleted no longer counts.
        self.unsettled = len(self.ready) + len(self.in_flight.open)
