"""Bodies of the Vibe strand: the one layout that all messages share, packed and read.

    +---------+------+----+-------+---------+---------+------------+---------------+
    | version | type | id | queue | payload | headers | error code | error message |
    +---------+------+----+-------+---------+---------+------------+---------------+
      u8        u8     str16 str16  u32 n +   u16 n +   str16        str16
                                    n bytes   n pairs of str16

A str16 is a u16 length and as many bytes of UTF-8. Everything is big-endian; a length of 0
means that the field is absent. The two error fields are written on every message in dialect
1.0, and on Error messages only in 1.1. They are read on Error messages; anything else after
the headers is ignored.

A payload is JSON: RFC 8259 in UTF-8, at most 64 arrays and objects deep. The size of numbers,
duplicate keys and lone surrogates in escapes are not judged. This module knows neither order
nor permission, nor what a payload means.
"""

import base64
import re
import struct
import unicodedata
from typing import Final

from braidmq.base import strict_json
from braidmq.wire.errors import MalformedPayloadError

CONNECT: Final = 0
CONNECT_ACK: Final = 1
DISCONNECT: Final = 2
PING: Final = 10
PONG: Final = 11
PUBLISH: Final = 20
PUBLISH_ACK: Final = 21
SUBSCRIBE: Final = 22
SUBSCRIBE_ACK: Final = 23
UNSUBSCRIBE: Final = 24
UNSUBSCRIBE_ACK: Final = 25
DELIVER: Final = 26
ACK: Final = 30
CREATE_QUEUE: Final = 40
DELETE_QUEUE: Final = 41
QUEUE_INFO: Final = 42
LIST_QUEUES: Final = 43
CREATE_USER: Final = 50
DELETE_USER: Final = 51
CHANGE_PASSWORD: Final = 52
GRANT_PERMISSION: Final = 53
REVOKE_PERMISSION: Final = 54
LIST_USERS: Final = 55
GET_USER_PERMISSIONS: Final = 56
ERROR: Final = 99

UNREAD: Final = -1
"""The type of a body whose beginning is too short to tell; no message has it."""

VERSION: Final = 1

HEADERS_MAX: Final = 100
"""Headers of one message; a repeated key counts each time."""

QUEUE_NAME_CHARS_MAX: Final = 256

TEXT_BYTES_MAX: Final = 2**16 - 1
"""A text's length travels as a u16."""

JSON_DEPTH_MAX: Final = 64
"""Arrays and objects around the innermost value of a payload."""

_ID_AT: Final = 4  # after version, type and the id's length
_SHORTEST: Final = 12  # every field absent: 1 + 1 + 2 + 2 + 4 + 2

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(
    ">B"  # version
    "B"  # type
    "H"  # length of the id
)
_NO_HEADERS: Final = bytes(2)
_NO_ERROR: Final = bytes(4)

QUEUE_NAME_PATTERN: Final = r"^[\p{L}\p{Nd}._-]*$"
"""The characters of queue names, as a pattern for JSON Schema; `is_queue_name` is faster."""

_ASCII_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Body:
    """One message. Absent texts and payloads are empty.

    `fault` says why the message must be refused although its layout is valid; else it is empty.
    """

    def __init__(self) -> None:
        self.version: int = VERSION
        self.type: int = ERROR
        self.id: str = ""
        self.queue: str = ""
        self.payload: bytes = b""
        self.headers: dict[str, str] = {}
        self.error_code: str = ""
        self.error_message: str = ""
        self.fault: str = ""


def read_body(data: bytes) -> Body:
    """Return the message that *data* holds, with or without error fields.

    Raises:
        MalformedPayloadError: A field reaches beyond the end, or a text is not UTF-8.
    """
    size = len(data)
    if size < _SHORTEST:
        raise MalformedPayloadError(f"a body of {size} bytes, the shortest has {_SHORTEST}")
    id_end = _ID_AT + (data[2] << 8 | data[3])
    queue_at = id_end + 2
    if size < queue_at:
        raise MalformedPayloadError("the body ends in its id")
    queue_end = queue_at + (data[id_end] << 8 | data[id_end + 1])
    payload_at = queue_end + 4
    if size < payload_at:
        raise MalformedPayloadError("the body ends in its queue")
    payload_end = payload_at + int.from_bytes(data[queue_end:payload_at], "big")
    if size < payload_end + 2:
        raise MalformedPayloadError("the body ends in its payload")
    body = Body()
    body.version = data[0]
    body.type = data[1]
    body.id = _text(data[_ID_AT:id_end])
    body.queue = _text(data[queue_at:queue_end])
    body.payload = data[payload_at:payload_end]
    header_count = data[payload_end] << 8 | data[payload_end + 1]
    if header_count > HEADERS_MAX:
        # They are not read: tens of thousands take long, and the message is refused anyway.
        body.fault = _fault(body, header_count)
        return body
    end = read_headers(data, payload_end, body.headers)
    if body.type == ERROR and size > end:
        body.error_code, end = _read_text(data, end)
        body.error_message, end = _read_text(data, end)
    # A fault is not raised: the layout is intact, so the connection can go on after a refusal.
    body.fault = _fault(body, header_count)
    return body


def read_headers(data: bytes, at: int, headers: dict[str, str]) -> int:
    """Read the headers at *at* into *headers*, the last of a repeated key; return their end.

    The caller judges how many there may be, and that no key is empty.

    Raises:
        MalformedPayloadError: They reach beyond the end, or a text is not UTF-8.
    """
    size = len(data)
    count = data[at] << 8 | data[at + 1]
    at += 2
    try:
        for _ in range(count):
            value_at = at + 4
            if size < value_at:
                raise MalformedPayloadError("the body ends in its headers")
            key_end = at + 2 + (data[at] << 8 | data[at + 1])
            value_at = key_end + 2
            if size < value_at:
                raise MalformedPayloadError("the body ends in a header's key")
            end = value_at + (data[key_end] << 8 | data[key_end + 1])
            if size < end:
                raise MalformedPayloadError("the body ends in a header's value")
            headers[data[at + 2 : key_end].decode()] = data[value_at:end].decode()
            at = end
    except UnicodeDecodeError:
        raise MalformedPayloadError("a header is not UTF-8") from None
    return at


def read_start(data: bytes) -> tuple[int, str, int]:
    """Return the type, the queue and the payload's size in the beginning of a body.

    The type is UNREAD if *data* ends before them; a queue that is not UTF-8 is "".
    """
    id_end = _ID_AT + int.from_bytes(data[2:_ID_AT], "big")
    queue_at = id_end + 2
    if len(data) < queue_at:
        return UNREAD, "", 0
    queue_end = queue_at + int.from_bytes(data[id_end:queue_at], "big")
    payload_at = queue_end + 4
    if len(data) < payload_at:
        return UNREAD, "", 0
    payload_bytes = int.from_bytes(data[queue_end:payload_at], "big")
    try:
        return data[1], data[queue_at:queue_end].decode(), payload_bytes
    except UnicodeDecodeError:
        return data[1], "", payload_bytes


def read_id(data: bytes) -> str:
    """Return the id of a body that may be malformed after it, or "" if the id is too."""
    id_end = _ID_AT + int.from_bytes(data[2:_ID_AT], "big")
    if len(data) < id_end:
        return ""
    try:
        return data[_ID_AT:id_end].decode()
    except UnicodeDecodeError:
        return ""


def write_body(
    kind: int,
    message_id: str,
    queue: str = "",
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    error_code: str = "",
    error_message: str = "",
    with_errors: bool,
) -> bytes:
    """Return the one encoding of a message, with or without the two error fields."""
    raw_id = message_id.encode()
    assert len(raw_id) <= TEXT_BYTES_MAX
    parts = [
        _HEAD.pack(VERSION, kind, len(raw_id)),
        raw_id,
        _packed(queue),
        _U32.pack(len(payload)),
        payload,
        encode_headers(headers) if headers else _NO_HEADERS,
    ]
    if not with_errors:
        assert not error_code
        assert not error_message
    elif error_code or error_message:
        parts.append(_packed(error_code))
        parts.append(_packed(error_message))
    else:
        parts.append(_NO_ERROR)
    return b"".join(parts)


def encode_headers(headers: dict[str, str]) -> bytes:
    """Return headers as a body holds them: their number, then each key and value."""
    parts = [_U16.pack(len(headers))]
    for key, value in headers.items():
        parts.append(_packed(key))
        parts.append(_packed(value))
    return b"".join(parts)


def is_queue_name(name: str) -> bool:
    """Tell whether *name* has 1 to 256 letters, decimal digits, hyphens, underscores, dots."""
    if not 0 < len(name) <= QUEUE_NAME_CHARS_MAX:
        return False
    # Nearly all names are ASCII, where one match decides; the others are judged by category.
    if name.isascii():
        return _ASCII_NAME.fullmatch(name) is not None
    for char in name:
        category = unicodedata.category(char)
        if category[0] != "L" and category != "Nd" and char not in "-_.":
            return False
    return True


def is_json(payload: bytes) -> bool:
    """Tell whether *payload* is one JSON text within JSON_DEPTH_MAX; an empty one is not."""
    return strict_json.is_json(payload) and not strict_json.is_deeper(payload, JSON_DEPTH_MAX)


def as_json(payload: bytes) -> tuple[bytes, bool]:
    """Return *payload* as a Vibe client can read it, and whether that took base64.

    JSON stays as it is, and an empty payload stays absent; other bytes become a JSON string.
    """
    if not payload or is_json(payload):
        return payload, False
    return b'"' + base64.b64encode(payload) + b'"', True


def read_decimal(text: str, digits_max: int) -> int:
    """Return the number that *text* holds in at most *digits_max* decimal digits, or -1."""
    if len(text) > digits_max or not (text.isascii() and text.isdigit()):
        return -1
    return int(text)


def _fault(body: Body, header_count: int) -> str:
    if body.version != VERSION:
        return f"unsupported version {body.version}"
    if not body.id:
        return "empty id"
    if header_count > HEADERS_MAX:
        return f"{header_count} headers, limit is {HEADERS_MAX}"
    if "" in body.headers:
        return "empty header key"
    return ""


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedPayloadError("a text is not UTF-8") from None


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    text_at = at + 2
    end = text_at + int.from_bytes(data[at:text_at], "big")
    if len(data) < text_at or len(data) < end:
        raise MalformedPayloadError("the body ends in its error fields")
    return _text(data[text_at:end]), end


def _packed(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) <= TEXT_BYTES_MAX
    packed: bytes = _U16.pack(len(raw))
    return packed + raw
