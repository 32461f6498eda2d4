"""Frames of the Vibe strand: a byte stream, cut anywhere, becomes bodies.

    dialect 1.0                        dialect 1.1
    0        4                         0        4       5
    +--------+----------+              +--------+-------+----------+
    | length | body ... |              | length | flags | body ... |   big-endian
    +--------+----------+              +--------+-------+----------+
      u32      length bytes              u32      u8      length bytes

Flags are 0 raw, 1 gzip, 2 brotli. The fifth byte of the first frame tells which dialect a
connection speaks: 0 and 2 are flags; 1 is the gzip flag if a gzip stream (1f 8b) follows, else
the version byte that starts a body. This module does not know what a body means.
Specification: docs/protocols/vibe.md.
"""

import struct
from typing import Final

from librt.strings import read_i32_be

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError
from braidmq.wire.vibe import compression as packing

DIALECT_UNKNOWN: Final = 0
DIALECT_1_0: Final = 1
DIALECT_1_1: Final = 2

RAW: Final = 0
GZIP: Final = 1
BROTLI: Final = 2

BODY_MAX: Final = 1024 * 1024
"""The largest body, compressed or not, unless the configuration says otherwise."""

BODY_MAX_UNAUTHENTICATED: Final = 4096
"""Before Connect a peer only needs to send Connect and Ping; hold no more for it."""

COMPRESS_FROM_BYTES: Final = 1024
"""Shorter bodies are never compressed."""

_LENGTH_BYTES: Final = 4
_FIFTH_AT: Final = 4  # flags; in dialect 1.0, the body's first byte
_GZIP_MAGIC: Final = b"\x1f\x8b"
_VERSION: Final = 1  # the body's first byte, as far as it tells the dialects apart
_U32_MASK: Final = 2**32 - 1  # librt reads signed integers; lengths are unsigned

_U32: Final = struct.Struct(">I")
_HEADER_1_1: Final = struct.Struct(
    ">I"  # length
    "B"  # flags
)

assert BODY_MAX_UNAUTHENTICATED < BODY_MAX
assert GZIP == _VERSION  # why the fifth byte alone cannot tell the dialects apart


def encode(dialect: int, body: bytes, compression: int = RAW) -> bytes:
    """Return a frame, compressed if that is allowed, worth trying, and shorter.

    A peer whose dialect is unknown is answered in 1.1.
    """
    if dialect == DIALECT_1_0:
        return _U32.pack(len(body)) + body
    flags = RAW
    if compression != RAW and len(body) >= COMPRESS_FROM_BYTES:
        packed = packing.pack_gzip(body) if compression == GZIP else packing.pack_brotli(body)
        # A body that expands too much is refused by its reader.
        size = len(packed)
        if size < len(body) == packing.expanded_max(size, len(body)):
            flags = compression
            body = packed
    return _HEADER_1_1.pack(len(body), flags) + body


class FrameDecoder:
    """Cut a byte stream into bodies, and decompress those that need it.

    Once the decoder has raised, the framing is lost: close the connection.
    """

    def __init__(self, body_max: int = BODY_MAX) -> None:
        self.body_max: int = body_max
        self.dialect: int = DIALECT_UNKNOWN
        self._data: bytes = b""
        self._at: int = 0  # where in `_data` the next frame begins
        self._chunks: list[bytes] = []  # received after `_data`, joined once they suffice
        self._held: int = 0  # bytes in _data[_at:] and in the chunks
        self._needed: int = _LENGTH_BYTES  # held bytes that the next decision needs
        self.judge: packing.Judge | None = None  # of compressed bodies, by their beginning
        self.bounds_ratio: bool = False  # a compressed body may expand only so much
        self.is_unwanted: bool = False  # the last body is its beginning: the judge said no
        self.unpacked_bytes: int = 0  # of all bodies that were compressed, unwanted ones too

    @property
    def held_bytes(self) -> int:
        """Bytes received that are not yet part of a returned body."""
        return self._held

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_body` asks for it."""
        self._held += len(data)
        if self._at == len(self._data) and not self._chunks:
            self._data = data
            self._at = 0
        else:
            self._chunks.append(data)

    def next_body(self) -> bytes | None:
        """Return the next whole body, decompressed, or None if more bytes are needed.

        Raises:
            MalformedFrameError: The length is 0, the flags are unknown, the first frame is of
                no dialect, or a compressed body is broken.
            FrameTooLargeError: The announced or decompressed body is longer than the limit.
        """
        held = self._held
        if held < self._needed:
            return None
        if self._chunks:
            self._join()
        data = self._data
        at = self._at
        length: int = read_i32_be(data, at)
        if not 0 < length <= self.body_max:
            self._refuse_length(length & _U32_MASK)
        # The length was judged above, before its body is awaited. The fifth byte comes next: it
        # may be the flags, which are judged early for the same reason.
        if held == _LENGTH_BYTES:
            self._needed = _FIFTH_AT + 1
            return None
        if self.dialect == DIALECT_UNKNOWN and not self._decide(length):
            return None
        flags = RAW
        start = at + _LENGTH_BYTES
        if self.dialect == DIALECT_1_1:
            flags = data[start]
            if flags > BROTLI:
                raise MalformedFrameError(f"unknown flags {flags:#04x}")
            start += 1
        end: int = start + length
        if len(data) < end:
            self._needed = end - at
            return None
        body = data[start:end]
        if flags != RAW:
            body = self._unpack(flags, body)
            self.unpacked_bytes += len(body)
        self._needed = _LENGTH_BYTES
        self._held = held - (end - at)
        self._at = end
        return body

    def _join(self) -> None:
        # Only called once the bytes suffice, so a large frame in many reads is joined once.
        rest = self._data[self._at :]
        self._data = b"".join([rest, *self._chunks])
        self._at = 0
        self._chunks = []

    def _refuse_length(self, length: int) -> None:
        if length == 0:
            raise MalformedFrameError("a frame of length 0")
        raise FrameTooLargeError(length, self.body_max)

    def _decide(self, length: int) -> bool:
        """Decide the dialect by the first frame; return False if that takes more bytes."""
        at = self._at + _FIFTH_AT
        first = self._data[at]
        if first in {RAW, BROTLI}:
            self.dialect = DIALECT_1_1
        elif first != _VERSION:
            raise MalformedFrameError(f"a first frame with {first:#04x} as its fifth byte")
        else:
            # In a 1.0 body the next two bytes are its type and half of its id's length. No type
            # is 0x1f, so the gzip magic is unambiguous.
            follows = self._data[at + 1 : at + 1 + len(_GZIP_MAGIC)]
            if length < len(_GZIP_MAGIC) or not _GZIP_MAGIC.startswith(follows):
                self.dialect = DIALECT_1_0
            elif follows == _GZIP_MAGIC:
                self.dialect = DIALECT_1_1
            else:
                self._needed = self._held + 1  # so far it is the start of the magic
        return self.dialect != DIALECT_UNKNOWN

    def _unpack(self, flags: int, packed: bytes) -> bytes:
        size_max = self.body_max
        if self.bounds_ratio:
            size_max = packing.expanded_max(len(packed), size_max)
        try:
            if flags == GZIP:
                return packing.unpack_gzip(packed, size_max, self.judge)
            return packing.unpack_brotli(packed, size_max, self.judge)
        except packing.UnwantedBodyError as unwanted:
            self.is_unwanted = True
            return unwanted.start
        except FrameTooLargeError:
            if size_max == self.body_max:
                raise
            raise MalformedFrameError(
                f"a body of {len(packed)} bytes expands more than {packing.RATIO_MAX} times; "
                "send it uncompressed"
            ) from None
