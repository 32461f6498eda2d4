"""Frames of the Qumbed strand: a byte stream, cut anywhere, becomes JSON texts.

    0        4
    +--------+----------+
    | length | JSON ... |   big-endian
    +--------+----------+
      u32      length bytes

This module does not know whether the text is JSON, or what it says.
Specification: docs/protocols/qumbed.md.
"""

import struct
from typing import Final

from librt.strings import read_i32_be

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError

FRAME_MAX: Final = 1024 * 1024
"""The longest JSON text of a frame in bytes, without the length field."""

_LENGTH_BYTES: Final = 4
_U32_MASK: Final = 2**32 - 1  # librt reads signed integers; lengths are unsigned

_U32: Final = struct.Struct(">I")


def encode(payload: bytes) -> bytes:
    """Return the one frame that holds *payload*."""
    assert 0 < len(payload) <= FRAME_MAX
    return _U32.pack(len(payload)) + payload


class FrameDecoder:
    """Cut a byte stream into JSON texts.

    Once the decoder has raised, the framing is lost: close the stream.
    """

    def __init__(self, length_max: int = FRAME_MAX) -> None:
        self.length_max: int = length_max
        self._data: bytes = b""
        self._at: int = 0  # where in `_data` the next frame begins
        # Received after `_data`, and joined to it once it suffices. A list of chunks would cost
        # forty times its bytes if a peer sends them one by one.
        self._later: bytearray = bytearray()
        self._needed: int = _LENGTH_BYTES  # held bytes that the next decision needs

    @property
    def held_bytes(self) -> int:
        """Bytes received that are not yet part of a returned payload."""
        return len(self._data) - self._at + len(self._later)

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_payload` asks for it."""
        if self._data or self._later:
            self._later += data
        else:
            self._data = data

    def next_payload(self) -> bytes | None:
        """Return the JSON text of the next whole frame, or None when more bytes are needed.

        Raises:
            MalformedFrameError: The length is 0.
            FrameTooLargeError: The peer announced more than we will hold.
        """
        if self.held_bytes < self._needed:
            return None
        if self._later:
            # Only once the bytes suffice, so a large frame in many reads is joined once.
            self._data = self._data[self._at :] + bytes(self._later)
            self._at = 0
            self._later = bytearray()
        data = self._data
        at = self._at
        length: int = read_i32_be(data, at)
        if not 0 < length <= self.length_max:
            self._refuse(length & _U32_MASK)
        start: int = at + _LENGTH_BYTES
        end: int = start + length
        if len(data) < end:
            self._needed = _LENGTH_BYTES + length
            return None
        self._needed = _LENGTH_BYTES
        if end == len(data):
            self._data = b""  # an idle peer keeps nothing in memory
            self._at = 0
        else:
            self._at = end
        return data[start:end]

    def _refuse(self, length: int) -> None:
        if length == 0:
            raise MalformedFrameError("a frame of length 0")
        raise FrameTooLargeError(length, self.length_max)
