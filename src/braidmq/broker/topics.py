"""Topics and the messages on them.

The headers of a message, str to str, are kept as one block of bytes, in the order in which they
were written; an empty block is no headers:

    repeated: u16 key length | key | u16 value length | value     little-endian, UTF-8
"""

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from braidmq.base import refusals
from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import TOPIC_NAME_BYTES, TOPICS, Account, Accounts

if TYPE_CHECKING:
    from braidmq.broker.delivery.audience import Audience
    from braidmq.broker.delivery.channels import Peer
    from braidmq.broker.delivery.followers import Follower
    from braidmq.broker.delivery.queue import Queue
    from braidmq.broker.delivery.subscriptions import Subscription
    from braidmq.broker.marks import Marks

ORIGIN_BLIP: Final = 1
ORIGIN_VIBE: Final = 2
ORIGIN_QUMBED: Final = 3
ORIGIN_HTTP: Final = 4
ORIGIN_SPARK: Final = 5

PRIORITY_LOW: Final = 0
PRIORITY_NORMAL: Final = 1
PRIORITY_HIGH: Final = 2
PRIORITY_CRITICAL: Final = 3

MESSAGE_ID_HEADER: Final = ""
"""The key under which a publisher's own id of a message is kept: one no publisher can send."""

CONTENT_ENCODING_HEADER: Final = "contentEncoding"

HEADER_BYTES_MAX: Final = 65_535
"""A key's or a value's length is a u16."""

_BROKERS: Final = frozenset({"deliveryAttempts", CONTENT_ENCODING_HEADER})
_DEATH: Final = "death"
"""The prefix of the headers that a dead letter gets."""

_U16: Final = struct.Struct("<H")

TOPICS_MAX: Final = 1_000_000
"""Names that the broker remembers; inventing more must not use up its memory."""

TOPIC_NAMES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of all those names together."""

IDLE_US: Final = 60_000_000
"""A topic without messages and readers is forgotten when it was idle for so long."""

LOOKED_AT_MAX: Final = 4_096
"""Topics that are looked at in one turn of maintenance: it must not hold up the others."""

TOO_MANY: Final = refusals.by_bound("too many topics", TOPICS_MAX, "in one broker")
"""Why no principal gets a new topic; what one alone may have is a quota."""


class Topic:
    """A named stream of messages, with its subscriptions, followers and queue."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.raw: bytes = name.encode()
        self.audience: Audience | None = None  # its Blip subscriptions, once it has had one
        self.followers: list[Follower] = []
        self.queue: Queue | None = None
        self.last_id: int = 0  # of the newest committed message
        self.message_count: int = 0  # committed ones, over all time
        self.owner: Account | None = None  # who made it; None: an earlier version did
        self.unrecorded: bool = False  # no record names its owner yet
        self.began_id: int = 0  # its messages have higher ids; lower ones are of one deleted
        self.gone: bool = False  # forgotten or deleted: another may have its name by now
        self.is_idle: bool = False  # unused since it was looked at last, see `Topics.forget`
        self.place: int = 0  # in the row of topics that `Topics.forget` goes through

    def owner_id(self) -> bytes:
        """Return the id of its owner's account; empty if it has none."""
        return b"" if self.owner is None else self.owner.id

    def claim(self) -> bytes:
        """Return the account that owns it, for the record that is the first to say so."""
        assert self.owner is not None
        self.unrecorded = False
        return self.owner.id

    def is_unused(self, floor_id: int) -> bool:
        """Say whether the log, which begins at *floor_id*, has none of it, nor any reader."""
        return (
            self.last_id < floor_id
            and self.queue is None
            and not self.subscriptions
            and not self.followers
        )

    @property
    def subscriptions(self) -> "list[Subscription]":
        """Its Blip subscriptions, oldest first; a new list."""
        return [] if self.audience is None else list(self.audience.subscriptions.values())


class Pending:
    """A record that has an id and is not committed yet."""

    id: int = 0


@final
class Message(Pending):
    """One message; `body` is u16 topic length, topic and payload as on the Blip wire."""

    # Defaults are class attributes: __init__ runs for every message and should do little.
    priority: int = PRIORITY_NORMAL
    origin: int = ORIGIN_BLIP
    timestamp_us: int = 0
    expires_us: int = 0  # 0: never
    arrival: int = 0
    headers: bytes = b""
    publisher: "Peer | None" = None
    correlation_id: int = 0
    recipient_key_id: bytes = b""  # of a Qumbed message for one key's followers only
    marks: "Marks | None" = None  # what else a Qumbed publisher said; ask `marks.marks_of`
    routed: int = 0  # followers with a peer that it was offered to

    def __init__(self, topic: Topic, qos: int, body: bytes) -> None:
        self.topic: Topic = topic
        self.qos: int = qos
        self.body: bytes = body

    @property
    def payload(self) -> bytes:
        """The publisher's bytes."""
        return self.body[2 + len(self.topic.raw) :]

    def set_ttl(self, ttl_us: int, now_us: int) -> None:
        """Let it expire in *ttl_us* (0: never), unless its publisher has set an expiry."""
        if ttl_us and self.expires_us == 0:
            self.expires_us = now_us + ttl_us

    def is_expired(self, now_us: int) -> bool:
        """Say whether it has expired."""
        return 0 < self.expires_us <= now_us


def body_of(topic: Topic, payload: bytes) -> bytes:
    """Return the body of a message with *payload* on *topic*."""
    return len(topic.raw).to_bytes(2, "big") + topic.raw + payload


def is_brokers_header(key: str) -> bool:
    """Say whether only the broker may set this header."""
    return key in _BROKERS or key.startswith(_DEATH)


def encode_headers(headers: dict[str, str]) -> bytes:
    """Return the block of *headers*."""
    parts: list[bytes] = []
    for key, value in headers.items():
        for text in (key, value):
            raw = text.encode()
            assert len(raw) <= HEADER_BYTES_MAX
            parts.append(_U16.pack(len(raw)))
            parts.append(raw)
    return b"".join(parts)


def decode_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a block that :func:`encode_headers` made."""
    headers: dict[str, str] = {}
    at = 0
    while at < len(block):
        key, at = _header_text(block, at)
        value, at = _header_text(block, at)
        headers[key] = value
    return headers


def _header_text(block: bytes, at: int) -> tuple[str, int]:
    size: int = _U16.unpack_from(block, at)[0]
    start = at + _U16.size
    return block[start : start + size].decode(), start + size


class Topics:
    """Every topic by its name, each charged to the principal that made it.

    A topic is charged to whoever published, subscribed or declared first. What the broker makes
    by itself, for dead letters, replays and rows of a sink, is charged to the owner of what it
    comes from, and not refused for a quota: a message is never stuck because of one.
    """

    def __init__(self) -> None:
        self.accounts: Accounts = Accounts()
        self.refusal: str = ""  # why `open` has returned None
        self.changes: int = 0  # topics made and removed
        self.floor_id: int = 0  # the log holds nothing below it
        self.ended_id: int = 0  # of the newest record that a topic was deleted
        self.removed: bool = False  # some were, and may be cached; the engine resets it
        self._by_name: dict[str, Topic] = {}
        self._names_bytes: int = 0
        self._row: list[Topic] = []  # each at its `place`
        self._looked_at: int = 0  # how far this round has come in the row
        self._round_us: int = 0  # when the next round begins

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Topic | None:
        """Return the topic of that name, if it exists."""
        return self._by_name.get(name)

    def open(self, name: str, principal: Principal) -> Topic | None:
        """Return the topic of that name, new if need be; None when `refusal` says why not."""
        topic = self._by_name.get(name)
        if topic is not None:
            topic.is_idle = False  # whoever asks is about to use it
        else:
            who, quotas = principal.name, principal.quotas
            size = len(name.encode())
            self.refusal = self.accounts.refusal(who, quotas, TOPICS) or self.accounts.refusal(
                who, quotas, TOPIC_NAME_BYTES, size
            )
            if not self.refusal:
                topic = self.make(name, self.accounts.of(who))
        return topic

    def make(self, name: str, owner: Account | None) -> Topic | None:
        """Return the topic of that name, new if need be; None when there are too many.

        No quota is asked: the caller has asked, or must not be refused.
        """
        topic = self._by_name.get(name)
        if topic is None:
            topic = self.get(name)
            if topic is None:
                self.refusal = TOO_MANY
            elif owner is not None:
                self.give(topic, owner)
                topic.unrecorded = True
        return topic

    def get(self, name: str) -> Topic | None:
        """Return the topic of that name, new and without an owner if need be, as a replay does.

        None when there are too many.
        """
        topic = self._by_name.get(name)
        if topic is None and len(self._by_name) < TOPICS_MAX:
            topic = Topic(name)
            if self._names_bytes + len(topic.raw) > TOPIC_NAMES_BYTES_MAX:
                return None
            self._names_bytes += len(topic.raw)
            self._by_name[name] = topic
            topic.began_id = self.ended_id
            topic.place = len(self._row)
            self._row.append(topic)
            self.changes += 1
        return topic

    def give(self, topic: Topic, owner: Account | None) -> None:
        """Charge a topic to *owner* instead of the one before."""
        for account, count in ((topic.owner, -1), (owner, 1)):
            if account is not None:
                account.add(TOPICS, count)
                account.add(TOPIC_NAME_BYTES, count * len(topic.raw))
        topic.owner = owner

    def remove(self, topic: Topic) -> None:
        """Remove a topic that nothing refers to but caches; its owner's quota gets it back."""
        self.give(topic, None)
        del self._by_name[topic.name]
        self._names_bytes -= len(topic.raw)
        last = self._row.pop()
        if last is not topic:
            self._row[topic.place] = last
            last.place = topic.place
        topic.gone = True
        self.removed = True
        self.changes += 1

    def idle(self, now_us: int) -> list[Topic]:
        """Return topics that may be forgotten, after looking at a bounded number of them.

        Each was unused in this round and in the one before, which was `IDLE_US` ago or more.
        """
        row = self._row
        if self._looked_at == 0:
            if now_us < self._round_us:
                return []
            self._round_us = now_us + IDLE_US
        end = min(self._looked_at + LOOKED_AT_MAX, len(row))
        found: list[Topic] = []
        for number in range(self._looked_at, end):
            topic = row[number]
            if not topic.is_unused(self.floor_id):
                topic.is_idle = False
            elif topic.is_idle:
                found.append(topic)
            else:
                topic.is_idle = True
        self._looked_at = end if end < len(row) else 0
        return found

    def forget(self, idle: list[Topic], busy: set[Topic | None]) -> None:
        """Forget topics, except those that are *busy*."""
        for topic in idle:
            if topic not in busy:
                self.remove(topic)

    def first(self, count: int) -> list[Topic]:
        """Return the oldest topics, *count* of them at most."""
        return list(islice(self._by_name.values(), count))

    def all(self) -> list[Topic]:
        """Return every topic, oldest first."""
        return list(self._by_name.values())
