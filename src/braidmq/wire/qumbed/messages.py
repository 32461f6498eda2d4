"""The JSON of Qumbed frames: one object per frame, read strictly, written compactly.

    t  key  frame        fields, in the order in which they are written
    1  p    Publish      topic, payload*, schema_id, recipient_key_id*, sender_public_key*; id
    2  s    Subscribe    topic, schema_id, public_key*; id
    3  u    Unsubscribe  topic; id
    4  m    Message      topic, encrypted_payload*, sender_key_id*, sender_public_key*;
                         id, schema_id, timestamp_ms
    5  a    Ack          message_id, ok; delivered
    6  e    Error        code, message; id
    7  d    Discovery    node_id, topics, public_key*, addr; id

`{"t":3,"u":{"topic":"a"}}` is a frame. A * is standard base64 with padding, or null if absent.
Fields after a semicolon are written only if they have a value. A key `k` beside `t` holds an
API key. Unknown keys are ignored, names are matched exactly. This module does not know who may
send which frame, or what topics and schemas exist.
"""

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final

import msgspec

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.wire.qumbed import frames, layout, public_keys
from braidmq.wire.qumbed.layout import ID_BYTES_MAX, BadFrameError
from braidmq.wire.qumbed.public_keys import KEY_ID_BYTES, PUBLIC_KEY_BYTES

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
UNSUBSCRIBE: Final = 3
MESSAGE: Final = 4
ACK: Final = 5
ERROR: Final = 6
DISCOVERY: Final = 7

ERROR_TEXT_CHARS_MAX: Final = 200

RECEIPTS_WITH_TIME: Final = "timestamp"
"""What a Discovery asks for, so that the Acks of its stream have a `timestamp_ms`."""

DISCOVERY_TOPICS_MAX: Final = 1_000
"""Topics in one Discovery frame, or fewer if their names are long."""


class Frame:
    """What every frame has: the sender's `id` for it and an API `key`; either may be empty."""

    def __init__(self, kind: int, frame_id: str, key: str) -> None:
        self.kind: int = kind
        self.id: str = frame_id
        self.key: str = key


class Publish(Frame):
    """A payload for a topic; schema, recipient and sender are empty if absent."""

    def __init__(self, wire: layout.Publish, key: str) -> None:
        # Not through Frame.__init__: on the hot path a second call is measurable.
        self.kind = PUBLISH
        self.id = _frame_id(wire.id)
        self.key = key
        self.recipient_key_id: bytes = wire.recipient_key_id or b""
        if self.recipient_key_id and len(self.recipient_key_id) != KEY_ID_BYTES:
            raise BadFrameError(f"recipient_key_id is not {KEY_ID_BYTES} bytes", self.id)
        self.sender_public_key: bytes = wire.sender_public_key or b""
        if self.sender_public_key:
            _check_public_key("sender_public_key", self.sender_public_key, self.id)
        self.topic: str = _topic(wire.topic, self.id)
        self.payload: bytes = wire.payload or b""
        self.schema_id: str = wire.schema_id or ""


class Subscribe(Frame):
    """A request for a topic's messages, sealed for a public key."""

    def __init__(self, wire: layout.Subscribe, key: str) -> None:
        super().__init__(SUBSCRIBE, _frame_id(wire.id), key)
        self.topic: str = _topic(wire.topic, self.id)
        self.schema_id: str = wire.schema_id or ""
        self.public_key: bytes = wire.public_key or b""
        _check_public_key("public_key", self.public_key, self.id)


class Unsubscribe(Frame):
    """The end of a subscription."""

    def __init__(self, wire: layout.Unsubscribe, key: str) -> None:
        super().__init__(UNSUBSCRIBE, _frame_id(wire.id), key)
        self.topic: str = _topic(wire.topic, self.id)


class Message(Frame):
    """A message for a subscriber. Its keys are not checked: opening the box does that."""

    def __init__(self, wire: layout.Message) -> None:
        self.kind = MESSAGE
        self.id = wire.id or ""
        self.key = ""
        self.topic: str = wire.topic or ""
        self.encrypted_payload: bytes = wire.encrypted_payload or b""
        self.sender_key_id: bytes = wire.sender_key_id or b""
        self.sender_public_key: bytes = wire.sender_public_key or b""
        self.schema_id: str = wire.schema_id or ""
        self.timestamp_ms: int = wire.timestamp_ms or 0


class Ack(Frame):
    """The answer to a frame that was accepted; `delivered` is None if not given."""

    def __init__(self, wire: layout.Ack) -> None:
        super().__init__(ACK, "", "")
        self.message_id: str = wire.message_id or ""
        self.ok: bool = bool(wire.ok)
        self.delivered: int | None = wire.delivered
        self.timestamp_ms: int = wire.timestamp_ms or 0


class Error(Frame):
    """The answer to a frame that was refused."""

    def __init__(self, wire: layout.Error) -> None:
        super().__init__(ERROR, wire.id or "", "")
        self.code: str = wire.code or ""
        self.message: str = wire.message or ""


class Discovery(Frame):
    """A node's description of itself: from a client a question, from the broker the answer."""

    def __init__(self, wire: layout.Discovery, key: str) -> None:
        super().__init__(DISCOVERY, _frame_id(wire.id), key)
        self.node_id: str = wire.node_id or ""
        self.topics: list[str] = wire.topics or []
        self.public_key: bytes = wire.public_key or b""
        if self.public_key:
            _check_public_key("public_key", self.public_key, self.id)
        self.addr: str = wire.addr or ""
        self.asks_times: bool = wire.receipts == RECEIPTS_WITH_TIME


def read_frame(payload: bytes) -> Frame:
    """Return the frame that *payload* holds: a Publish, a Subscribe, or another of the seven.

    Raises:
        BadFrameError: It is not JSON, too deep, of an unknown type, has no object for its
            type, or an invalid field. The text repeats nothing of the payload.
    """
    wire = layout.decode(payload)
    kind = wire.t
    key = wire.k or ""
    if isinstance(kind, float):
        raise BadFrameError("the frame type is not an integer", layout.name_of(payload))
    if kind == PUBLISH and wire.p is not None:
        return Publish(wire.p, key)
    if kind == SUBSCRIBE and wire.s is not None:
        return Subscribe(wire.s, key)
    if kind == UNSUBSCRIBE and wire.u is not None:
        return Unsubscribe(wire.u, key)
    if kind == MESSAGE and wire.m is not None:
        return Message(wire.m)
    if kind == ACK and wire.a is not None:
        return Ack(wire.a)
    if kind == ERROR and wire.e is not None:
        return Error(wire.e)
    if kind == DISCOVERY and wire.d is not None:
        return Discovery(wire.d, key)
    known = PUBLISH <= kind <= DISCOVERY
    problem = "the object of the frame's type is missing" if known else "unknown frame type"
    raise BadFrameError(problem, layout.name_of(payload))


def _frame_id(text: str | None) -> str:
    if not text:
        return ""
    if len(text.encode()) > ID_BYTES_MAX:
        raise BadFrameError(f"id is longer than {ID_BYTES_MAX} bytes")
    return text


def _topic(text: str | None, frame_id: str) -> str:
    if not text:
        raise BadFrameError("topic is empty", frame_id)
    if len(text.encode()) > TOPIC_BYTES_MAX:
        raise BadFrameError(f"topic is longer than {TOPIC_BYTES_MAX} bytes", frame_id)
    return text


def _check_public_key(field: str, public_key: bytes, frame_id: str) -> None:
    fault = public_keys.fault(public_key)
    if fault:
        raise BadFrameError(f"{field} {fault}", frame_id)


# --- writing: whole frames, ready to be sent --------------------------------------------------


def quote(text: str) -> bytes:
    """Return *text* as JSON; a caller that sends it often should keep the result."""
    return msgspec.json.encode(text)


def message(
    topic: bytes,
    encrypted_payload: bytes,
    sender_public_key: bytes,
    *,
    message_id: str | None = None,
    schema_id: bytes = b'""',
    timestamp_ms: int = 0,
) -> bytes:
    """Return a Message frame; *topic* and *schema_id* are what :func:`quote` made.

    Without *message_id* it is the frame of the original protocol, which lacks the last three.
    """
    # Assembled from fragments: base64 and digits need no escaping, and topic and schema were
    # quoted once for all messages. A JSON encoder would escape everything each time.
    parts = [
        b'{"t":4,"m":{"topic":',
        topic,
        b',"encrypted_payload":',
        _base64(encrypted_payload),
        b',"sender_key_id":',
        _base64(sender_public_key[:KEY_ID_BYTES]),
        b',"sender_public_key":',
        _base64(sender_public_key),
    ]
    if message_id is not None:
        parts += (
            b',"id":"',
            message_id.encode(),
            b'","schema_id":',
            schema_id,
            b',"timestamp_ms":%d' % timestamp_ms,
        )
    parts.append(b"}}")
    return frames.encode(b"".join(parts))


def message_bytes(topic: bytes, payload_bytes: int, schema_id: bytes = b'""') -> int:
    """Return an upper bound of the JSON's length for a Message with such a payload."""
    in_base64 = 4 * ((max(1, payload_bytes) + 2) // 3)  # empty: null, no longer than "AA=="
    return _MESSAGE_FIXED_BYTES + len(topic) + len(schema_id) + in_base64


def ack(message_id: str = "", delivered: int | None = None, timestamp_ms: int = 0) -> bytes:
    """Return an Ack frame, with *delivered* and the time if they are given."""
    told = b"" if delivered is None else b',"delivered":%d' % delivered
    if timestamp_ms:
        told += b',"timestamp_ms":%d' % timestamp_ms
    return frames.encode(
        b'{"t":5,"a":{"message_id":' + quote(message_id) + b',"ok":true' + told + b"}}"
    )


def error(code: str, text: str, frame_id: str = "") -> bytes:
    """Return an Error frame that echoes the refused frame's id; a long text is truncated."""
    text = text[:ERROR_TEXT_CHARS_MAX].encode(errors="replace").decode()
    return frames.encode(
        b'{"t":6,"e":{"code":' + quote(code) + b',"message":' + quote(text) + _closing(frame_id)
    )


def discovery(
    node_id: str,
    topics: Sequence[str],
    public_key: bytes,
    addr: str,
    *,
    frame_id: str = "",
    key: str = "",
    asks_times: bool = False,
) -> bytes:
    """Return a Discovery frame with as many of *topics* as fit, up to DISCOVERY_TOPICS_MAX.

    With *asks_times* it asks for the time of each message in the Acks of this stream.
    """
    start = b'{"t":7,"d":{"node_id":' + quote(node_id) + b',"topics":['
    end = b'],"public_key":' + _base64(public_key) + b',"addr":' + quote(addr)
    if asks_times:
        end += b',"receipts":' + quote(RECEIPTS_WITH_TIME)
    end += _closing(frame_id, key)
    room = frames.FRAME_MAX - len(start) - len(end)
    told: list[bytes] = []
    for topic in topics[:DISCOVERY_TOPICS_MAX]:
        quoted = quote(topic)
        room -= len(quoted) + 1  # and a comma
        if room < 0:
            break
        told.append(quoted)
    return frames.encode(start + b",".join(told) + end)


def publish(
    topic: str,
    payload: bytes,
    schema_id: str = "",
    recipient_key_id: bytes = b"",
    sender_public_key: bytes = b"",
    *,
    frame_id: str = "",
    key: str = "",
) -> bytes:
    """Return a Publish frame."""
    parts = [
        b'{"t":1,"p":{"topic":',
        quote(topic),
        b',"payload":',
        _base64(payload),
        b',"schema_id":',
        quote(schema_id),
        b',"recipient_key_id":',
        _base64(recipient_key_id),
        b',"sender_public_key":',
        _base64(sender_public_key),
        _closing(frame_id, key),
    ]
    return frames.encode(b"".join(parts))


def subscribe(
    topic: str, schema_id: str, public_key: bytes, *, frame_id: str = "", key: str = ""
) -> bytes:
    """Return a Subscribe frame."""
    start = b'{"t":2,"s":{"topic":' + quote(topic) + b',"schema_id":' + quote(schema_id)
    end = b',"public_key":' + _base64(public_key) + _closing(frame_id, key)
    return frames.encode(start + end)


def unsubscribe(topic: str, *, frame_id: str = "", key: str = "") -> bytes:
    """Return an Unsubscribe frame."""
    return frames.encode(b'{"t":3,"u":{"topic":' + quote(topic) + _closing(frame_id, key))


def _closing(frame_id: str, key: str = "") -> bytes:
    named = b',"id":' + quote(frame_id) if frame_id else b""
    return named + (b'},"k":' + quote(key) + b"}" if key else b"}}")


def _base64(data: bytes) -> bytes:
    return b'"' + b2a_base64(data, newline=False) + b'"' if data else b"null"


# The longest possible Message without its topic, payload and schema.
_MESSAGE_FIXED_BYTES: Final = (
    len(
        message(
            b"",
            b"\0",
            bytes(PUBLIC_KEY_BYTES),
            message_id=str(2**64 - 1),
            schema_id=b"",
            timestamp_ms=2**63 - 1,
        )
    )
    - len(frames.encode(b"AA=="))  # the frame's length, and that payload
)
