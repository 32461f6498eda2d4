"""Outgoing: what a turn leaves to be done, as data.

The broker calls no connection and no log. `Outgoing` numbers the records that are on their way
to the log, and remembers what each was about until it is committed. `Effects` lists the peers
that have something to send, the channels and followers whose backlog should be read, and those
whose progress should be recorded. `Schedule` holds the deadlines of deliveries. The driver
takes all of it through `Broker`, after each turn and when it is due.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, final

from braidmq.base.ids import FIRST_ID
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Channel, Entry, Peer
from braidmq.broker.records import MessageEncoder
from braidmq.broker.topics import Message, Pending, Topic

if TYPE_CHECKING:
    from braidmq.broker.delivery.followers import Follower
    from braidmq.broker.delivery.queue import Queue
    from braidmq.broker.delivery.subscriptions import Subscription

PROGRESS_DELAY_US: Final = 10_000
"""How long a hand-out or an acknowledgement may wait to be recorded when no barrier asks."""

PROGRESS_BYTES: Final = 1024 * 1024
"""A progress record that has grown to this is followed by another."""


_SWEEP_MIN: Final = 1024
"""Rows of deadlines shorter than this are not swept."""


@final
class Started(Pending):
    """A new subscription."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription: Subscription = subscription


@final
class Followed(Pending):
    """A new follower."""

    def __init__(self, follower: "Follower") -> None:
        self.follower: Follower = follower


@final
class Ended(Pending):
    """The end of a subscription or a follower, by request or because its lease is over."""

    def __init__(self, subscription_id: int, reason: int) -> None:
        self.subscription_id: int = subscription_id
        self.reason: int = reason


@final
class Declared(Pending):
    """A new queue."""

    def __init__(self, queue: "Queue") -> None:
        self.queue: Queue = queue


@final
class Deleted(Pending):
    """The end of a queue."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id: int = queue_id


@final
class TopicEnded(Pending):
    """The end of a topic."""

    def __init__(self, name: str) -> None:
        self.name: str = name


@final
class Advanced(Pending):
    """The progress of some channels and followers."""

    def __init__(self, progress: dict[int, Progress]) -> None:
        self.progress: dict[int, Progress] = progress


@final
class Buried(Pending):
    """A dead letter, or one that is sent back, and the entry it came from."""

    def __init__(
        self,
        letter: Message,
        entry: Entry,
        message: Message,
        is_letter: bool,  # noqa: FBT001 - of two kinds
    ) -> None:
        self.is_letter: bool = is_letter
        self.settles_ledger: bool = False  # of a view's entry: no other view had settled it
        self.letter: Message = letter
        self.entry: Entry = entry
        self.message: Message = message


def topic_of(item: Pending) -> Topic | None:
    """Return the topic that something on its way to the log is about, if it is about one."""
    if isinstance(item, Message):
        return item.topic
    if isinstance(item, Buried):
        return item.letter.topic
    if isinstance(item, Started):
        return item.subscription.topic
    if isinstance(item, Followed):
        return item.follower.topic
    return item.queue.topic if isinstance(item, Declared) else None


class Outgoing:
    """Gives ids, collects records, and remembers what each was about until it is committed."""

    def __init__(self) -> None:
        self.next_id: int = FIRST_ID
        self.bytes: int = 0  # of message bodies that are not committed
        self.encoder: MessageEncoder = MessageEncoder()
        self._records: list[bytes] = []
        self._pending: list[Pending] = []

    @property
    def last_id(self) -> int:
        """The newest id that was given."""
        return self.next_id - 1

    def __len__(self) -> int:
        return len(self._records)

    def add(self, item: Pending, record: bytes) -> int:
        """Give *item* the next id and queue its record."""
        given = self.next_id
        self.next_id = given + 1
        item.id = given
        self._records.append(record)
        self._pending.append(item)
        return given

    def pending(self) -> list[Pending]:
        """Return everything that is not committed, oldest first."""
        return list(self._pending)

    def take_records(self) -> list[bytes]:
        """Take the records that were queued since the last call."""
        records = self._records
        self._records = []
        return records

    def take_committed(self, up_to: int) -> list[Pending]:
        """Take the items with ids up to *up_to*, oldest first."""
        pending = self._pending
        if not pending or pending[0].id > up_to:
            return []
        count = up_to + 1 - pending[0].id  # ids follow each other without a gap
        if count >= len(pending):
            self._pending = []
            return pending
        self._pending = pending[count:]
        return pending[:count]

    def take_back(self, from_id: int) -> list[Pending]:
        """Take back everything from *from_id* on; the log has used none of those ids."""
        taken: list[Pending] = []
        while self._pending and self._pending[-1].id >= from_id:
            taken.append(self._pending.pop())
        taken.reverse()
        # Records that were not handed to the log yet go too: their ids follow the refused ones.
        self._records = []
        self.next_id = from_id
        return taken


class LeaseOver(NamedTuple):
    """A subscription or a follower that ended because it was not used."""

    subscription_id: int
    topic: str
    principal: str


@final
class Effects:
    """The lists that delivery fills and the broker empties."""

    def __init__(self) -> None:
        self.touched: list[Peer] = []
        self.reads: list[Channel] = []
        self.follower_reads: list[Follower] = []
        # Channels and followers whose progress is not recorded, by id.
        self.dirty: dict[int, Channel] = {}
        self.dirty_followers: dict[int, Follower] = {}
        self.acknowledged: bool = False  # some of that progress is an acknowledgement
        self.progress_due_us: int = 0
        self.leases_over: list[LeaseOver] = []

    # Peers, leases and reads.

    def touch(self, peer: Peer) -> None:
        """Have the server wake this peer at the end of the turn."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)

    def take_touched(self) -> list[Peer]:
        """Take the peers that have something to send, or whose answer may be there now."""
        touched = self.touched
        if touched:
            self.touched = []
            for peer in touched:
                peer.touched = False
        return touched

    def take_leases_over(self) -> list[LeaseOver]:
        """Take the subscriptions and followers that ended because they were not used."""
        over = self.leases_over
        self.leases_over = []
        return over

    def read_ahead(self, channel: Channel) -> None:
        """Ask for more of the backlog when half the window is free."""
        # At half, so that consumers keep working on the rest, and each read is worth its cost.
        # Bytes are not asked about: they bound the piece, which has one message at least.
        position = channel.position
        if (
            position.behind
            and not position.reading
            and 2 * len(channel.ready) <= position.window
        ):
            self.read_now(channel)

    def read_now(self, channel: Channel) -> None:
        """Ask for more of the backlog, however full the window is."""
        position = channel.position
        if not position.reading:
            position.reading = True
            self.reads.append(channel)

    # Progress.

    def is_dirty(self) -> bool:
        """Say whether there is progress that is not recorded."""
        return bool(self.dirty or self.dirty_followers)

    def note_progress(self, channel: Channel, now_us: int) -> None:
        """Have the progress of a channel recorded soon."""
        self._due_soon(now_us)
        self.dirty[channel.id] = channel

    def note_followed(self, follower: "Follower", now_us: int) -> None:
        """Have the progress of a follower recorded soon."""
        self._due_soon(now_us)
        self.dirty_followers[follower.id] = follower

    def progress_of(self, channel: Channel, now_us: int) -> Progress:
        """Return the progress of a channel to note something in, to be recorded soon."""
        if channel.progress is None:
            self.note_progress(channel, now_us)
        return channel.made_progress()

    def take_progress(self, next_due_us: int) -> list[dict[int, Progress]]:
        """Take all that can be recorded now, each dict as one record.

        What a follower's transport has not confirmed yet is not certain and stays; it is looked
        at again at *next_due_us*.
        """
        made: dict[int, Progress] = {}
        for channel_id, channel in self.dirty.items():
            made[channel_id] = channel.take_progress()
        unsure: dict[int, Follower] = {}
        for follower_id, follower in self.dirty_followers.items():
            progress = follower.take_progress()
            if progress is not None:
                made[follower_id] = progress
            if follower.is_unsure():
                unsure[follower_id] = follower
        self.dirty = {}
        # Still listed: the next record includes them if their transport has confirmed by then.
        self.dirty_followers = unsure
        self.acknowledged = False
        self.progress_due_us = next_due_us
        return _in_records(made)

    def _due_soon(self, now_us: int) -> None:
        # The first progress sets the deadline; later progress does not postpone it.
        due_us = now_us + PROGRESS_DELAY_US
        if due_us < self.progress_due_us or not self.is_dirty():
            self.progress_due_us = due_us


def _in_records(made: dict[int, Progress]) -> list[dict[int, Progress]]:
    """Return *made* in batches that each fit a record."""
    batches: list[dict[int, Progress]] = []
    batch: dict[int, Progress] = {}
    size = 0
    for channel_id, progress in made.items():
        batch[channel_id] = progress
        size += progress.size_bytes()
        if size >= PROGRESS_BYTES:
            batches.append(batch)
            batch = {}
            size = 0
    if batch:
        batches.append(batch)
    return batches


@final
class _Row:
    """The deadlines of one delay, in order; those before `head` have been taken out."""

    def __init__(self, delay_us: int) -> None:
        self.delay_us: int = delay_us
        self.entries: list[Entry] = []
        self.head: int = 0
        self.first_place: int = 0  # of entries[0]
        self.sweep_at: int = _SWEEP_MIN

    def is_live(self, index: int) -> bool:
        # The entry may have been settled, or scheduled again in this row or in another.
        entry = self.entries[index]
        return (
            entry.due_us != 0
            and entry.row_us == self.delay_us
            and entry.place == self.first_place + index
        )

    def skip_stale(self) -> bool:
        """Step to the first live entry; say whether there is one."""
        entries = self.entries
        while self.head < len(entries):
            if self.is_live(self.head):
                return True
            self.head += 1
        if entries:
            # Places are never reused, or a stale entry could look live.
            self.first_place += len(entries)
            self.entries = []
            self.head = 0
        return False

    def sweep(self) -> None:
        """Keep only what is live, each at a new place."""
        place = self.first_place + len(self.entries)
        live: list[Entry] = []
        for index in range(self.head, len(self.entries)):
            if self.is_live(index):
                entry = self.entries[index]
                entry.place = place + len(live)
                live.append(entry)
        self.entries = live
        self.head = 0
        self.first_place = place
        self.sweep_at = max(_SWEEP_MIN, 2 * len(live))


@final
class Schedule:
    """The deadlines of many things with few different delays, in a row for each delay.

    Deadlines of one delay fall due in the order they were set, because time does not go back,
    so a row is only touched at its ends. What is settled before its deadline stays in its row
    until it comes to the front, or until most of the row is stale and it is swept: setting and
    clearing cost O(1) each, and a row is never longer than about twice what is live.
    """

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        return sum(len(row.entries) - row.head for row in self._rows.values())

    def set(self, entry: Entry, now_us: int, delay_us: int) -> None:
        """Set the deadline of *entry* to *delay_us* from now; an earlier one of it is void."""
        row = self._rows.get(delay_us)
        if row is None:
            row = _Row(delay_us)
            self._rows[delay_us] = row
        if len(row.entries) >= row.sweep_at:
            row.sweep()
        entry.due_us = now_us + delay_us
        entry.row_us = delay_us
        entry.place = row.first_place + len(row.entries)
        row.entries.append(entry)

    def next_due_us(self) -> int:
        """Return when the next live entry falls due, or 0 if none does."""
        soonest = 0
        for row in self._rows.values():
            if row.skip_stale():
                due_us = row.entries[row.head].due_us
                if soonest == 0 or due_us < soonest:
                    soonest = due_us
        return soonest

    def take_due(self, now_us: int) -> list[Entry]:
        """Take out and return what is due, each row's in order."""
        due: list[Entry] = []
        for row in self._rows.values():
            while row.skip_stale():
                entry = row.entries[row.head]
                if entry.due_us > now_us:
                    break
                entry.due_us = 0  # which makes it stale: `skip_stale` steps over it
                due.append(entry)
        return due
