"""Envelopes, version 2: what a box does not protect by itself, sealed in with the payload.

Inside the box:

    0      1        33         41             49              51
    +------+--------+----------+--------------+---------------+-------+
    | 0xc1 | sender | sequence | timestamp ms | topic length  | topic |
    +------+--------+----------+--------------+---------------+-------+
    | schema length | schema id | payload ...                         |
    +---------------+-----------+-------------------------------------+

    sender          32 bytes, the public key that sealed it
    sequence        u64, increases with each message of that sender
    timestamp       u64, milliseconds of Unix time by the sender's clock
    lengths         u16, of the UTF-8 text that follows; all numbers are big-endian

The first byte marks it: neither JSON nor UTF-8 text starts with 0xc1. This module only reads
and writes the bytes. The receiver decides whether sender, topic and schema are those of the
message, and whether it is a replay.
"""

import struct
from typing import Final, NamedTuple

from braidmq.base.errors import BraidError
from braidmq.wire.qumbed.public_keys import PUBLIC_KEY_BYTES

MARK: Final = 0xC1

_HEAD: Final = struct.Struct(
    ">B"  # mark
    f"{PUBLIC_KEY_BYTES}s"  # sender
    "Q"  # sequence
    "Q"  # timestamp ms
)
_LENGTH: Final = struct.Struct(">H")


class TruncatedEnvelopeError(BraidError):
    """A plaintext has the mark of an envelope, and ends before its payload starts."""

    def __init__(self) -> None:
        super().__init__("the envelope is truncated")


class Envelope(NamedTuple):
    """The content of an envelope; topic and schema id are not checked to be UTF-8."""

    sender: bytes
    sequence: int
    timestamp_ms: int
    topic: bytes
    schema_id: bytes
    payload: bytes

    def __repr__(self) -> str:
        return f"Envelope({self.sequence})"  # without the payload: this may be logged


def write_envelope(envelope: Envelope) -> bytes:
    """Return the bytes to seal."""
    return b"".join(
        (
            _HEAD.pack(MARK, envelope.sender, envelope.sequence, envelope.timestamp_ms),
            _LENGTH.pack(len(envelope.topic)),
            envelope.topic,
            _LENGTH.pack(len(envelope.schema_id)),
            envelope.schema_id,
            envelope.payload,
        )
    )


def read_envelope(plaintext: bytes) -> Envelope | None:
    """Return the envelope that was in a box, or None if the box held a bare payload.

    Raises:
        TruncatedEnvelopeError: It has the mark, and ends too early.
    """
    if not plaintext or plaintext[0] != MARK:
        return None
    if len(plaintext) < _HEAD.size:
        raise TruncatedEnvelopeError
    _, sender, sequence, timestamp_ms = _HEAD.unpack_from(plaintext)
    topic, at = _read_text(plaintext, _HEAD.size)
    schema_id, at = _read_text(plaintext, at)
    return Envelope(sender, sequence, timestamp_ms, topic, schema_id, plaintext[at:])


def _read_text(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + _LENGTH.size
    end = start + int.from_bytes(data[at:start], "big")
    # If the length itself is cut off, `start` is beyond the end already.
    if end > len(data):
        raise TruncatedEnvelopeError
    return data[start:end], end
