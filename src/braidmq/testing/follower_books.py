"""The checker for followers: a second pass over the ledger.

    assert [] == check_followers(ledger)

A follower is a public key and a topic. Every message for it that is confirmed after its
subscription is delivered to it eventually. On one connection ids increase, so nothing arrives
twice or out of order; first deliveries are in order across connections, too. A follower that
reconnects, before or after a restart of the broker, may get its last deliveries again, but no
others. Nothing arrives from before the subscription, after its end, or for another key.
"""

from dataclasses import dataclass
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.ledger import DEAD_LETTER_PREFIX, Books, Event, Ledger, Violation

MISDIRECTED: Final = "misdirected"
FORGOTTEN_PROGRESS: Final = "forgotten progress"

AGAIN_WITHIN: Final = 100
"""Once this many messages have followed, the log must hold the progress: more than fit into a
window, plus those that arrive while the record is written."""

_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class FollowerSummary:
    """Followers in numbers: distinct messages delivered, and redeliveries."""

    handed: int
    again: int


def check_followers(ledger: Ledger) -> list[Violation]:
    """Return every violation that concerns followers."""
    return FollowerBooks(ledger.events).violations


def summarize_followers(ledger: Ledger) -> FollowerSummary:
    """Return the deliveries to followers, in numbers."""
    books = FollowerBooks(ledger.events)
    again = sum(story.again for story in books.stories.values())
    return FollowerSummary(sum(len(story.had) for story in books.stories.values()), again)


class Story:
    """The history of one follower."""

    def __init__(self) -> None:
        self.began_at = _NEVER  # the line at which its subscription began
        self.owed_from = _NEVER  # what is attempted from this line on is owed, once confirmed
        self.is_drained = False
        self.had: dict[str, int] = {}  # number of its last delivery, by digest
        self.count = 0
        self.again = 0
        self.first_id = 0  # the highest id of a first delivery
        self.newest_ids: dict[str, int] = {}  # by connection
        self.newest: dict[str, int] = {}  # number, by publisher


class FollowerBooks:
    """The events of followers, from front to back; `violations` is the result."""

    def __init__(self, events: list[Event]) -> None:
        self.violations: list[Violation] = []
        self.stories: dict[tuple[str, str], Story] = {}  # by key and topic
        self._books = Books(events)
        self._ids: dict[str, int] = {}  # by digest
        self._digests: dict[int, str] = {}
        for at, event in enumerate(events):
            if event.kind in kinds.OF_FOLLOWERS:
                self._read(at, event)
            elif event.kind == kinds.DELIVER and not event.topic.startswith(DEAD_LETTER_PREFIX):
                self._mean(event)  # a message has the same id on every strand
        self._find_losses()

    def _read(self, at: int, event: Event) -> None:
        kind = event.kind
        story = self.stories.setdefault((event.key, event.topic), Story())
        if kind == kinds.HANDED:
            self._hand(event, story)
        elif kind == kinds.FOLLOWING:
            if story.began_at == _NEVER:
                story.began_at = at
        elif kind == kinds.FOLLOWED:
            if story.owed_from == _NEVER:
                story.owed_from = at
        elif kind == kinds.UNFOLLOWING:
            story.owed_from = _NEVER  # from here on, what is in flight may be dropped
        elif kind == kinds.UNFOLLOWED:
            story.began_at = _NEVER
        else:
            assert kind == kinds.FOLLOWER_DRAINED, kind
            story.is_drained = True

    def _hand(self, event: Event, story: Story) -> None:
        attempt = self._books.attempts.get(event.digest)
        if attempt is None or attempt.topic != event.topic or not attempt.qos:
            self._blame(kinds.INVENTED, f"never published like this: {event}")
            return
        if attempt.key not in {"", event.key}:
            self._blame(MISDIRECTED, f"it is for {attempt.key}: {event}")
        confirmed_at = self._books.confirmed_at.get(event.digest, story.began_at)
        if story.began_at == _NEVER:
            self._blame(kinds.RESURRECTED, f"handed after the subscription's end: {event}")
        elif confirmed_at < story.began_at:
            self._blame(kinds.RESURRECTED, f"confirmed before the subscription: {event}")
        self._mean(event)
        newest_id = story.newest_ids.get(event.who, 0)
        if event.number <= newest_id:
            self._blame(kinds.OUT_OF_ORDER, f"it came after id {newest_id}: {event}")
        story.newest_ids[event.who] = event.number
        if event.digest in story.had:
            self._again(event, story)
        else:
            self._in_order(event, attempt, story)
        story.count += 1
        story.had[event.digest] = story.count

    def _again(self, event: Event, story: Story) -> None:
        story.again += 1
        since = story.count - story.had[event.digest]
        if since >= AGAIN_WITHIN:
            self._blame(FORGOTTEN_PROGRESS, f"{since} have come since it came: {event}")

    def _mean(self, event: Event) -> None:
        if not event.number:
            return  # in memory only
        number = self._ids.setdefault(event.digest, event.number)
        if number != event.number:
            self._blame(kinds.DOUBLED, f"one publish, ids {number} and {event.number}: {event}")
        found = self._digests.setdefault(event.number, event.digest)
        if found != event.digest:
            self._blame(kinds.REUSED_ID, f"id {event.number} is {found}, too: {event}")

    def _in_order(self, event: Event, attempt: Event, story: Story) -> None:
        if event.number < story.first_id:
            self._blame(kinds.OUT_OF_ORDER, f"it came after id {story.first_id}: {event}")
        story.first_id = max(story.first_id, event.number)
        if event.digest in self._books.repeats:
            return  # the first may have been lost, and the repeat stored in its place
        newest = story.newest.get(attempt.who, 0)
        if newest > attempt.number:
            self._blame(kinds.OUT_OF_ORDER, f"{attempt} came after number {newest}: {event}")
        story.newest[attempt.who] = max(newest, attempt.number)

    def _find_losses(self) -> None:
        """Check that every drained follower got all it was owed."""
        for (key, topic), story in self.stories.items():
            if not story.is_drained or story.owed_from == _NEVER:
                continue
            for found in self._books.confirmed - story.had.keys():
                attempt = self._books.attempts[found]
                if attempt.topic != topic or attempt.key not in {"", key}:
                    continue
                if self._books.attempted_at[found] > story.owed_from:
                    self._blame(kinds.LOST, f"confirmed, and not handed to {key}: {attempt}")

    def _blame(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
