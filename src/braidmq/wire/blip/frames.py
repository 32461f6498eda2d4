"""Frames of the Blip strand: a byte stream, cut anywhere, becomes frames.

    0        4      5                13
    +--------+------+----------------+-------------+
    | length | type | correlation id | payload ... |   big-endian
    +--------+------+----------------+-------------+
      u32      u8     u64              length - 9 bytes

`length` counts the bytes after itself. This module does not know what a payload means.
Specification: docs/protocols/blip.md.
"""

import struct
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError

HELLO: Final = 0x01
AUTH: Final = 0x02
PUBLISH: Final = 0x03
SUBSCRIBE: Final = 0x04
ACK: Final = 0x05
NACK: Final = 0x06
PING: Final = 0x07
PONG: Final = 0x08
POLL: Final = 0x09
STATS: Final = 0x0A
UNSUBSCRIBE: Final = 0x0B
CREDIT: Final = 0x0C

_TYPE_MIN: Final = HELLO
_TYPE_MAX: Final = CREDIT

LENGTH_MIN: Final = 9
"""Type and correlation id: `length` counts them."""

LENGTH_MAX: Final = 16 * 1024 * 1024
"""The largest legal `length`, inclusive."""

LENGTH_MAX_UNAUTHENTICATED: Final = 4096
"""Before authentication a peer only needs to send HELLO and AUTH; hold no more for it."""

HEADER_BYTES: Final = 13
_LENGTH_BYTES: Final = 4
_TYPE_AT: Final = 4
_CORRELATION_AT: Final = 5
_U32_MASK: Final = 2**32 - 1  # librt reads signed integers; these fields are unsigned
_U64_MASK: Final = 2**64 - 1

assert LENGTH_MIN == HEADER_BYTES - _LENGTH_BYTES
assert LENGTH_MIN < LENGTH_MAX_UNAUTHENTICATED < LENGTH_MAX

_HEADER: Final = struct.Struct(
    ">I"  # length
    "B"  # type
    "Q"  # correlation id
)


def encode(frame_type: int, correlation_id: int, payload: bytes = b"") -> bytes:
    """Return the one encoding of a frame."""
    assert len(payload) <= LENGTH_MAX - LENGTH_MIN
    return _HEADER.pack(LENGTH_MIN + len(payload), frame_type, correlation_id) + payload


class FrameDecoder:
    """Cut a byte stream into frames; plain attributes describe the current one.

    `data[start:end]` is the payload of the frame that the last :meth:`advance` found. It is not
    copied out: the session reads the few bytes it needs in place.
    Once the decoder has raised, the framing is lost: close the connection.
    """

    def __init__(self, length_max: int = LENGTH_MAX) -> None:
        self.length_max: int = length_max
        self.correlation_id: int = 0
        self.data: bytes = b""
        self.start: int = 0
        self.end: int = 0
        self._chunks: list[
            bytes
        ] = []  # received after `data`, joined once they complete a frame
        self._held: int = 0  # bytes in data[end:] and in the chunks
        self._needed: int = _LENGTH_BYTES  # held bytes that the next decision needs

    @property
    def held_bytes(self) -> int:
        """Bytes received that are not yet part of a returned frame."""
        return self._held

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`advance` asks for it."""
        self._held += len(data)
        # Nothing is left of what came before: take the new bytes as they are, without a copy.
        if self.end == len(self.data) and not self._chunks:
            self.data = data
            self.end = 0
        else:
            self._chunks.append(data)

    def advance(self) -> int:
        """Step to the next whole frame and return its type, or 0 when more bytes are needed.

        Raises:
            MalformedFrameError: The length does not cover the header, or the type is unknown.
            FrameTooLargeError: The peer announced more than we will hold.
        """
        held = self._held
        if held < self._needed:
            return 0
        if self._chunks:
            self._join()
        data = self.data
        at = self.end
        if held < HEADER_BYTES:
            return self._judge_part(data, at)
        length: int = read_i32_be(data, at)
        if not LENGTH_MIN <= length <= self.length_max:
            self._judge_length(length & _U32_MASK)
        frame_type: int = data[at + _TYPE_AT]
        if not _TYPE_MIN <= frame_type <= _TYPE_MAX:
            raise MalformedFrameError(f"unknown frame type {frame_type:#04x}")
        size: int = _LENGTH_BYTES + length
        if held < size:
            self._needed = size
            return 0
        self._needed = _LENGTH_BYTES
        self._held = held - size
        self.start = at + HEADER_BYTES
        self.end = at + size
        correlation_id: int = read_i64_be(data, at + _CORRELATION_AT)
        if correlation_id < 0:
            correlation_id &= _U64_MASK
        self.correlation_id = correlation_id
        return frame_type

    def payload(self) -> bytes:
        """Return the current frame's payload."""
        return self.data[self.start : self.end]

    def _join(self) -> None:
        # Only called once the bytes suffice. Joining at each read would copy a large frame that
        # arrives in many reads over and over: quadratic work at a peer's command.
        rest = self.data[self.end :]
        self.data = b"".join([rest, *self._chunks])
        self.end = 0
        self._chunks = []

    def _judge_part(self, data: bytes, at: int) -> int:
        # Judge each header field as soon as its bytes are in. A peer that sends a bad length
        # and then nothing must not keep the connection open while we wait for the rest.
        self._judge_length(int.from_bytes(data[at : at + _LENGTH_BYTES], "big"))
        if self._held > _TYPE_AT and not _TYPE_MIN <= data[at + _TYPE_AT] <= _TYPE_MAX:
            raise MalformedFrameError(f"unknown frame type {data[at + _TYPE_AT]:#04x}")
        self._needed = _TYPE_AT + 1 if self._held <= _TYPE_AT else HEADER_BYTES
        return 0

    def _judge_length(self, length: int) -> None:
        if length < LENGTH_MIN:
            raise MalformedFrameError(f"length {length} does not cover type and correlation id")
        if length > self.length_max:
            raise FrameTooLargeError(length, self.length_max)
