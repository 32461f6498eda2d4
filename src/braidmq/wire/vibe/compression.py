"""Compressed bodies of the Vibe strand: packed when that helps, unpacked within a bound.

The bound is kept while unpacking, for memory as well as for the result: what a peer packed
is taken out in pieces, and no more than a quarter of a mebibyte of them is held before it is
known that all of it is within the bound. Which frames are compressed is not known here.

A brotli stream begins with the size of the window that its decoder must keep, 16 MiB at
most, and the decoder fills it before it gives out anything. A body within the bound cannot
use more window than the bound, so a wider one is narrowed before the decoder sees it:

    bits 3-0 of the first byte    0011  0101  0111  1001  1011  1101  1111
    window of 2^n bytes, n =        18    19    20    21    22    23    24   (RFC 7932, 9.1)
"""

import zlib
from typing import Final

import brotli

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError

PIECE_BYTES: Final = 64 * 1024
"""What is asked of a decoder at a time; it may give some more."""

KEPT_BYTES_MAX: Final = 256 * 1024
"""Pieces beyond this are counted and dropped; a body that passes is unpacked once again."""

_GZIP_WBITS: Final = 31  # zlib's word for a gzip header and the largest window
_FASTEST: Final = 1  # of both: a broker's time is worth more than the last per cent

_WINDOW_BITS_MIN: Final = 18  # the smallest that is written in four bits
_WINDOW_BITS_MAX: Final = 24
_WINDOW_BITS_OF_ZERO: Final = 17  # n of the four bits shifted right by one, were they zero
_UNREACHABLE_BYTES: Final = 16  # a window of 2^n bytes reaches back 2^n - 16
_NIBBLE: Final = 0x0F
_LONG_CODE: Final = 0b0001  # seven bits that say 17 or less

assert PIECE_BYTES < KEPT_BYTES_MAX


class _Gunzip:
    """A gzip stream, given out piece by piece."""

    def __init__(self, packed: bytes) -> None:
        self._stream = zlib.decompressobj(_GZIP_WBITS)
        self._rest: bytes = packed

    def piece(self) -> bytes:
        """Return the next piece, or nothing at the end; raise when the stream is broken."""
        stream = self._stream
        piece = b""
        if not stream.eof:
            try:
                piece = stream.decompress(self._rest, PIECE_BYTES)
            except zlib.error:
                raise MalformedFrameError("the body is not gzip") from None
            self._rest = stream.unconsumed_tail
        if piece == b"" and not stream.eof:
            raise MalformedFrameError("the gzip body is cut off")
        if stream.unused_data:
            raise MalformedFrameError("bytes follow the gzip body")
        return piece


class _Unbrotli:
    """A brotli stream, given out piece by piece."""

    def __init__(self, packed: bytes) -> None:
        self._stream = brotli.Decompressor()
        self._rest: bytes = packed

    def piece(self) -> bytes:
        """Return the next piece, or nothing at the end; raise when the stream is broken."""
        if self._stream.is_finished():
            return b""
        try:
            piece: bytes = self._stream.process(self._rest, output_buffer_limit=PIECE_BYTES)
        except brotli.error:
            raise MalformedFrameError("the body is not brotli") from None
        self._rest = b""
        if piece == b"" and not self._stream.is_finished():
            raise MalformedFrameError("the brotli body is cut off")
        return piece


def pack_gzip(body: bytes) -> bytes:
    """Return *body* as a gzip stream."""
    return zlib.compress(body, _FASTEST, _GZIP_WBITS)


def pack_brotli(body: bytes) -> bytes:
    """Return *body* as a brotli stream."""
    packed: bytes = brotli.compress(body, quality=_FASTEST)
    return packed


def unpack_gzip(packed: bytes, size_max: int) -> bytes:
    """Return what a gzip stream holds.

    Raises:
        MalformedFrameError: It is no gzip stream, or one that is cut off or followed by more.
        FrameTooLargeError: It holds more than *size_max* bytes.
    """
    size, pieces = _pieces(_Gunzip(packed), size_max, KEPT_BYTES_MAX)
    if size > KEPT_BYTES_MAX:
        pieces = _pieces(_Gunzip(packed), size_max, size)[1]
    return b"".join(pieces)


def unpack_brotli(packed: bytes, size_max: int) -> bytes:
    """Return what a brotli stream holds.

    Raises:
        MalformedFrameError: It is no brotli stream, or one that is cut off or followed by more.
        FrameTooLargeError: It holds more than *size_max* bytes.
    """
    # The narrowest window that holds size_max bytes reaches all but the first 16 of them. That
    # is enough for nearly every body, and half of what the next window may cost.
    window_bits = max(_WINDOW_BITS_MIN, (size_max - 1).bit_length())
    reach = (1 << window_bits) - _UNREACHABLE_BYTES
    try:
        body = _unpack_brotli(_narrowed(packed, window_bits), size_max)
    except MalformedFrameError:
        if reach >= size_max:
            raise
    else:
        if len(body) <= reach:
            return body
    return _unpack_brotli(_narrowed(packed, window_bits + 1), size_max)


def _unpack_brotli(packed: bytes, size_max: int) -> bytes:
    size, pieces = _pieces(_Unbrotli(packed), size_max, KEPT_BYTES_MAX)
    if size > KEPT_BYTES_MAX:
        pieces = _pieces(_Unbrotli(packed), size_max, size)[1]
    return b"".join(pieces)


def _pieces(
    stream: _Gunzip | _Unbrotli, size_max: int, kept_max: int
) -> tuple[int, list[bytes]]:
    """Return the size of all pieces, and the pieces when that is *kept_max* at most."""
    size = 0
    kept: list[bytes] = []
    while piece := stream.piece():
        size += len(piece)
        if size > size_max:
            raise FrameTooLargeError(size, size_max)
        if size <= kept_max:
            kept.append(piece)
        else:
            kept.clear()
    return size, kept


def _narrowed(packed: bytes, window_bits: int) -> bytes:
    """Return *packed* with a window of 2^*window_bits* bytes when it declares a wider one."""
    code = packed[0] & _NIBBLE
    declared = (code >> 1) + _WINDOW_BITS_OF_ZERO
    if not code & 1 or code == _LONG_CODE or declared <= window_bits:
        return packed
    assert _WINDOW_BITS_MIN <= window_bits < _WINDOW_BITS_MAX
    narrow = (window_bits - _WINDOW_BITS_OF_ZERO) << 1 | 1
    return bytes([packed[0] & ~_NIBBLE | narrow]) + packed[1:]
