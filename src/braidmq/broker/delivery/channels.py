"""Channels: one topic's messages on their way to consumers, each of them an entry.

    log ...... | cursor ......... ready ......... open (handed out) ......... settled
               the backlog        the window      in flight, or returned

A durable message enters the window when it is committed, while the window has room. A channel
without room is *behind*: it keeps only its position in the log, and reads forward from there
when its consumers have made room. Messages of QoS 0 wait in memory beside the window.

There are four kinds, and each is made in one place only:

    Subscription    a Blip subscription (`subscriptions`)
    Lane            the messages of a queue, or those of one priority (`queue`)
    Ledger          what is settled of a fan-out queue; no message waits in it (`queue`)
    View            what one subscriber of a fan-out has yet to receive, in memory (`queue`)

The methods of `Channel` that a kind overrides are the whole difference between the kinds.
"""

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, final

from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.policy import Rules
from braidmq.broker.quotas import Account, Accounts
from braidmq.broker.topics import Message, Topic

if TYPE_CHECKING:
    from braidmq.broker.delivery.followers import Follower
    from braidmq.broker.delivery.queue import Queue, QueueConsumer
    from braidmq.broker.delivery.subscriptions import Consumer

READY: Final = 0
IN_FLIGHT: Final = 1
RETURNED: Final = 2
SETTLED: Final = 3
LEFT: Final = 4
"""In a fan-out: its subscriber has unsubscribed, and may still acknowledge it."""

NEVER: Final = -1
"""In place of a number of attempts: the message was not handed out before."""

_NO_MESSAGE: Final = Message(Topic(""), 0, b"")


@final
class Delivery:
    """One message on its way to one peer; `entry` is None when no ACK is expected."""

    def __init__(
        self, message: Message, correlation_id: int, qos: int, entry: "Entry | None" = None
    ) -> None:
        self.message: Message = message
        self.correlation_id: int = correlation_id
        self.qos: int = qos
        self.entry: Entry | None = entry


class Peer:
    """A connection as the broker sees it: its principal, its deliveries, and its room."""

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.deliveries: list[Delivery] = []
        self.room_bytes: int = 0
        self.delivered: int = 0  # messages, until the connection has counted them
        self.consumers: dict[int, Consumer] = {}  # by the id of the subscription
        self.queue_consumers: dict[int, QueueConsumer] = {}  # by the id of the queue
        self.touched: bool = False  # is in the broker's list of peers to wake
        self.following: dict[str, Follower] = {}  # by topic
        self.laggards: list[Follower] = []  # followers that are behind; they take turns

    def note_received(self) -> None:
        """Bring the followers' `unreceived` up to date, where the transport can tell."""


class Holder:
    """A consumer of any kind, as the deliveries that it holds see it."""

    def __init__(self, peer: Peer) -> None:
        self.peer: Peer = peer
        self.held: int = 0  # deliveries in flight to this consumer
        self.isolated: bool = False  # holds a message's last allowed delivery, and nothing else


@final
class Entry:
    """A durable message in one channel.

    While it has a deadline, `row_us` and `place` say where in the schedule (`outgoing`); any
    other row or place that lists it is stale.
    """

    # Defaults are class attributes: __init__ runs for every message and should do little.
    due_us: int = 0  # 0: no deadline
    row_us: int = 0
    place: int = 0
    attempts: int = 0
    state: int = READY
    is_last_chance: bool = False  # while no consumer holds it: its next delivery is its last
    consumer: Holder | None = None

    def __init__(self, channel: "Channel", message: Message, previous: int) -> None:
        self.channel: Channel = channel
        self.message: Message = message
        self.id: int = message.id
        self.previous: int = previous  # the message before it in this channel

    def finish(self) -> None:
        """Mark it settled and release the message, wherever this entry is still listed."""
        # Heaps, rows of the schedule and a connection's table of tags may list it for a long
        # time, and must not keep its message in memory.
        self.state = SETTLED
        self.due_us = 0
        self.consumer = None
        self.message = _NO_MESSAGE


@final
class InFlight:
    """The messages of a channel that were handed out and are not settled, by tag.

    Each is either held by a consumer or *returned*: its timer ended or its consumer left, and
    it waits to be handed out again, oldest first. A message whose next delivery is its last
    allowed one waits apart, for a consumer that holds nothing else: if it makes that consumer
    crash, no other message loses an attempt.
    """

    def __init__(self) -> None:
        self.count: int = 0  # entries that consumers hold
        self.bytes: int = 0  # of those messages
        self.open: dict[int, Entry] = {}
        self.returned: list[int] = []  # heaps of tags; some may be stale
        self.last_chances: list[int] = []
        self._unheld: list[int] = []  # newest first; what `oldest_unheld` last found
        self._is_unheld_known: bool = False

    def __len__(self) -> int:
        return len(self.open)

    def all(self) -> list[Entry]:
        """Return every open entry."""
        return list(self.open.values())

    def add(self, entry: Entry) -> None:
        """Count an entry that a consumer holds now."""
        self.open[entry.id] = entry
        self.count += 1
        self.bytes += len(entry.message.body)

    def give_back(self, entry: Entry, *, last_chance: bool) -> None:
        """Put an entry that no consumer holds back in line for its next delivery."""
        self.keep(entry)
        entry.is_last_chance = last_chance
        heapq.heappush(self.last_chances if last_chance else self.returned, entry.id)

    def keep(self, entry: Entry) -> None:
        """Open the tag of an entry that no consumer holds, and that is not in line."""
        self.open[entry.id] = entry
        self._is_unheld_known = False

    def uncount(self, entry: Entry) -> None:
        """Note that a consumer no longer holds an entry."""
        self._is_unheld_known = False
        self.count -= 1
        self.bytes -= len(entry.message.body)

    def remove(self, tag: int) -> None:
        """Close a tag; the heaps drop it when it reaches their top."""
        del self.open[tag]

    def last_chance(self) -> Entry | None:
        """Return the oldest entry that waits for a consumer that holds nothing else."""
        return self._live_head(self.last_chances, last_chance=True)

    def oldest_unheld(self) -> Entry | None:
        """Return the oldest entry that no consumer holds, delayed ones included."""
        if len(self.open) <= self.count:
            return None
        # The heaps do not help: they hold stale tags, and delayed entries are not in them. Who
        # drops one entry often drops thousands, so look for all of them at once.
        unheld = self._unheld
        if not self._is_unheld_known:
            unheld = [entry.id for entry in self.open.values() if entry.consumer is None]
            unheld.sort(reverse=True)
            self._unheld = unheld
            self._is_unheld_known = True
        while unheld:
            entry = self.open.get(unheld[-1])
            if entry is not None and entry.consumer is None:
                return entry
            unheld.pop()
        return None

    def take_returned(self, *, consumer_is_idle: bool) -> Entry | None:
        """Take the oldest entry that this consumer may have."""
        if consumer_is_idle:
            # First: while one waits, the channel hands out no new durable message.
            entry = self._live_head(self.last_chances, last_chance=True)
            if entry is not None:
                heapq.heappop(self.last_chances)
                return entry
        entry = self._live_head(self.returned, last_chance=False)
        if entry is not None:
            heapq.heappop(self.returned)
        return entry

    def _live_head(self, heap: list[int], *, last_chance: bool) -> Entry | None:
        while heap:
            entry = self.open.get(heap[0])
            # It may be stale: a consumer holds the entry now, a timer delays it, or it is
            # listed in the other heap.
            if (
                entry is not None
                and entry.consumer is None
                and entry.due_us == 0
                and entry.is_last_chance == last_chance
            ):
                return entry
            heapq.heappop(heap)
        return None


# What positions share, since most have nothing to keep there; `Position` replaces them first.
_NO_PEERS: Final[list[Peer]] = []
_NO_ATTEMPTS: Final[dict[int, int]] = {}


@final
class Position:
    """Where a channel is in the log, and what it knows of the messages after that point."""

    # One for each subscription, four for a queue with priorities: they add up.
    __slots__ = (
        "aside",
        "behind",
        "cursor",
        "handed_id",
        "heard",
        "known_attempts",
        "reading",
        "settled",
        "tail",
        "waiters",
        "window",
    )

    def __init__(self) -> None:
        self.cursor: int = 0  # everything up to it was taken in, or is settled
        self.tail: int = 0  # the last message that was taken in
        self.behind: bool = False  # the log holds more than was taken in
        self.reading: bool = False  # a piece of the backlog was requested and is not here yet
        self.waiters: list[Peer] = _NO_PEERS  # whose answers need that piece; see `wait`
        self.window: int = 0  # messages that may wait in memory now, up to its rules' window
        self.aside: bool = False  # of a subscription: publishes pass it by (`audience`)
        self.heard: int = 0  # while aside: the first number in its ring that is for it
        self.handed_id: int = 0  # the newest message ever handed out
        # What is known of messages that are not taken in yet: from before a restart, or because
        # they were replayed ahead of the others.
        self.settled: Settled | None = None
        self.known_attempts: dict[int, int] = _NO_ATTEMPTS  # added to by `know_attempts`

    def begin(self, first_id: int) -> None:
        """Start after *first_id*: messages above it belong to the channel."""
        self.cursor = first_id
        self.tail = first_id

    def skip_to(self, last_id: int) -> None:
        """Skip the backlog up to *last_id*."""
        last_id = max(self.cursor, last_id)
        self.cursor = last_id
        self.tail = last_id
        self.behind = False
        self.known_attempts = _NO_ATTEMPTS

    def forget_settled(self) -> None:
        """Drop what is known of the backlog: there is none."""
        self.settled = None
        self.known_attempts = _NO_ATTEMPTS

    def know_attempts(self, attempts: dict[int, int]) -> None:
        """Note how often messages that are not taken in yet were handed out."""
        if attempts and self.known_attempts is _NO_ATTEMPTS:
            self.known_attempts = {}
        self.known_attempts.update(attempts)

    def wait(self, peer: Peer) -> None:
        """Have a peer woken when the piece that was requested is here."""
        if self.waiters is _NO_PEERS:
            self.waiters = []
        self.waiters.append(peer)

    def stop_waiting(self, peer: Peer) -> None:
        """Forget a peer that is gone."""
        if self.waiters:
            self.waiters = [other for other in self.waiters if other is not peer]

    def take_waiters(self) -> list[Peer]:
        """Take the peers to be woken."""
        waiters = self.waiters
        self.waiters = _NO_PEERS
        return waiters

    def is_known_open(self, tag: int) -> bool:
        """Say whether *tag* was handed out before a restart and is not taken in yet."""
        settled = self.settled
        if settled is None or not self.cursor < tag <= self.handed_id:
            return False
        return not settled.contains(tag)


# What most channels share, since most are empty most of the time: a deque alone takes 600
# bytes. None of them is ever added to; `Channel` replaces them first.
_NO_ENTRIES: Final[deque[Entry]] = deque(maxlen=0)
_NO_MESSAGES: Final[deque[Message]] = deque(maxlen=0)
_NONE_IN_FLIGHT: Final = InFlight()


class Channel:
    """One topic's messages for the consumers of one subscription or queue."""

    def __init__(self, topic: Topic, rules: Rules) -> None:
        self.id: int = 0
        self.topic: Topic = topic
        self.rules: Rules = rules
        self.ended: bool = False
        self.position: Position = Position()
        self.position.window = rules.window
        # Added to by `add_ready` and `add_volatile` only, and by what `flight` returns.
        self.ready: deque[Entry] = _NO_ENTRIES  # durable messages in the window
        self.volatile: deque[Message] = _NO_MESSAGES  # messages that live in memory only
        self.held_bytes: int = 0  # of both, and of those in flight
        self.in_flight: InFlight = _NONE_IN_FLIGHT
        self.progress: Progress | None = None  # since the last progress record
        self.journal: Channel | None = None  # records its progress; None: it does so itself

    def begin(self, channel_id: int) -> None:
        """Take the record's id as its own: messages above it belong to the channel."""
        self.id = channel_id
        self.position.begin(channel_id)

    def add_ready(self, entry: Entry) -> None:
        """Append a durable message to the window."""
        if self.ready is _NO_ENTRIES:
            self.ready = deque()
        self.ready.append(entry)

    def add_volatile(self, message: Message) -> None:
        """Append a message that lives in memory only."""
        if self.volatile is _NO_MESSAGES:
            self.volatile = deque()
        self.volatile.append(message)

    def flight(self) -> InFlight:
        """Return what is in flight, to add to it."""
        if self.in_flight is _NONE_IN_FLIGHT:
            self.in_flight = InFlight()
        return self.in_flight

    def rest(self) -> None:
        """Give back the memory that it took for messages, where it holds none."""
        if not self.ready:
            self.ready = _NO_ENTRIES
        if not self.volatile:
            self.volatile = _NO_MESSAGES
        if not self.in_flight.open:
            self.in_flight = _NONE_IN_FLIGHT

    # Where the kinds differ.

    def queue_of(self) -> "Queue | None":
        """Return the queue that this channel belongs to, if any."""
        return None

    def charged_to(self, accounts: Accounts) -> Account | None:  # noqa: ARG002 - by principal
        """Return whose quotas count what is made for it: its queue's or its topic's owner."""
        queue = self.queue_of()
        return self.topic.owner if queue is None else queue.owner

    def settle(self, entry: Entry) -> bool:
        """Note the end of an entry; say whether this is the first progress to be recorded."""
        progress = self.progress
        if progress is None:
            self.made_progress().settle(entry.previous, entry.id)
            return True
        progress.settle(entry.previous, entry.id)
        return False

    def settle_by_letter(self, entry: Entry) -> bool:  # noqa: ARG002 - only queues count
        """Note the end of an entry whose dead letter's record settles it.

        True when a fan-out's ledger must be reopened if the log refuses that record.
        """
        return False

    def unsettle(self) -> None:
        """Undo the settling of one entry: the log refused its dead letter."""

    def attempts_before(self, message_id: int) -> int:
        """Return how often a message up to `handed_id` was handed out, NEVER if it was not."""
        # Messages are first handed out in the order of their ids, so one that is not listed has
        # been handed out once: records list only what differs from that.
        return self.position.known_attempts.pop(message_id, 1)

    def newest_id(self) -> int:
        """Return the last message that the log may hold for this channel."""
        return self.topic.last_id

    def caught_up(self) -> None:
        """Note that nothing is left to read from the log."""
        self.position.forget_settled()

    def has_backlog(self) -> bool:
        """Say whether the log holds messages that were not taken in."""
        # One that stands aside is behind in any case, although there may be nothing to read.
        return self.position.behind and self.position.cursor < self.newest_id()

    # What is recorded, and what a restart finds.

    def made_progress(self) -> Progress:
        """Return the progress to note something in."""
        progress = self.progress
        if progress is None:
            progress = Progress()
            self.progress = progress
        return progress

    def take_progress(self) -> Progress:
        """Take what is to be recorded."""
        progress = self.progress
        assert progress is not None
        self.progress = None
        return progress

    def settled_ranges(self, committed_id: int) -> list[tuple[int, int]]:
        """Return the ranges (after, last] of all that is settled, for a snapshot.

        They reach as far as they can, up to *committed_id* when nothing more waits in the log:
        retention must not keep the whole log for a subscription of a quiet topic.
        """
        position = self.position
        # Everything up to the cursor that is not held here is settled.
        unsettled = sorted([*self.in_flight.all(), *self.ready], key=_entry_id)
        ranges: list[tuple[int, int]] = []
        at = 0
        for entry in unsettled:
            if entry.id - 1 > at:
                ranges.append((at, entry.id - 1))
            at = entry.id
        cursor = position.cursor
        end = cursor if self.has_backlog() else max(cursor, committed_id)
        if end > at:
            ranges.append((at, end))
        if position.settled is not None:
            ranges.extend(
                (max(after, cursor), last)
                for after, last in position.settled.ranges()
                if last > cursor
            )
        return ranges

    def replay_letter(self, after_id: int, message_id: int) -> None:
        """Apply the record of a dead letter again, for the message it was made of."""
        settled = self.position.settled
        assert settled is not None
        settled.add(after_id, message_id)

    def replay_progress(self, made: Progress) -> None:
        """Apply a progress record again."""
        position = self.position
        assert position.settled is not None
        for after, last in made.ranges:
            position.settled.add(after, last)
        position.handed_id = max(position.handed_id, made.handed_id)
        position.know_attempts(made.attempts)

    def recover(self, now_us: int) -> None:  # noqa: ARG002 - subscriptions have leases
        """Begin to work after a restart: everything that is not settled waits in the log."""
        position = self.position
        settled = position.settled
        assert settled is not None
        position.begin(settled.floor)
        position.behind = position.cursor < self.topic.last_id
        if position.behind:
            position.known_attempts = open_attempts(position.known_attempts, settled)
        else:
            self.caught_up()


def open_attempts(known: dict[int, int], settled: Settled) -> dict[int, int]:
    """Return those of the *known* attempts whose messages are not settled."""
    left = {i: attempts for i, attempts in known.items() if not settled.contains(i)}
    return left or _NO_ATTEMPTS


def _entry_id(entry: Entry) -> int:
    return entry.id
