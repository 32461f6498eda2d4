"""The judgement on followers: a ledger read once more, for what it says about them.

    assert [] == check_followers(ledger)

A follower is a public key and a topic. What is confirmed after its subscription was, and is for
it, is handed to it, sooner or later, whoever published it. On one connection ids rise, so that
nothing comes twice or out of order; what comes for the first time comes in order in any case.
Whoever returns, to the same life of the broker or the next, may get what was handed last once
more, and no more than that. Nothing comes from before the subscription, after its end, or for
another key.
"""

from dataclasses import dataclass
from typing import Final

from braidmq.testing import ledger as kinds
from braidmq.testing.ledger import DEAD_LETTER_PREFIX, Books, Event, Ledger, Violation

MISDIRECTED: Final = "misdirected"
FORGOTTEN_PROGRESS: Final = "forgotten progress"

AGAIN_WITHIN: Final = 100
"""When so many have come after it, that a message was handed over is on record: more than fit
into a window, and than come while the record is written."""

_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class FollowerSummary:
    """Followers in numbers: different messages that came, and how many came again."""

    handed: int
    again: int


def check_followers(ledger: Ledger) -> list[Violation]:
    """Return every promise about followers that the ledger shows broken."""
    return FollowerBooks(ledger.events).violations


def summarize_followers(ledger: Ledger) -> FollowerSummary:
    """Return what was handed to followers, in numbers."""
    books = FollowerBooks(ledger.events)
    again = sum(story.again for story in books.stories.values())
    return FollowerSummary(sum(len(story.had) for story in books.stories.values()), again)


class Story:
    """What became of one follower."""

    def __init__(self) -> None:
        self.began_at = _NEVER  # before this line there was none
        self.owed_from = _NEVER  # what is attempted from here on is its, once confirmed
        self.is_drained = False
        self.had: dict[str, int] = {}  # the handing over, counted, that was the last one
        self.count = 0
        self.again = 0
        self.first_id = 0  # the highest that came for the first time
        self.newest_ids: dict[str, int] = {}  # by connection
        self.newest: dict[str, int] = {}  # number, by publisher


class FollowerBooks:
    """The lines about followers, from front to back; `violations` is the verdict."""

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
                self._mean(event)  # one message has one id on every strand
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
            story.owed_from = _NEVER  # what is on its way may be dropped from here on
        elif kind == kinds.UNFOLLOWED:
            story.began_at = _NEVER
        else:
            assert kind == kinds.FOLLOWER_DRAINED, kind
            story.is_drained = True

    def _hand(self, event: Event, story: Story) -> None:
        attempt = self._books.attempts.get(event.digest)
        if attempt is None or attempt.topic != event.topic or not attempt.qos:
            self._blame(kinds.INVENTED, f"nobody published this, so, there: {event}")
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
            return  # it lives in memory only
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
            return  # the first may have been lost, and the repeat taken for it
        newest = story.newest.get(attempt.who, 0)
        if newest > attempt.number:
            self._blame(kinds.OUT_OF_ORDER, f"{attempt} came after number {newest}: {event}")
        story.newest[attempt.who] = max(newest, attempt.number)

    def _find_losses(self) -> None:
        """Each drained follower was handed all that it was owed."""
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
