"""Snapshots: the broker's state as bytes, taken a few rows at a time.

The body is one MessagePack map. Its long arrays are encoded in pieces, turn by turn, and its
heads are added at the end, when the lengths are known. `state` reads it.
"""

from typing import Any, Final, final

import msgspec

from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Channel
from braidmq.broker.delivery.followers import Follower
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.outgoing import Buried, Started
from braidmq.broker.policy import FAN_OUT_WITHOUT_ACK
from braidmq.broker.quotas import Account
from braidmq.broker.topics import Message, Topic

_VERSION: Final = 5
ROWS_MAX: Final = 4096
"""Rows of a snapshot that one turn takes; a message in memory counts as one."""

PART_BYTES: Final = 64 * 1024
"""Pieces of a snapshot below this are joined with their neighbours, up to 64 at a time."""

_JOINED_MAX: Final = 64
_SHORT_ARRAY_MAX: Final = 15
_NAME_BYTES: Final = 256
"""Bytes of a topic's name that count as another row."""

_SECTIONS: Final = ("topics", "subscriptions", "queues", "followers", "dedup", "done")


@final
class Snapshot:
    """A snapshot that is taken a few rows at a time, while the broker goes on working.

    Its rows are therefore of different moments: each is right for the records up to the last id
    of its own turn, and a replay begins at the first turn's. A replay of what a row contains
    already changes nothing: most facts are absolute, and for the counts of queues `queues_at`
    says up to which id they are right.
    """

    def __init__(self, broker: Broker, now_us: int) -> None:
        # Record all progress first, here and in each turn. What a row contains must not be in a
        # record after it as well: a replay would subtract the same settled messages twice.
        self.last_id: int = broker.full_barrier()  # a replay begins after it
        self.covered_id: int = self.last_id  # it is void unless all up to here is committed
        self.needed_id: int = broker.committed_id + 1  # retention may delete what is below
        self._broker: Broker = broker
        self._rest: dict[str, Any] = {
            "version": _VERSION,
            "now_us": now_us,
            "wall_ahead_us": broker.times.wall_ahead_us,
            "steps": broker.times.rows(),
            "queues_at": [],  # how many rows, and the id that they are right for
            "ended_id": broker.topics.ended_id,
            "cursors": broker.cursors.rows(),
            "intent": broker.sinks.open_row(),
        }
        started = [
            item.subscription for item in broker.outgoing.pending() if isinstance(item, Started)
        ]
        self._topics: list[Topic] = broker.topics.all()
        self._subscriptions: list[Subscription] = [
            *broker.subscriptions.by_id.values(),
            *started,
        ]
        self._queues: list[Queue] = list(broker.queues.by_name.values())
        self._followers: list[Follower] = list(broker.followers.by_id.values())
        self._dedup: list[str] = broker.dedup.names()  # those that are still to be taken
        self._dedup_order: list[tuple[int, str]] = []  # of the last of them
        self._accounts: dict[Account, int] = {}  # each by its number in the snapshot
        for account in broker.topics.accounts.all():
            self._accounts[account] = len(self._accounts)
        self._section: int = 0
        self._at: int = 0
        self._sections: list[_Section] = [_Section(name) for name in _SECTIONS]
        # What a query has done by the time its row is taken is in records that are replayed as
        # well, which changes nothing.
        self._sections[-1].queries = broker.sinks.queries()

    @property
    def wall_ahead_us(self) -> int:
        """How far the system's clock was ahead when it was begun."""
        ahead_us: int = self._rest["wall_ahead_us"]
        return ahead_us

    def go_on(self, rows_max: int = ROWS_MAX) -> bool:
        """Take the rows of one turn, about *rows_max*; say whether it is complete."""
        self.covered_id = self._broker.full_barrier()
        effort = 0
        while effort < rows_max and self._section < len(self._sections):
            effort += self._take_some(rows_max - effort)
        return self._section == len(self._sections)

    def parts(self) -> list[bytes]:
        """Return the complete snapshot, in pieces that each came from one turn."""
        accounts = [[account.id, account.name] for account in self._accounts]
        head = {**self._rest, "accounts": accounts}
        pieces = [b"\xde" + (len(head) + len(_SECTIONS)).to_bytes(2, "big")]
        for key, value in head.items():
            pieces += [msgspec.msgpack.encode(key), msgspec.msgpack.encode(value)]
        for section in self._sections:
            pieces += section.pieces()
        return _joined(pieces)

    def _take_some(self, effort_max: int) -> int:
        """Take rows of the current section; return the effort, at least 1."""
        section = self._sections[self._section]
        rows: list[Any] = []
        if section.name == "topics":
            effort = self._take_topics(rows, effort_max)
        elif section.name == "subscriptions":
            effort = self._take_subscriptions(rows, effort_max)
        elif section.name == "queues":
            effort = self._take_queues(rows, effort_max)
        elif section.name == "followers":
            effort = self._take_followers(rows, effort_max)
        elif section.name == "dedup":
            effort = self._take_dedup(rows, effort_max)
        else:
            effort = self._take_done(rows, effort_max)
        section.add(rows)
        return max(1, effort)

    def _end_section(self, length: int, count: int) -> None:
        self._at += count
        if self._at >= length:
            self._section += 1
            self._at = 0

    def _take_topics(self, rows: list[Any], effort_max: int) -> int:
        # Include what is on its way to the log: a replay starts after those records.
        pending: dict[Topic, list[int]] = {}
        for letter in _pending_messages(self._broker):
            row = pending.setdefault(letter.topic, [0, 0])
            row[0] = letter.id
            row[1] += 1
        effort = count = 0
        for topic in self._topics[self._at : self._at + effort_max]:
            count += 1
            effort += 1 + len(topic.raw) // _NAME_BYTES
            last_id, message_count = topic.last_id, topic.message_count
            more = pending.get(topic)
            if more is not None:
                last_id, message_count = more[0], message_count + more[1]
            if not topic.gone:
                number = self._number(topic.owner)
                rows.append((topic.name, last_id, message_count, number, topic.began_id))
            if effort >= effort_max:
                break
        self._end_section(len(self._topics), count)
        return effort

    def _take_subscriptions(self, rows: list[Any], effort_max: int) -> int:
        committed_id = self._broker.committed_id
        effort = count = 0
        for subscription in self._subscriptions[self._at : self._at + effort_max]:
            count += 1
            effort += 1 + len(subscription.ready) + len(subscription.in_flight)
            # One of QoS 0 ends with the process.
            if subscription.qos == 1 and not subscription.ended:
                row = _subscription_row(subscription, committed_id, self._rest["now_us"])
                # The first range begins at 0 and is never empty: no message of a subscription
                # has an id below that of the subscription itself.
                self._need(row[3])
                rows.append(row)
            if effort >= effort_max:
                break
        self._end_section(len(self._subscriptions), count)
        return effort

    def _take_queues(self, rows: list[Any], effort_max: int) -> int:
        broker = self._broker
        pending: dict[int, int] = {}  # messages that are not committed, by lane or ledger
        for letter in _pending_messages(broker):
            queue = letter.topic.queue
            if queue is not None and letter.id > queue.id and keeps(queue):
                channel_id = queue.channel_of(letter.priority).id
                pending[channel_id] = pending.get(channel_id, 0) + 1
        effort = count = 0
        for queue in self._queues[self._at : self._at + effort_max]:
            count += 1
            effort += 1
            if queue.topic.queue is queue:
                for channel in queue.channels():
                    effort += 1 + len(channel.ready) + len(channel.in_flight)
                row = _queue_row(queue, pending, broker.committed_id)
                for lane in row[4]:
                    self._need(lane[0])
                for view in queue.views():
                    self._need(view.settled_ranges(broker.committed_id))
                rows.append([*row, self._number(queue.owner)])
            if effort >= effort_max:
                break
        self._end_section(len(self._queues), count)
        self._rest["queues_at"].append([len(rows), self.covered_id])
        return effort

    def _take_followers(self, rows: list[Any], effort_max: int) -> int:
        broker = self._broker
        followers = self._followers[self._at : self._at + effort_max]
        for follower in followers:
            if broker.followers.by_id.get(follower.id) is follower:
                row = _follower_row(follower, broker.committed_id)
                self.needed_id = min(self.needed_id, row[4] + 1)
                if follower.id > 0:
                    rows.append(row)
        self._end_section(len(self._followers), effort_max)
        return len(followers)

    def _take_dedup(self, rows: list[Any], effort_max: int) -> int:
        dedup = self._broker.dedup
        effort = 0
        while self._dedup and effort < effort_max:
            name = self._dedup[-1]
            if self._at == 0:
                self._dedup_order = dedup.order_of(name)
            part = self._dedup_order[self._at : self._at + effort_max - effort]
            rows += dedup.rows_of(name, part)
            effort += 1 + len(part)
            self._at += len(part)
            if self._at >= len(self._dedup_order):
                self._dedup.pop()
                self._at = 0
        if not self._dedup:
            self._section += 1
        return effort

    def _take_done(self, rows: list[Any], effort_max: int) -> int:
        sinks = self._broker.sinks
        queries = self._sections[self._section].queries
        effort = count = 0
        for query, sink in queries[self._at : self._at + effort_max]:
            count += 1
            effort += 1 + (len(query) + len(sink)) // _NAME_BYTES
            done = sinks.last_done(query, sink)
            if done is not None:
                rows.append((query, sink, *done))
            if effort >= effort_max:
                break
        self._end_section(len(queries), count)
        return effort

    def _number(self, owner: Account | None) -> int:
        """Return the number of an account, which may be one that is new."""
        if owner is None:
            return -1
        return self._accounts.setdefault(owner, len(self._accounts))

    def _need(self, settled: list[tuple[int, int]]) -> None:
        self.needed_id = min(self.needed_id, settled[0][1] + 1)


@final
class _Section:
    """A key of the snapshot whose value is a long array, encoded a few rows at a time."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.queries: list[tuple[str, str]] = []  # whose last batches are its rows
        self._count: int = 0
        self._encoded: list[bytes] = []

    def add(self, rows: list[Any]) -> None:
        """Encode some rows more."""
        if rows:
            data = msgspec.msgpack.encode(rows)
            # Without the head of this array, which has one byte or three: there is one head for
            # all rows.
            self._encoded.append(data[1:] if len(rows) <= _SHORT_ARRAY_MAX else data[3:])
            self._count += len(rows)

    def pieces(self) -> list[bytes]:
        """Return the key and the array."""
        head = b"\xdd" + self._count.to_bytes(4, "big")
        return [msgspec.msgpack.encode(self.name), head, *self._encoded]


def _pending_messages(broker: Broker) -> list[Message]:
    """Return the messages that are on their way to the log, dead letters among them."""
    found: list[Message] = []
    for item in broker.outgoing.pending():
        letter = item.letter if isinstance(item, Buried) else item
        if isinstance(letter, Message) and not letter.topic.gone:
            found.append(letter)
    return found


def _joined(pieces: list[bytes]) -> list[bytes]:
    """Return the same bytes with neighbours joined where that saves a write."""
    parts: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < PART_BYTES:
            small.append(piece)
        if len(piece) >= PART_BYTES or len(small) >= _JOINED_MAX:
            parts.append(b"".join(small))
            small = []
        if len(piece) >= PART_BYTES:
            parts.append(piece)
    parts.append(b"".join(small))
    return [part for part in parts if part]


def _subscription_row(subscription: Subscription, committed_id: int, now_us: int) -> list[Any]:
    return [
        subscription.id,
        subscription.topic.name,
        subscription.principal,
        subscription.settled_ranges(committed_id),
        subscription.position.handed_id,
        list(_attempts_of(subscription).items()),
        now_us - subscription.last_used_us,
    ]


def _attempts_of(channel: Channel) -> dict[int, int]:
    # Up to `handed_id`, a message that is not listed here has had one attempt.
    attempts = dict(channel.position.known_attempts)
    for entry in channel.in_flight.all():
        if entry.attempts != 1:
            attempts[entry.id] = entry.attempts
    return attempts


def keeps(queue: Queue) -> bool:
    """Say whether a queue counts what comes to it."""
    return queue.policy.mode != FAN_OUT_WITHOUT_ACK


def _queue_row(queue: Queue, pending: dict[int, int], committed_id: int) -> list[Any]:
    rows = [
        _lane_row(lane, lane.unsettled, _attempts_of(lane), pending, committed_id)
        for lane in queue.lanes
    ]
    ledger = queue.ledger
    if ledger is not None:
        attempts = _attempts_of(ledger)
        for view in queue.views():
            attempts.update(view.position.known_attempts)
            for entry in view.in_flight.all():
                if not ledger.settled().contains(entry.id):
                    attempts[entry.id] = entry.attempts
        rows.append(_lane_row(ledger, ledger.unsettled, attempts, pending, committed_id))
    return [queue.id, queue.topic.name, queue.created_us, queue.policy.values(), rows]


def _lane_row(
    channel: Channel,
    unsettled: int,
    attempts: dict[int, int],
    pending: dict[int, int],
    committed_id: int,
) -> list[Any]:
    return [
        channel.settled_ranges(committed_id),
        channel.position.handed_id,
        list(attempts.items()),
        unsettled + pending.get(channel.id, 0),
    ]


def _follower_row(follower: Follower, committed_id: int) -> list[Any]:
    return [
        follower.id,
        follower.topic.name,
        follower.principal,
        follower.key,
        follower.floor_id(committed_id),
    ]
