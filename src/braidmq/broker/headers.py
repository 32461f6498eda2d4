"""Headers of a message, str to str, as one block of bytes.

    repeated: u16 key length | key | u16 value length | value     little-endian, UTF-8

An empty block is no headers. A block keeps the order in which it was written.
"""

import struct
from typing import Final

TEXT_BYTES_MAX: Final = 65_535
"""A key's or a value's length is a u16."""

MESSAGE_ID: Final = ""
"""The key under which a publisher's own id of a message is kept: one no publisher can send."""

CONTENT_ENCODING: Final = "contentEncoding"

_BROKERS: Final = frozenset({"deliveryAttempts", CONTENT_ENCODING})
_DEATH: Final = "death"
"""How every header begins that a dead letter has of its death."""

_U16: Final = struct.Struct("<H")


def is_brokers(key: str) -> bool:
    """Say whether only the broker may set this header."""
    return key in _BROKERS or key.startswith(_DEATH)


def encode(headers: dict[str, str]) -> bytes:
    """Return the block of *headers*."""
    parts: list[bytes] = []
    for key, value in headers.items():
        for text in (key, value):
            raw = text.encode()
            assert len(raw) <= TEXT_BYTES_MAX
            parts.append(_U16.pack(len(raw)))
            parts.append(raw)
    return b"".join(parts)


def decode(block: bytes) -> dict[str, str]:
    """Return the headers of a block that :func:`encode` made."""
    headers: dict[str, str] = {}
    at = 0
    while at < len(block):
        key, at = _text(block, at)
        value, at = _text(block, at)
        headers[key] = value
    return headers


def _text(block: bytes, at: int) -> tuple[str, int]:
    size: int = _U16.unpack_from(block, at)[0]
    start = at + _U16.size
    return block[start : start + size].decode(), start + size
