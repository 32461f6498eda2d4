"""Messages as Vibe has them: what a Publish says, and a message of any strand as a Deliver."""

import struct
from datetime import UTC, datetime
from typing import Final, final

from braidmq.broker import dead_letters
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Delivery, Entry
from braidmq.broker.topics import (
    CONTENT_ENCODING_HEADER,
    MESSAGE_ID_HEADER,
    ORIGIN_VIBE,
    PRIORITY_NORMAL,
    Message,
    Topic,
    body_of,
    decode_headers,
    encode_headers,
    is_brokers_header,
)
from braidmq.wire.vibe import frames, messages, session
from braidmq.wire.vibe.messages import as_json

PAUSE_US: Final = 24 * 3600 * 1_000_000
"""How long a dead letter that no frame can carry is passed over; other strands may have it."""

PRIORITIES: Final[dict[str, int]] = {"low": 0, "normal": 1, "high": 2, "critical": 3}

_U16: Final = struct.Struct("<H")
_ID_AT: Final = 4  # in a block that begins with the message id: behind an empty key
_US_PER_S: Final = 1_000_000
_BODY_BYTES: Final = 10  # all but id, queue, payload and headers
_BODY_BYTES_1_0: Final = _BODY_BYTES + 4  # with the two error fields, absent


def message_of(request: session.Request, topic: Topic) -> Message:
    """Return what a Publish asks to be stored."""
    message = Message(topic, 1, body_of(topic, request.payload))
    message.origin = ORIGIN_VIBE
    given = request.headers
    if given:
        message.priority = PRIORITIES.get(given.get("priority", "").lower(), PRIORITY_NORMAL)
        kept = {key: value for key, value in given.items() if not is_brokers_header(key)}
        message.headers = encode_headers({MESSAGE_ID_HEADER: request.id, **kept})
    else:
        message.headers = encode_headers({MESSAGE_ID_HEADER: request.id})
    return message


def give_up(broker: Broker, entry: Entry | None, now_us: int) -> None:
    """End a delivery that no frame can carry; a dead letter stays where it is."""
    if entry is None:
        broker.stats.drop(dead_letters.TOO_LARGE)
    elif entry.channel.rules.attempts_max == 0:
        broker.queues.requeue(entry, PAUSE_US, now_us)
    else:
        broker.queues.reject(entry, dead_letters.TOO_LARGE, now_us)


@final
class Delivering:
    """Makes the Deliver frames of one connection."""

    def __init__(self, its_session: session.Session, body_max: int) -> None:
        self._session: session.Session = its_session
        self._body_max: int = body_max
        self._plain_attempts: int = 0
        self._plain_us: int = -1
        self._plain: bytes = b""
        self.message_id: str = ""  # of the frame that was made last

    def frame(self, delivery: Delivery, now_us: int) -> bytes | None:
        """Return the frame of a delivery, or None when it would be too long."""
        message = delivery.message
        entry = delivery.entry
        attempts = 1 if entry is None else entry.attempts
        timestamp_us = message.timestamp_us or now_us
        payload = message.payload
        encoded = False
        if payload and message.origin != ORIGIN_VIBE:
            payload, encoded = as_json(payload)
        block = message.headers
        if not encoded and block.startswith(b"\0\0") and len(block) == _ID_AT + _u16(block, 2):
            self.message_id = block[_ID_AT:].decode()
            added = self._plain_headers(attempts, timestamp_us)
        else:
            kept = decode_headers(block)
            self.message_id = kept.pop(MESSAGE_ID_HEADER, "")
            if encoded:
                kept[CONTENT_ENCODING_HEADER] = "base64"
            kept["deliveryAttempts"] = str(attempts)
            kept.setdefault("timestamp", _iso(timestamp_us))
            added = messages.encode_headers(kept)
        if not self.message_id:
            self.message_id = str(message.id) if message.id else f"m-{message.arrival}"
        name = message.topic.raw
        # Before it is packed: the peer holds what it unpacks to the same limit.
        size = len(self.message_id.encode()) + len(name) + len(payload) + len(added)
        is_1_0 = self._session.dialect == frames.DIALECT_1_0
        if size + (_BODY_BYTES_1_0 if is_1_0 else _BODY_BYTES) > self._body_max:
            return None
        return self._session.deliver(self.message_id, name, payload, added)

    def _plain_headers(self, attempts: int, timestamp_us: int) -> bytes:
        # Messages of one moment follow each other, and differ in nothing here.
        if attempts != self._plain_attempts or timestamp_us != self._plain_us:
            self._plain_attempts = attempts
            self._plain_us = timestamp_us
            self._plain = messages.encode_headers(
                {"deliveryAttempts": str(attempts), "timestamp": _iso(timestamp_us)}
            )
        return self._plain


def _u16(block: bytes, at: int) -> int:
    value: int = _U16.unpack_from(block, at)[0]
    return value


def _iso(timestamp_us: int) -> str:
    moment = datetime.fromtimestamp(timestamp_us / _US_PER_S, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
