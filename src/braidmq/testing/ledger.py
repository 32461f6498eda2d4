"""The ledger: what clients were promised and what they received, and its checker.

Every rig (simulation, kills, power cuts) writes the same ledger and checks it the same way::

    ledger = Ledger()
    ledger.attempt("p1", 1, "orders", b"...")      # before the bytes are sent
    ledger.confirm("p1", 1)                        # the PONG after it arrived
    ledger.deliver(7, "c1", 9, "orders", b"...")   # subscription 7 got tag 9
    assert [] == check(ledger)

It knows nothing of sockets or disks. A publisher is a connection: it has a name of its own and
numbers its publishes 1, 2, 3 ... No two payloads are equal, so a digest identifies each.
Events of queues are checked by `queue_books`, those of followers by `follower_books`.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

DEAD_LETTER_PREFIX: Final = "dlq."
_DIGEST_CHARACTERS: Final = 32

ATTEMPT: Final = "attempt"
CONFIRM: Final = "confirm"
REFUSE: Final = "refuse"
SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
ENDED: Final = "ended"
MISSING: Final = "missing"
CONNECT: Final = "connect"
DELIVER: Final = "deliver"
ACKNOWLEDGE: Final = "acknowledge"
SETTLE: Final = "settle"
DRAINED: Final = "drained"
REPEAT: Final = "repeat"
REPEATED: Final = "repeated"
"""A publish is sent again under its dedup id, and confirmed that way."""

DECLARED: Final = "declared"
UNDECLARED: Final = "undeclared"
DELETING: Final = "deleting"
DELETED: Final = "deleted"
PURGING: Final = "purging"
PURGED: Final = "purged"
REPLAYING: Final = "replaying"
PUSH: Final = "push"
TAKE: Final = "take"
TAKEN: Final = "taken"
RETURN: Final = "return"
QUEUE_DRAINED: Final = "queue drained"
FAILED: Final = "failed"
RESTART: Final = "restart"
OF_QUEUES: Final = frozenset(
    {DECLARED, UNDECLARED, DELETING, DELETED, PURGING, PURGED, REPLAYING}
    | {PUSH, TAKE, TAKEN, RETURN, QUEUE_DRAINED, FAILED, RESTART}
)
"""Events of queues."""

FOLLOWING: Final = "following"
FOLLOWED: Final = "followed"
UNFOLLOWING: Final = "unfollowing"
UNFOLLOWED: Final = "unfollowed"
HANDED: Final = "handed"
FOLLOWER_DRAINED: Final = "follower drained"
OF_FOLLOWERS: Final = frozenset(
    {FOLLOWING, FOLLOWED, UNFOLLOWING, UNFOLLOWED, HANDED, FOLLOWER_DRAINED}
)
"""Events of followers; all other events are of subscriptions."""

LOST: Final = "lost"
LOST_SUBSCRIPTION: Final = "lost subscription"
INVENTED: Final = "invented"
DOUBLED: Final = "doubled"
RESURRECTED: Final = "resurrected"
OUT_OF_ORDER: Final = "out of order"
REUSED_ID: Final = "reused id"


def digest(payload: bytes) -> str:
    """Return the digest that identifies a payload."""
    return hashlib.sha256(payload).hexdigest()[:_DIGEST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the ledger; fields that a kind does not use are 0 or empty.

    `who` is a publisher's or a consumer's connection; `number` a publisher's sequence number or
    a delivery tag, 0 for an in-memory delivery. For a queue, `topic` is its name, `letters` its
    dead letter queue, and `attempts` the attempt that a delivery claims to be. `key` is the id
    of a follower's key: that of the event, or of the only recipient of an attempt.
    """

    kind: str
    who: str = ""
    number: int = 0
    topic: str = ""
    digest: str = ""
    subscription: int = 0
    qos: int = 1
    priority: int = 1
    attempts: int = 0
    letters: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: its kind, and a description."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The ledger in numbers; duplicates are allowed, and counted."""

    attempted: int
    confirmed: int
    refused: int
    unknown: int
    deliveries: int
    duplicates: int
    settled: int
    dead_letters: int


class Ledger:
    """Events in the order in which clients saw them, in memory and in a JSON lines file."""

    def __init__(self, path: Path | None = None, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self._file = None if path is None else path.open("a", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Ledger":
        """Return the ledger in a file."""
        lines = path.read_text(encoding="utf-8").splitlines()
        return cls(events=[Event(**json.loads(line)) for line in lines])

    def fork(self) -> "Ledger":
        """Return an independent copy, in memory."""
        return Ledger(events=self.events)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def attempt(
        self,
        publisher: str,
        sequence: int,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        priority: int = 1,
        key: str = "",
    ) -> None:
        """Record a publish that is about to be sent."""
        self.record(
            Event(
                ATTEMPT,
                publisher,
                sequence,
                topic,
                digest(payload),
                qos=qos,
                priority=priority,
                key=key,
            )
        )

    def confirm(self, publisher: str, sequence: int) -> None:
        """Record that a publisher's attempts up to *sequence* are durable or were refused."""
        self.record(Event(CONFIRM, publisher, sequence))

    def refuse(self, publisher: str, sequence: int) -> None:
        """Record that an attempt was refused: its outcome is unknown."""
        self.record(Event(REFUSE, publisher, sequence))

    def subscribe(self, subscription: int, topic: str, *, ordered: bool = True) -> None:
        """Record a confirmed subscription; not *ordered* if several consumers compete."""
        who = "" if ordered else "competing"
        self.record(Event(SUBSCRIBE, who, subscription, topic, subscription=subscription))

    def unsubscribe(self, subscription: int) -> None:
        """Record that an unsubscribe is about to be sent."""
        self.record(Event(UNSUBSCRIBE, subscription=subscription))

    def ended(self, subscription: int) -> None:
        """Record that an unsubscribe was confirmed."""
        self.record(Event(ENDED, subscription=subscription))

    def missing(self, subscription: int) -> None:
        """Record that the broker does not know a subscription."""
        self.record(Event(MISSING, subscription=subscription))

    def connect(self, consumer: str) -> None:
        """Record a consumer's new connection."""
        self.record(Event(CONNECT, consumer))

    def deliver(
        self,
        subscription: int,
        consumer: str,
        tag: int,
        topic: str,
        payload: bytes,
    ) -> None:
        """Record a delivery; *tag* is 0 for an in-memory one."""
        self.record(
            Event(DELIVER, consumer, tag, topic, digest(payload), subscription, int(tag > 0))
        )

    def acknowledge(self, subscription: int, tag: int) -> None:
        """Record an acknowledgement that is about to be sent."""
        self.record(Event(ACKNOWLEDGE, number=tag, subscription=subscription))

    def settle(self, subscription: int, consumer: str, tag: int) -> None:
        """Record that an acknowledgement was confirmed."""
        self.record(Event(SETTLE, consumer, tag, subscription=subscription))

    def drained(self, subscription: int) -> None:
        """Record that a subscription has nothing left to deliver."""
        self.record(Event(DRAINED, subscription=subscription))

    def repeat(self, payload: bytes) -> None:
        """Record that an attempt is about to be sent again, under its dedup id."""
        self.record(Event(REPEAT, digest=digest(payload)))

    def repeated(self, payload: bytes) -> None:
        """Record that the repeat of an attempt was confirmed."""
        self.record(Event(REPEATED, digest=digest(payload)))

    # Queues.

    def declared(self, queue: str, mode: str, letters: str) -> None:
        """Record a confirmed declaration."""
        self.record(Event(DECLARED, mode, topic=queue, letters=letters))

    def undeclared(self, queue: str, asked_at: int) -> None:
        """Record that the broker did not know a queue; *asked_at* lines came before."""
        self.record(Event(UNDECLARED, number=asked_at, topic=queue))

    def note(self, kind: str, queue: str = "") -> None:
        """Record an event of a whole queue: deletion, purge, replay, or that it is empty.

        A failure of the log and a restart concern all queues.
        """
        assert kind in OF_QUEUES
        self.record(Event(kind, topic=queue))

    def push(self, queue: str, consumer: str, payload: bytes, attempts: int) -> None:
        """Record a delivery from a queue."""
        self.record(Event(PUSH, consumer, 0, queue, digest(payload), attempts=attempts))

    def take(self, queue: str, consumer: str, payload: bytes) -> None:
        """Record an acknowledgement or rejection that is about to be sent."""
        self.record(Event(TAKE, consumer, 0, queue, digest(payload)))

    def taken(self, queue: str, consumer: str, payload: bytes) -> None:
        """Record an acknowledgement confirmed before its message was due for redelivery."""
        self.record(Event(TAKEN, consumer, 0, queue, digest(payload)))

    def give_back(self, queue: str, consumer: str) -> None:
        """Record that a consumer leaves and returns what it holds: once before, once after."""
        self.record(Event(RETURN, consumer, 0, queue))

    # Followers.

    def follower(self, kind: str, key: str, topic: str) -> None:
        """Record a request for a key and a topic, its confirmation, or that it is drained."""
        assert kind in OF_FOLLOWERS
        self.record(Event(kind, topic=topic, key=key))

    def hand(self, key: str, consumer: str, number: int, topic: str, payload: bytes) -> None:
        """Record a delivery to a follower; *number* is the message's id."""
        self.record(Event(HANDED, consumer, number, topic, digest(payload), key=key))

    def record(self, event: Event) -> None:
        """Append an event."""
        self.events.append(event)
        if self._file is not None:
            self._file.write(json.dumps(asdict(event)) + "\n")
            self._file.flush()  # the process may be killed at any line


def check(ledger: Ledger) -> list[Violation]:
    """Return every violation that the ledger shows; none for a correct broker.

    On drained subscriptions no confirmed message is lost. Every delivery is of a message that
    was published exactly so, under one id only. No message returns after its acknowledgement
    was confirmed. First deliveries keep each publisher's order. No id is used for two things.
    Operations that were not confirmed may have happened or not, but never in part.
    """
    books = Books(ledger.events)
    return books.violations


def summarize(ledger: Ledger) -> Summary:
    """Return the ledger in numbers."""
    books = Books(ledger.events)
    attempted = sum(event.qos for event in books.attempts.values())
    return Summary(
        attempted=attempted,
        confirmed=len(books.confirmed),
        refused=len(books.refused),
        unknown=attempted - len(books.confirmed) - len(books.refused),
        deliveries=books.deliveries,
        duplicates=books.duplicates,
        settled=len(books.settled),
        dead_letters=sum(len(tags) for tags in books.dead_tags.values()),
    )


class Books:
    """The ledger, read once from front to back; `violations` is the result."""

    def __init__(self, events: list[Event]) -> None:
        self.violations: list[Violation] = []
        self.attempts: dict[str, Event] = {}
        self.confirmed: set[str] = set()
        self.attempted_at: dict[str, int] = {}
        self.confirmed_at: dict[str, int] = {}
        self.connected_at: dict[str, int] = {}
        self.repeats: set[str] = set()
        self.refused: set[tuple[str, int]] = set()
        self.deliveries = 0
        self.duplicates = 0
        self.settled: dict[tuple[int, int], tuple[int, str]] = {}
        self.dead_tags: dict[str, set[int]] = defaultdict(set)
        self._unconfirmed: dict[str, list[Event]] = defaultdict(list)
        self._subscriptions: dict[int, tuple[int, Event]] = {}
        self._leaving: set[int] = set()
        self._ended: set[int] = set()
        self._drained: set[int] = set()
        self._meaning: dict[int, str] = {}
        self._tags: dict[tuple[str, str], int] = {}
        self._seen: Counter[tuple[int, int]] = Counter()
        self._newest: dict[tuple[int, str, int], int] = {}
        self._acknowledged: set[tuple[int, str]] = set()
        self._digests: dict[tuple[int, int], str] = {}
        apart = OF_QUEUES | OF_FOLLOWERS
        for at, event in enumerate(events):
            if event.kind not in apart:
                self._read(at, event)
        self._find_losses()
        self._find_dead_letters_of_settled()

    def _read(self, at: int, event: Event) -> None:
        kind = event.kind
        if kind == DELIVER:
            self._deliver(at, event)
        elif kind == ATTEMPT:
            self._attempt(at, event)
        elif kind == CONFIRM:
            self._confirm(at, event)
        elif kind == REPEATED:
            self._note_confirmed(at, event.digest)
        elif kind == REPEAT:
            self.repeats.add(event.digest)
        elif kind == REFUSE:
            self.refused.add((event.who, event.number))
        elif kind == SUBSCRIBE:
            self._subscriptions[event.subscription] = (at, event)
            self._mean(event.subscription, f"subscription to {event.topic}")
        elif kind == UNSUBSCRIBE:
            self._leaving.add(event.subscription)
        elif kind == ENDED:
            self._ended.add(event.subscription)
        elif kind == MISSING:
            if event.subscription not in self._leaving:
                self._blame(LOST_SUBSCRIPTION, f"subscription {event.subscription} is unknown")
        elif kind == CONNECT:
            self.connected_at[event.who] = at
        elif kind == ACKNOWLEDGE:
            found = self._digests.get((event.subscription, event.number))
            assert found is not None, f"acknowledgement without a delivery: {event}"
            self._acknowledged.add((event.subscription, found))
        elif kind == SETTLE:
            self.settled.setdefault((event.subscription, event.number), (at, event.who))
        else:
            assert kind == DRAINED, kind
            self._drained.add(event.subscription)

    def _attempt(self, at: int, event: Event) -> None:
        assert event.digest not in self.attempts, f"two attempts with one payload: {event}"
        self.attempts[event.digest] = event
        self.attempted_at[event.digest] = at
        if event.qos:
            self._unconfirmed[event.who].append(event)

    def _confirm(self, at: int, event: Event) -> None:
        waiting = self._unconfirmed[event.who]
        while waiting and waiting[0].number <= event.number:
            attempt = waiting.pop(0)
            if (attempt.who, attempt.number) not in self.refused:
                self._note_confirmed(at, attempt.digest)

    def _note_confirmed(self, at: int, found: str) -> None:
        self.confirmed.add(found)
        self.confirmed_at.setdefault(found, at)

    def _deliver(self, at: int, event: Event) -> None:
        self.deliveries += 1
        attempt = self.attempts.get(event.digest)
        is_dead_letter = event.topic.startswith(DEAD_LETTER_PREFIX)
        sent_to = event.topic.removeprefix(DEAD_LETTER_PREFIX)
        if attempt is None or attempt.topic != sent_to or (event.number and not attempt.qos):
            self._blame(INVENTED, f"never published like this: {event}")
            return
        if event.subscription in self._ended:
            self._blame(RESURRECTED, f"delivered after the subscription's end: {event}")
        if is_dead_letter:
            self.dead_tags[event.digest].add(event.number)
        elif event.number:
            self._in_order(event, attempt)
            known = self._tags.setdefault((event.topic, event.digest), event.number)
            if known != event.number:
                self._blame(DOUBLED, f"one publish, ids {known} and {event.number}: {attempt}")
        if event.number:
            self._mean(event.number, f"message {event.digest} on {event.topic}")
            self._comes_back(at, event)

    def _in_order(self, event: Event, attempt: Event) -> None:
        key = (event.subscription, event.number)
        _, subscription = self._subscriptions.get(event.subscription, (0, None))
        if self._seen[key] or subscription is None or subscription.who:
            return
        if event.digest in self.repeats:
            return  # the first may have been lost, and the repeat stored in its place
        lane = (event.subscription, attempt.who, attempt.qos)
        newest = self._newest.get(lane, 0)
        if newest > attempt.number:
            self._blame(OUT_OF_ORDER, f"{attempt} came after number {newest}: {event}")
        self._newest[lane] = max(newest, attempt.number)

    def _comes_back(self, at: int, event: Event) -> None:
        key = (event.subscription, event.number)
        self.duplicates += self._seen[key] > 0
        self._seen[key] += 1
        self._digests[key] = event.digest
        if key not in self.settled:
            return
        settled_at, by = self.settled[key]
        # Events on two connections are only ordered if one was opened after the other's answer.
        if event.who == by or self.connected_at.get(event.who, 0) > settled_at:
            self._blame(
                RESURRECTED, f"settled at {settled_at}, delivered again at {at}: {event}"
            )

    def _mean(self, number: int, meaning: str) -> None:
        known = self._meaning.setdefault(number, meaning)
        if known != meaning:
            self._blame(REUSED_ID, f"id {number} is {known}, and {meaning}")

    def _find_losses(self) -> None:
        """Check that drained subscriptions delivered or buried every confirmed message."""
        owed_letters: Counter[str] = Counter()
        for number, (since, subscription) in self._subscriptions.items():
            if number not in self._drained or number in self._leaving:
                continue
            if subscription.topic.startswith(DEAD_LETTER_PREFIX):
                continue
            for found in self.confirmed:
                attempt = self.attempts[found]
                if attempt.topic != subscription.topic or self.attempted_at[found] < since:
                    continue
                if (number, found) not in self._acknowledged:
                    owed_letters[found] += 1
        for found, count in owed_letters.items():
            if len(self.dead_tags.get(found, ())) < count:
                attempt = self.attempts[found]
                self._blame(LOST, f"confirmed, and neither taken nor a dead letter: {attempt}")

    def _find_dead_letters_of_settled(self) -> None:
        """Check that no subscription dead-lettered a message that it had settled."""
        holders: Counter[str] = Counter(
            subscription.topic for _, subscription in self._subscriptions.values()
        )
        settled: Counter[str] = Counter()
        for key in self.settled:
            found = self._digests.get(key, "")
            _, subscription = self._subscriptions.get(key[0], (0, None))
            if subscription is not None and found in self.attempts:
                settled[found] += subscription.topic == self.attempts[found].topic
        for found, tags in self.dead_tags.items():
            attempt = self.attempts[found]
            if len(tags) > holders[attempt.topic] - settled[found]:
                self._blame(RESURRECTED, f"{len(tags)} dead letters, though settled: {attempt}")

    def _blame(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
