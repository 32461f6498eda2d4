"""Records: every durable fact of the broker as the bytes the log keeps.

The first byte is the type; a type never changes its meaning. Little-endian, but for the topic's
length, which is kept as it came over the Blip wire together with topic and payload.

    1 MESSAGE      qos u8 | priority u8 | origin u8 | timestamp us u64 | expires us u64
                   | headers length u32 | headers | topic length u16 BE | topic | payload
    2 DEAD LETTER  the same fixed part | subscription id u64 | after id u64 | message id u64
                   | headers | topic length u16 BE | topic | payload
    3 SUBSCRIBE    qos u8 | timestamp us u64 | principal length u16 | principal | topic
    4 UNSUBSCRIBE  reason u8 | subscription id u64
    5 PROGRESS     u32 count, then for each subscription:
                   id u64 | handed id u64 | u32 messages settled
                   | u32 ranges, each (after u64, last u64)
                   | u32 redeliveries, each (message id u64, attempts u32)
    6 DECLARE      created us u64 | mode u8 | overflow u8 | flags u8 (1 durable, 2 dead letters)
                   | max size u64 | ttl us u64 | max attempts u32
                   | dead letter queue name length u16 | name | queue name
    7 DELETE       queue id u64
    8 FOLLOW       timestamp us u64 | public key 32 bytes | principal length u16 | principal
                   | topic
    9 SINK ROW     as MESSAGE
   10 INTENT       batch u64 | principal length u16 | principal | query length u16 | query
                   | sink length u16 | sink | u32 stages, each (id 16 bytes, rows u64)
   11 DONE         intent id u64
   12 CURSOR       flags u8 (1 removed) | initial offset u64 | position u64
                   | principal length u16 | principal | name
   13 FIRST MESSAGE  the fixed part of MESSAGE | account 16 bytes | headers
                   | topic length u16 BE | topic | payload
   14 DECLARE BY   account 16 bytes | as DECLARE
   15 END TOPIC    topic
   16 CLOCK        step us i64 | time us u64

A dead letter settles its message for the subscription that gave up on it: one record, so that
no crash leaves the message in both places or in neither. A letter that is sent back is the same
record in the other direction. The payload comes last in a record, so that the index can
point at it. A queue's id is that of its DECLARE; its lanes (`delivery.queues`) have ids of
their own, made from it. UNSUBSCRIBE and PROGRESS name a follower (`delivery.followers`) by the
id of its FOLLOW. How SINK ROW, INTENT and DONE belong together is in `sinks`, and what
CLOCK moves, in `times`. FIRST MESSAGE and DECLARE BY also say whose quotas the topic and the
queue count towards (`quotas.Account`).
"""

import struct
from typing import Final, final

from librt.strings import read_i32_le, read_i64_le

from braidmq.base.errors import UnknownRecordError
from braidmq.base.records import CLOCK_KIND, GAP_KIND, KIND_NAMES, Description
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.policy import Policy
from braidmq.broker.quotas import ACCOUNT_ID_BYTES
from braidmq.broker.topics import Message

MESSAGE: Final = 1
DEAD_LETTER: Final = 2
SUBSCRIBE: Final = 3
UNSUBSCRIBE: Final = 4
PROGRESS: Final = 5
DECLARE: Final = 6
DELETE: Final = 7
FOLLOW: Final = 8
SINK_ROW: Final = 9
INTENT: Final = 10
DONE: Final = 11
CURSOR: Final = 12
FIRST_MESSAGE: Final = 13
DECLARE_BY: Final = 14
END_TOPIC: Final = 15
CLOCK: Final = CLOCK_KIND
GAP: Final = GAP_KIND
"""Written by the log's repair: a range of ids that was lost and accepted as lost."""

ENDED_BY_REQUEST: Final = 1
ENDED_BY_LEASE: Final = 2

_MESSAGE: Final = struct.Struct(
    "<B"  # type
    "B"  # qos
    "B"  # priority
    "B"  # origin
    "Q"  # timestamp us
    "Q"  # expires us
    "I"  # headers length
)
_SETTLES: Final = struct.Struct(
    "<Q"  # subscription id
    "Q"  # after id
    "Q"  # message id
)
_SUBSCRIBE: Final = struct.Struct(
    "<B"  # type
    "B"  # qos
    "Q"  # timestamp us
    "H"  # principal length
)
_UNSUBSCRIBE: Final = struct.Struct(
    "<B"  # type
    "B"  # reason
    "Q"  # subscription id
)
_PROGRESS: Final = struct.Struct(
    "<B"  # type
    "I"  # subscriptions
)
_SUBSCRIPTION: Final = struct.Struct(
    "<Q"  # subscription id
    "Q"  # handed id
    "I"  # messages settled
    "I"  # ranges
)
_DECLARE: Final = struct.Struct(
    "<B"  # type
    "Q"  # created us
    "B"  # mode
    "B"  # overflow
    "B"  # flags
    "Q"  # max size
    "Q"  # ttl us
    "I"  # max attempts
    "H"  # length of the dead letter queue's name
)
_FOLLOW: Final = struct.Struct(
    "<B"  # type
    "Q"  # timestamp us
    "32s"  # public key
    "H"  # principal length
)
_NUMBERED: Final = struct.Struct(
    "<B"  # type: DELETE, INTENT, DONE
    "Q"  # queue id, batch, intent id
)
_CURSOR: Final = struct.Struct(
    "<B"  # type
    "B"  # flags
    "Q"  # initial offset
    "Q"  # position
    "H"  # principal length
)
_STAGE: Final = struct.Struct(
    "<16s"  # stage id
    "Q"  # rows
)
_CLOCK: Final = struct.Struct(
    "<B"  # type
    "q"  # step us
    "Q"  # time us
)
_LENGTH: Final = struct.Struct("<H")
_REMOVED: Final = 1
_DURABLE: Final = 1
_DEAD_LETTERS: Final = 2
_RANGE: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<I")
_ATTEMPTS: Final = struct.Struct(
    "<Q"  # message id
    "I"  # attempts
)


class Head:
    """The fixed part of a message's record, and where the rest of it is."""

    def __init__(self, record: bytes) -> None:
        # Read field by field, at the offsets of `_MESSAGE`: unpacking would box each integer.
        self.qos: int = record[1]
        self.priority: int = record[2]
        self.origin: int = record[3]
        self.timestamp_us: int = read_i64_le(record, 4)
        self.expires_us: int = read_i64_le(record, 12)
        self.headers_at: int = _MESSAGE.size
        kind = record[0]
        if kind != MESSAGE:
            if kind == DEAD_LETTER:
                self.headers_at = _MESSAGE.size + _SETTLES.size
            elif kind == FIRST_MESSAGE:
                self.headers_at = _MESSAGE.size + ACCOUNT_ID_BYTES
        self.body_at: int = self.headers_at + read_i32_le(record, 20)


@final
class StoredMessage(Head):
    """A message's record (of any of the four types), read as a whole."""

    def __init__(self, record: bytes) -> None:
        super().__init__(record)
        self.headers: bytes = record[self.headers_at : self.body_at]
        self.body: bytes = record[self.body_at :]
        self.topic: str = self.body[2 : 2 + (self.body[0] << 8 | self.body[1])].decode()
        self.settles_subscription: int = 0
        self.settles_after: int = 0
        self.settles_id: int = 0
        self.account_id: bytes = b""
        if record[0] == FIRST_MESSAGE:
            self.account_id = record[_MESSAGE.size : self.headers_at]
        elif record[0] == DEAD_LETTER:
            settles = _SETTLES.unpack_from(record, _MESSAGE.size)
            self.settles_subscription, self.settles_after, self.settles_id = settles


def encode_message(message: Message, kind: int = MESSAGE) -> bytes:
    """Return a MESSAGE record, or with *kind* a SINK ROW."""
    return b"".join([_head_of(message, kind), message.headers, message.body])


def encode_first_message(message: Message, account_id: bytes) -> bytes:
    """Return a FIRST MESSAGE record: the message, and whose topic it is on."""
    assert len(account_id) == ACCOUNT_ID_BYTES
    head = _head_of(message, FIRST_MESSAGE)
    return b"".join([head, account_id, message.headers, message.body])


def _head_of(message: Message, kind: int) -> bytes:
    head: bytes = _MESSAGE.pack(
        kind,
        message.qos,
        message.priority,
        message.origin,
        message.timestamp_us,
        message.expires_us,
        len(message.headers),
    )
    return head


class MessageEncoder:
    """Encodes MESSAGE records; similar ones of the same turn share their packed head."""

    def __init__(self) -> None:
        self._head: bytes = b""
        self._timestamp_us: int = -1
        self._expires_us: int = 0
        self._priority: int = 0
        self._origin: int = 0

    def encode_plain(self, message: Message, timestamp_us: int) -> bytes:
        """Return the record of a durable message without headers."""
        if (
            timestamp_us != self._timestamp_us
            or message.expires_us != self._expires_us
            or message.priority != self._priority
            or message.origin != self._origin
        ):
            self._timestamp_us = timestamp_us
            self._expires_us = message.expires_us
            self._priority = message.priority
            self._origin = message.origin
            self._head = _MESSAGE.pack(
                MESSAGE, 1, self._priority, self._origin, timestamp_us, self._expires_us, 0
            )
        return self._head + message.body


def encode_dead_letter(
    letter: Message, *, subscription_id: int, after_id: int, message_id: int
) -> bytes:
    """Return a DEAD LETTER record, which also settles the message that it replaces."""
    settles = _SETTLES.pack(subscription_id, after_id, message_id)
    return b"".join([_head_of(letter, DEAD_LETTER), settles, letter.headers, letter.body])


def encode_subscribe(qos: int, timestamp_us: int, principal: str, topic: str) -> bytes:
    """Return a SUBSCRIBE record; its own id is the subscription's."""
    name = principal.encode()
    return _SUBSCRIBE.pack(SUBSCRIBE, qos, timestamp_us, len(name)) + name + topic.encode()


def encode_unsubscribe(subscription_id: int, reason: int) -> bytes:
    """Return an UNSUBSCRIBE record."""
    return _UNSUBSCRIBE.pack(UNSUBSCRIBE, reason, subscription_id)


def encode_progress(progress: dict[int, Progress]) -> bytes:
    """Return a PROGRESS record of several subscriptions."""
    parts: list[bytes] = [_PROGRESS.pack(PROGRESS, len(progress))]
    for subscription_id, made in progress.items():
        parts.append(
            _SUBSCRIPTION.pack(
                subscription_id, made.handed_id, made.settled_count, len(made.ranges)
            )
        )
        parts.extend(_RANGE.pack(after, last) for after, last in made.ranges)
        parts.append(_COUNT.pack(len(made.attempts)))
        parts.extend(_ATTEMPTS.pack(*item) for item in made.attempts.items())
    return b"".join(parts)


def read_subscribe(record: bytes) -> tuple[int, int, str, str]:
    """Return qos, timestamp, principal and topic of a SUBSCRIBE record."""
    _, qos, timestamp_us, name_bytes = _SUBSCRIBE.unpack_from(record)
    at = _SUBSCRIBE.size + name_bytes
    return qos, timestamp_us, record[_SUBSCRIBE.size : at].decode(), record[at:].decode()


def read_unsubscribe(record: bytes) -> tuple[int, int]:
    """Return subscription id and reason of an UNSUBSCRIBE record."""
    _, reason, subscription_id = _UNSUBSCRIBE.unpack(record)
    return subscription_id, reason


def read_progress(record: bytes) -> dict[int, Progress]:
    """Return what a PROGRESS record says of each subscription."""
    _, count = _PROGRESS.unpack_from(record)
    at = _PROGRESS.size
    progress: dict[int, Progress] = {}
    for _ in range(count):
        made = Progress()
        subscription_id, made.handed_id, made.settled_count, ranges = _SUBSCRIPTION.unpack_from(
            record, at
        )
        at += _SUBSCRIPTION.size
        end = at + ranges * _RANGE.size
        made.ranges = list(_RANGE.iter_unpack(record[at:end]))
        (redeliveries,) = _COUNT.unpack_from(record, end)
        at = end + _COUNT.size
        end = at + redeliveries * _ATTEMPTS.size
        made.attempts = dict(_ATTEMPTS.iter_unpack(record[at:end]))
        at = end
        progress[subscription_id] = made
    return progress


def encode_declare(name: str, policy: Policy, created_us: int) -> bytes:
    """Return a DECLARE record; its own id is the queue's."""
    flags = (_DURABLE if policy.durable else 0) | (_DEAD_LETTERS if policy.dead_letters else 0)
    letters = policy.dead_letter_name.encode()
    head: bytes = _DECLARE.pack(
        DECLARE,
        created_us,
        policy.mode,
        policy.overflow,
        flags,
        policy.max_size,
        policy.ttl_us,
        policy.max_attempts,
        len(letters),
    )
    return head + letters + name.encode()


def encode_declare_by(account_id: bytes, declare: bytes) -> bytes:
    """Return a DECLARE BY record of a DECLARE record; its own id is the queue's."""
    assert len(account_id) == ACCOUNT_ID_BYTES
    return bytes([DECLARE_BY]) + account_id + declare


def read_declare_by(record: bytes) -> tuple[bytes, bytes]:
    """Return the account and the DECLARE record that a DECLARE BY record holds."""
    at = 1 + ACCOUNT_ID_BYTES
    return record[1:at], record[at:]


def encode_end_topic(topic: str) -> bytes:
    """Return an END TOPIC record."""
    return bytes([END_TOPIC]) + topic.encode()


def read_end_topic(record: bytes) -> str:
    """Return the topic of an END TOPIC record."""
    return record[1:].decode()


def read_declare(record: bytes) -> tuple[str, Policy, int]:
    """Return name, policy and time of a DECLARE record."""
    _, created_us, mode, overflow, flags, max_size, ttl_us, max_attempts, letters_bytes = (
        _DECLARE.unpack_from(record)
    )
    at = _DECLARE.size + letters_bytes
    policy = Policy()
    policy.mode = mode
    policy.overflow = overflow
    policy.durable = bool(flags & _DURABLE)
    policy.dead_letters = bool(flags & _DEAD_LETTERS)
    policy.max_size = max_size
    policy.ttl_us = ttl_us
    policy.max_attempts = max_attempts
    policy.dead_letter_name = record[_DECLARE.size : at].decode()
    return record[at:].decode(), policy, created_us


def encode_delete(queue_id: int) -> bytes:
    """Return a DELETE record."""
    return _NUMBERED.pack(DELETE, queue_id)


def read_delete(record: bytes) -> int:
    """Return the queue id of a DELETE record."""
    queue_id: int = _NUMBERED.unpack(record)[1]
    return queue_id


def encode_follow(timestamp_us: int, key: bytes, principal: str, topic: str) -> bytes:
    """Return a FOLLOW record; its own id is the follower's."""
    name = principal.encode()
    return _FOLLOW.pack(FOLLOW, timestamp_us, key, len(name)) + name + topic.encode()


def read_follow(record: bytes) -> tuple[int, bytes, str, str]:
    """Return timestamp, public key, principal and topic of a FOLLOW record."""
    _, timestamp_us, key, name_bytes = _FOLLOW.unpack_from(record)
    at = _FOLLOW.size + name_bytes
    return timestamp_us, key, record[_FOLLOW.size : at].decode(), record[at:].decode()


def encode_intent(
    principal: str, query: str, sink: str, batch: int, stages: list[tuple[bytes, int]]
) -> bytes:
    """Return an INTENT record; its own id is the intent's."""
    parts: list[bytes] = [_NUMBERED.pack(INTENT, batch)]
    for text in (principal, query, sink):
        raw = text.encode()
        parts.append(_LENGTH.pack(len(raw)))
        parts.append(raw)
    parts.append(_COUNT.pack(len(stages)))
    parts.extend(_STAGE.pack(stage_id, rows) for stage_id, rows in stages)
    return b"".join(parts)


def read_intent(record: bytes) -> tuple[str, str, str, int, list[tuple[bytes, int]]]:
    """Return principal, query, sink, batch and stages of an INTENT record."""
    batch: int = _NUMBERED.unpack_from(record)[1]
    at = _NUMBERED.size
    texts: list[str] = []
    for _ in range(3):
        size: int = _LENGTH.unpack_from(record, at)[0]
        at += _LENGTH.size
        texts.append(record[at : at + size].decode())
        at += size
    count: int = _COUNT.unpack_from(record, at)[0]
    at += _COUNT.size
    stages = list(_STAGE.iter_unpack(record[at : at + count * _STAGE.size]))
    return texts[0], texts[1], texts[2], batch, stages


def encode_done(intent_id: int) -> bytes:
    """Return a DONE record."""
    return _NUMBERED.pack(DONE, intent_id)


def read_done(record: bytes) -> int:
    """Return the intent id of a DONE record."""
    intent_id: int = _NUMBERED.unpack(record)[1]
    return intent_id


def encode_cursor(
    name: str, principal: str, *, initial: int, position: int, removed: bool
) -> bytes:
    """Return a CURSOR record."""
    raw = principal.encode()
    flags = _REMOVED if removed else 0
    return _CURSOR.pack(CURSOR, flags, initial, position, len(raw)) + raw + name.encode()


def read_cursor(record: bytes) -> tuple[str, str, int, int, bool]:
    """Return name, principal, initial offset, position and "removed" of a CURSOR record."""
    _, flags, initial, position, name_bytes = _CURSOR.unpack_from(record)
    at = _CURSOR.size + name_bytes
    principal = record[_CURSOR.size : at].decode()
    return record[at:].decode(), principal, initial, position, bool(flags & _REMOVED)


def encode_clock(step_us: int, now_us: int) -> bytes:
    """Return a CLOCK record."""
    return _CLOCK.pack(CLOCK, step_us, now_us)


def read_clock(record: bytes) -> tuple[int, int]:
    """Return the step and the time after it of a CLOCK record."""
    _, step_us, now_us = _CLOCK.unpack(record)
    return step_us, now_us


def describe(record: bytes) -> Description:
    """Return what the log's index keeps of a record.

    Raises:
        UnknownRecordError: The type is not known to this version.
    """
    kind = record[0]
    # Four types are messages, with the same layout but for what two of them add to the head.
    if (kind <= DEAD_LETTER and kind != 0) or kind in (SINK_ROW, FIRST_MESSAGE):
        head = Head(record)
        at = head.body_at
        topic_end = at + 2 + (record[at] << 8 | record[at + 1])
        return Description(
            record[at + 2 : topic_end],
            topic_end,
            head.timestamp_us,
            head.qos,
            head.priority,
            head.origin,
        )
    if kind in KIND_NAMES:
        return Description(b"", 0, 0, 0, 0, 0)
    raise UnknownRecordError(kind)
