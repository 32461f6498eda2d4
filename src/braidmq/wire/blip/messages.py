"""Payloads of the Blip strand: what each frame type carries, packed and read.

    HELLO        u16 version
    AUTH         u16 length | key
    PUBLISH      u8 qos | u16 length | topic | message
    SUBSCRIBE    u16 length | topic | u8 qos
    ACK          u64 subscription id
    NACK         u16 code | u16 length | text
    PING, PONG   nothing
    POLL         u64 subscription id
    STATS        nothing (request); five u64 (reply)
    UNSUBSCRIBE  u64 subscription id
    CREDIT       u64 subscription id | u32 further messages

All integers are big-endian, all texts UTF-8. This module knows neither order nor permission.
"""

import struct
from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from braidmq.wire.blip import frames
from braidmq.wire.errors import MalformedPayloadError

PROTOCOL_VERSION: Final = 1
QOS_AT_MOST_ONCE: Final = 0
QOS_AT_LEAST_ONCE: Final = 1

_TOPIC_AT: Final = 3  # in PUBLISH: after qos and topic length
_SUBSCRIPTION_ID_BYTES: Final = 8

_I64_MAX: Final = 2**63 - 1
_U64_SPAN: Final = 2**64  # librt writes signed integers; these fields are unsigned

_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")
_CREDIT: Final = struct.Struct(
    ">Q"  # subscription id
    "I"  # further messages
)
_NACK: Final = struct.Struct(
    ">H"  # code
    "H"  # length of the text
)
_STATS: Final = struct.Struct(">5Q")
_DELIVERY: Final = struct.Struct(
    ">I"  # length
    "B"  # type
    "Q"  # correlation id
    "B"  # qos
)
_DELIVERY_LENGTH: Final = frames.LENGTH_MIN + 1  # and the body


class Stats(NamedTuple):
    """The five numbers of a STATS reply, in the order in which they are sent."""

    topics: int
    subscribers: int
    messages_published: int
    messages_delivered: int
    inflight: int


def topic_and_message(topic: str, message: bytes) -> bytes:
    """Return what follows the qos byte of a PUBLISH: the broker stores and sends this slice."""
    name = topic.encode()
    return _U16.pack(len(name)) + name + message


def encode_hello(correlation_id: int, version: int = PROTOCOL_VERSION) -> bytes:
    """Return a HELLO frame."""
    return frames.encode(frames.HELLO, correlation_id, _U16.pack(version))


def encode_auth(correlation_id: int, key: str) -> bytes:
    """Return an AUTH frame."""
    raw = key.encode()
    return frames.encode(frames.AUTH, correlation_id, _U16.pack(len(raw)) + raw)


def encode_publish(correlation_id: int, qos: int, topic: str, message: bytes) -> bytes:
    """Return a PUBLISH frame as a publisher sends it."""
    return delivery_header(correlation_id, qos, 2 + len(topic.encode()) + len(message)) + (
        topic_and_message(topic, message)
    )


def delivery_header(correlation_id: int, qos: int, body_bytes: int) -> bytes:
    """Return all of a PUBLISH frame that comes before its topic and message."""
    packed: bytes = _DELIVERY.pack(
        _DELIVERY_LENGTH + body_bytes, frames.PUBLISH, correlation_id, qos
    )
    return packed


def write_delivery(out: BytesWriter, correlation_id: int, qos: int, body: bytes) -> None:
    """Write a PUBLISH frame as a consumer gets it; *body* is topic and message."""
    # Written field by field into one buffer for the whole turn: the hot path of delivery.
    if correlation_id > _I64_MAX:
        correlation_id -= _U64_SPAN
    write_i32_be(out, _DELIVERY_LENGTH + len(body))
    out.append(frames.PUBLISH)
    write_i64_be(out, correlation_id)
    out.append(qos)
    out.write(body)


def encode_subscribe(correlation_id: int, topic: str, qos: int) -> bytes:
    """Return a SUBSCRIBE frame."""
    name = topic.encode()
    payload = _U16.pack(len(name)) + name + bytes([qos])
    return frames.encode(frames.SUBSCRIBE, correlation_id, payload)


def encode_ack(correlation_id: int, subscription_id: int) -> bytes:
    """Return an ACK frame: a reply, or a consumer's acknowledgement."""
    return frames.encode(frames.ACK, correlation_id, _U64.pack(subscription_id))


def encode_nack(correlation_id: int, code: int, text: str) -> bytes:
    """Return a NACK frame."""
    raw = text.encode()
    return frames.encode(frames.NACK, correlation_id, _NACK.pack(code, len(raw)) + raw)


def encode_poll(correlation_id: int, subscription_id: int) -> bytes:
    """Return a POLL frame."""
    return frames.encode(frames.POLL, correlation_id, _U64.pack(subscription_id))


def encode_unsubscribe(correlation_id: int, subscription_id: int) -> bytes:
    """Return an UNSUBSCRIBE frame."""
    return frames.encode(frames.UNSUBSCRIBE, correlation_id, _U64.pack(subscription_id))


def encode_credit(correlation_id: int, subscription_id: int, count: int) -> bytes:
    """Return a CREDIT frame."""
    return frames.encode(frames.CREDIT, correlation_id, _CREDIT.pack(subscription_id, count))


def encode_stats(correlation_id: int, stats: Stats) -> bytes:
    """Return a STATS reply."""
    return frames.encode(frames.STATS, correlation_id, _STATS.pack(*stats))


def read_hello(payload: bytes) -> int:
    """Return the version that a HELLO asks for, or raise MalformedPayloadError."""
    if len(payload) != _U16.size:
        raise MalformedPayloadError("HELLO is a u16")
    version: int = _U16.unpack(payload)[0]
    return version


def read_auth(payload: bytes) -> str:
    """Return the key of an AUTH, or raise MalformedPayloadError."""
    if len(payload) < _U16.size or len(payload) != _U16.size + _U16.unpack_from(payload)[0]:
        raise MalformedPayloadError("AUTH does not have the length it says")
    return _text(payload[_U16.size :])


def read_subscribe(payload: bytes) -> tuple[str, int]:
    """Return topic and qos of a SUBSCRIBE, or raise MalformedPayloadError."""
    if len(payload) <= _U16.size:
        raise MalformedPayloadError("SUBSCRIBE is too short")
    name_bytes: int = _U16.unpack_from(payload)[0]
    if len(payload) != _U16.size + name_bytes + 1:
        raise MalformedPayloadError("SUBSCRIBE does not have the length it says")
    return _text(payload[_U16.size : -1]), payload[-1]


def read_publish(payload: bytes) -> tuple[int, str, bytes]:
    """Return qos, topic and message of a PUBLISH, or raise MalformedPayloadError."""
    if len(payload) < _TOPIC_AT:
        raise MalformedPayloadError("PUBLISH is too short")
    message_at = _TOPIC_AT + int(_U16.unpack_from(payload, 1)[0])
    if len(payload) < message_at:
        raise MalformedPayloadError("PUBLISH is shorter than its topic")
    return payload[0], _text(payload[_TOPIC_AT:message_at]), payload[message_at:]


def read_subscription_id(payload: bytes) -> int:
    """Return the id of an ACK, POLL or UNSUBSCRIBE, or raise MalformedPayloadError."""
    if len(payload) != _SUBSCRIPTION_ID_BYTES:
        raise MalformedPayloadError("a subscription id is a u64")
    return int.from_bytes(payload, "big")


def read_credit(payload: bytes) -> tuple[int, int]:
    """Return subscription id and count of a CREDIT, or raise MalformedPayloadError."""
    if len(payload) != _CREDIT.size:
        raise MalformedPayloadError("CREDIT is a u64 and a u32")
    subscription_id, count = _CREDIT.unpack(payload)
    return subscription_id, count


def read_nack(payload: bytes) -> tuple[int, str]:
    """Return code and text of a NACK, or raise MalformedPayloadError."""
    if len(payload) < _NACK.size:
        raise MalformedPayloadError("NACK is too short")
    code, text_bytes = _NACK.unpack_from(payload)
    if len(payload) != _NACK.size + text_bytes:
        raise MalformedPayloadError("NACK does not have the length it says")
    return code, _text(payload[_NACK.size :])


def read_stats(payload: bytes) -> Stats:
    """Return the numbers of a STATS reply, or raise MalformedPayloadError."""
    if len(payload) != _STATS.size:
        raise MalformedPayloadError("STATS is five u64")
    return Stats(*_STATS.unpack(payload))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedPayloadError("text is not UTF-8") from None
