"""The checker for queues: a second pass over the ledger.

    assert [] == check_queues(ledger)

Every message confirmed to a queue is taken by a consumer, or its dead letter is. A message
whose acknowledgement was confirmed does not return. First deliveries keep each publisher's
order, per priority where the queue has priorities. Attempts are counted across restarts.
Declarations, deletions and purges are permanent. Subscriptions are checked by `ledger`; nothing
here depends on the strand.
"""

from collections import defaultdict
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.ledger import Books, Event, Ledger, Violation

LOST_QUEUE: Final = "lost queue"
FORGOTTEN_ATTEMPT: Final = "forgotten attempt"
INVENTED_ATTEMPT: Final = "invented attempt"

FAN_OUT: Final = "FanOutWithAck"
BY_PRIORITY: Final = "PriorityBased"


def check_queues(ledger: Ledger, *, lossless: bool = False) -> list[Violation]:
    """Return every violation that concerns queues.

    *lossless* says that clients saw everything the broker sent: then no delivery may claim more
    attempts than the ledger has.
    """
    return QueueBooks(ledger.events, lossless=lossless).violations


class _Story:
    """The history of one message in one queue."""

    def __init__(self) -> None:
        self.pushes = 0
        self.pushed_at = -1  # first
        self.last_at = -1
        self.last_attempts = 0  # 0: unknown
        self.was_sent_for = False  # an acknowledgement or a rejection
        self.taken_at = -1
        self.taken_by = ""
        self.purged_at = -1


class QueueBooks:
    """The events of queues, from front to back; `violations` is the result."""

    def __init__(self, events: list[Event], *, lossless: bool) -> None:
        self.violations: list[Violation] = []
        self._books = Books(events)
        self._lossless = lossless
        self._modes: dict[str, str] = {}
        self._letters: dict[str, str] = {}  # by queue
        self._sources: dict[str, str] = {}  # by dead letter queue
        self._declared_at: dict[str, int] = {}
        self._owed_from: dict[str, int] = {}
        self._ends: dict[str, tuple[int, int]] = {}  # lines of request and confirmation
        self._purges: dict[str, int] = {}
        self._replayed_at: dict[str, int] = {}
        self._drained: set[str] = set()
        self._has_failed = False
        self._stories: dict[tuple[str, str], _Story] = defaultdict(_Story)
        self._newest: dict[tuple[str, str, str, int], int] = {}
        self._recorded_at = -1  # everything before this line is in the log
        self._leaving: set[tuple[str, str]] = set()
        self._given: dict[tuple[str, str], list[_Story]] = defaultdict(list)
        confirmed: dict[int, int] = {}  # line: the newest attempt that it confirms
        for found, at in self._books.confirmed_at.items():
            if found not in self._books.repeats:
                confirmed[at] = max(confirmed.get(at, -1), self._books.attempted_at[found])
        for at, event in enumerate(events):
            self._recorded_at = max(self._recorded_at, confirmed.get(at, -1))
            if event.kind in kinds.OF_QUEUES:
                self._read(at, event)
        self._find_losses()

    def _read(self, at: int, event: Event) -> None:
        kind = event.kind
        queue = event.topic
        story = self._stories[queue, event.digest]
        if kind == kinds.PUSH:
            self._push(at, event, story)
        elif kind == kinds.TAKE:
            story.was_sent_for = True
        elif kind == kinds.TAKEN:
            if story.taken_at < 0:
                story.taken_at, story.taken_by = at, event.who
        elif kind == kinds.RETURN:
            self._uncount(event)
        elif kind == kinds.FAILED:
            self._fail()
        elif kind == kinds.RESTART:
            self._restart()
        elif kind == kinds.REPLAYING:
            self._replay(at, event)
        elif kind == kinds.QUEUE_DRAINED:
            self._drained.add(queue)
        else:
            self._read_of_whole(at, event)

    def _read_of_whole(self, at: int, event: Event) -> None:
        kind = event.kind
        queue = event.topic
        if kind == kinds.DECLARED:
            self._modes[queue] = event.who
            self._letters[queue] = event.letters
            self._sources[event.letters] = queue
            if queue not in self._declared_at:
                self._declared_at[queue] = self._owed_from[queue] = at
        elif kind == kinds.UNDECLARED:
            if self._declared_at.get(queue, at) <= event.number:
                self._blame(LOST_QUEUE, f"{queue} is unknown, or not as it was declared")
        elif kind == kinds.DELETING:
            self._declared_at.pop(queue, None)
            self._owed_from.pop(queue, None)
            self._ends[queue] = (at, -1)
        elif kind == kinds.DELETED:
            self._ends[queue] = (self._ends[queue][0], at)
        elif kind == kinds.PURGING:
            self._purges[queue] = at
            self._owed_from[queue] = at
        else:
            assert kind == kinds.PURGED, kind
            self._purged(at, queue)

    # A delivery.

    def _push(self, at: int, event: Event, story: _Story) -> None:
        attempt = self._books.attempts.get(event.digest)
        source = self._sources.get(event.topic, event.topic)
        if attempt is None or attempt.topic != source or not attempt.qos:
            self._blame(kinds.INVENTED, f"never published like this: {event}")
            return
        if self._has_failed:
            story.pushes += 1
            return  # after a failure the broker's state is not in the log
        self._comes_back(event, story)
        if source == event.topic:
            self._in_order(event, attempt, story)
            if self._modes.get(source) != FAN_OUT:
                self._counts(event, story)
        story.pushes += 1
        if story.pushed_at < 0:
            story.pushed_at = at
        self._given[event.topic, event.who].append(story)
        story.last_at, story.last_attempts = at, event.attempts
        if (event.topic, event.who) in self._leaving:
            story.last_attempts = 0

    def _comes_back(self, event: Event, story: _Story) -> None:
        """Check that no settled message is delivered to a consumer that connected later."""
        source = self._sources.get(event.topic, "")
        # In a fan-out each subscriber may give up on its own, so dead letters may be equal.
        twins = self._modes.get(source) == FAN_OUT
        came_at = self._books.connected_at.get(event.who, 0)
        if story.taken_at >= 0 and not twins:
            if event.who == story.taken_by or came_at > story.taken_at:
                self._blame(kinds.RESURRECTED, f"taken at {story.taken_at}: {event}")
            return
        letter = self._stories.get((self._letters.get(event.topic, ""), event.digest))
        if letter is not None and 0 <= letter.pushed_at < came_at:
            self._blame(kinds.RESURRECTED, f"its dead letter has come already: {event}")
        if 0 <= story.purged_at < came_at:
            self._blame(kinds.RESURRECTED, f"purged at {story.purged_at}: {event}")
        asked_at, ended_at = self._ends.get(event.topic, (-1, -1))
        confirmed_at = self._books.confirmed_at.get(event.digest, asked_at)
        if confirmed_at < asked_at and 0 <= ended_at < came_at:
            self._blame(kinds.RESURRECTED, f"its queue was deleted at {ended_at}: {event}")

    def _in_order(self, event: Event, attempt: Event, story: _Story) -> None:
        queue = event.topic
        if story.pushes or event.attempts > 1 or attempt.digest in self._books.repeats:
            return
        if self._books.attempted_at[attempt.digest] < self._replayed_at.get(queue, 0):
            return
        if not self._lossless and any(name == queue for name, _ in self._leaving):
            return  # a leaving consumer may have had it, with its event still to come
        priority = attempt.priority if self._modes.get(queue) == BY_PRIORITY else 0
        lane = (queue, event.who, attempt.who, priority)
        newest = self._newest.get(lane, 0)
        if newest > attempt.number:
            self._blame(kinds.OUT_OF_ORDER, f"{attempt} came after number {newest}: {event}")
        self._newest[lane] = max(newest, attempt.number)

    def _counts(self, event: Event, story: _Story) -> None:
        if self._lossless and event.attempts > story.pushes + 1:
            self._blame(INVENTED_ATTEMPT, f"delivered {story.pushes} times before: {event}")
        if (event.topic, event.who) in self._leaving:
            return  # the next consumer's event may have come first
        if story.last_attempts and event.attempts <= story.last_attempts:
            self._blame(
                FORGOTTEN_ATTEMPT, f"the one before was number {story.last_attempts}: {event}"
            )

    # Events of many messages.

    def _fail(self) -> None:
        """Forget the attempts: what was in flight to the log may be in it or not."""
        self._has_failed = True
        for story in self._stories.values():
            story.last_attempts = 0
            story.pushed_at = -1

    def _restart(self) -> None:
        """Forget attempts that were not in the log yet: the broker may have, too."""
        self._has_failed = False
        self._leaving.clear()
        for story in self._stories.values():
            if story.last_at > self._recorded_at:
                story.last_attempts = 0

    def _uncount(self, event: Event) -> None:
        """Uncount what a leaving consumer holds; called again once it has left."""
        self._leaving ^= {(event.topic, event.who)}
        if self._modes.get(event.topic) == FAN_OUT:
            # A returning consumer may have to take older messages, too.
            for lane in [lane for lane in self._newest if lane[:2] == (event.topic, event.who)]:
                del self._newest[lane]
        for story in self._given.pop((event.topic, event.who), []):
            story.last_attempts = 0

    def _replay(self, at: int, event: Event) -> None:
        """Start over for replayed dead letters: they are new messages of their queue."""
        source = self._sources.get(event.topic, "")
        self._replayed_at[source] = at
        for (queue, _), story in self._stories.items():
            if queue == event.topic:
                story.taken_at = story.pushed_at = -1
                story.pushes = 0
            elif queue == source:
                story.last_attempts = 0
                if self._modes.get(source) == FAN_OUT:
                    story.taken_at = -1

    def _purged(self, at: int, queue: str) -> None:
        """Mark what a purge must have deleted: confirmed before it, and not in flight."""
        for found, confirmed_at in self._books.confirmed_at.items():
            if self._books.attempts[found].topic == queue:
                story = self._stories[queue, found]
                if confirmed_at < self._purges[queue] and not story.pushes:
                    story.purged_at = at

    def _find_losses(self) -> None:
        """Check that drained queues delivered or buried every confirmed message."""
        for found in self._books.confirmed:
            attempt = self._books.attempts[found]
            queue = attempt.topic
            since = self._owed_from.get(queue)
            if queue not in self._drained or since is None:
                continue
            if self._books.attempted_at[found] < since:
                continue
            letter = self._stories.get((self._letters[queue], found))
            if not self._stories[queue, found].was_sent_for and not (
                letter is not None and letter.was_sent_for
            ):
                self._blame(
                    kinds.LOST, f"confirmed, and neither taken nor a dead letter: {attempt}"
                )

    def _blame(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
