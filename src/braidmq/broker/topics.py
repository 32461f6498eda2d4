"""Topics and the messages on them.

The headers of a message, str to str, are kept as one block of bytes, in the order in which they
were written; an empty block is no headers:

    repeated: u16 key length | key | u16 value length | value     little-endian, UTF-8
"""

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
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


class Topic:
    """A named stream of messages, with its subscriptions, followers and queue."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.raw: bytes = name.encode()
        self.subscriptions: list[Subscription] = []
        self.followers: list[Follower] = []
        self.queue: Queue | None = None
        self.last_id: int = 0  # of the newest committed message
        self.message_count: int = 0  # committed ones, over all time


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
    """Every topic by its name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._names_bytes: int = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> Topic | None:
        """Return the topic of that name, if it exists."""
        return self._by_name.get(name)

    def get(self, name: str) -> Topic | None:
        """Return the topic of that name, new if need be; None when there are too many."""
        # Topics are never removed, so their number and their names are bounded.
        topic = self._by_name.get(name)
        if topic is None and len(self._by_name) < TOPICS_MAX:
            topic = Topic(name)
            if self._names_bytes + len(topic.raw) > TOPIC_NAMES_BYTES_MAX:
                return None
            self._names_bytes += len(topic.raw)
            self._by_name[name] = topic
        return topic

    def first(self, count: int) -> list[Topic]:
        """Return the oldest topics, *count* of them at most."""
        return list(islice(self._by_name.values(), count))

    def all(self) -> list[Topic]:
        """Return every topic, oldest first."""
        return list(self._by_name.values())
