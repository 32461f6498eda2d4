"""Compressed bodies of the Vibe strand: compressed if that helps, decompressed within a bound.

A small frame can decompress to gigabytes, so the bound holds for memory as well as for the
result. The stream is decompressed chunk by chunk, and at most 256 KiB of chunks are kept until
the whole body is known to be within the bound; a longer one is then decompressed once more.
This module does not know which frames are compressed.

Time is bounded as well. The beginning of a body, which says what it is for, is decompressed
first, and a *judge* says how long such a body may be before the rest costs anything. And a body
may not expand to more than `RATIO_MAX` times its size, which gzip cannot do: some bytes of
brotli otherwise cost as much as a megabyte.

A brotli stream begins with the size of its window, 16 MiB at most, and the decoder allocates it
before it returns anything. A body within the bound cannot use more window than the bound, so a
wider window is narrowed before the decoder sees it:

    bits 3-0 of the first byte    0011  0101  0111  1001  1011  1101  1111
    window of 2^n bytes, n =        18    19    20    21    22    23    24   (RFC 7932, 9.1)
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import brotli

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError

CHUNK_BYTES: Final = 64 * 1024
"""What a decoder is asked for at a time; it may return some more."""

FIRST_CHUNK_BYTES: Final = 4 * 1024
"""The first chunk, for a judge: a body begins with its type, id and queue."""

RATIO_MAX: Final = 1100
"""How many times its size a body may expand to; gzip reaches 1,032."""

EXPANDED_FREE_BYTES: Final = 64 * 1024
"""A body may always expand to this much: it costs next to nothing."""

KEPT_BYTES_MAX: Final = 256 * 1024
"""Chunks beyond this are counted and dropped; a legal body is then decompressed again."""

_GZIP_WBITS: Final = 31  # zlib's code for a gzip header and the largest window
_FASTEST: Final = 1  # of both libraries: the broker's CPU matters more than the last per cent

_WINDOW_BITS_MIN: Final = 18  # the smallest that is written in four bits
_WINDOW_BITS_MAX: Final = 24
_WINDOW_BITS_OF_ZERO: Final = 17  # n minus the four bits shifted right by one
_UNREACHABLE_BYTES: Final = 16  # a window of 2^n bytes reaches back 2^n - 16
_NIBBLE: Final = 0x0F
_LONG_CODE: Final = 0b0001  # seven bits that say 17 or less

assert CHUNK_BYTES < KEPT_BYTES_MAX

UNDECIDED: Final = -1
"""What a judge says of a beginning that is too short; it is then asked about a longer one."""

Judge = Callable[[bytes], int]
"""Says by the beginning of a body how many bytes are wanted of it at most: 0 if none."""


class UnwantedBodyError(WireError):
    """The body is longer than its judge wants; `start` is the beginning that was judged."""

    def __init__(self, start: bytes) -> None:
        super().__init__("unwanted")
        self.start = start


def expanded_max(packed_bytes: int, size_max: int) -> int:
    """Return how long the content of a body of *packed_bytes* may be."""
    return min(size_max, max(EXPANDED_FREE_BYTES, RATIO_MAX * packed_bytes))


def _gunzipped(packed: bytes) -> Iterator[bytes]:
    """Yield the content of a gzip stream chunk by chunk; raise if the stream is broken."""
    stream = zlib.decompressobj(_GZIP_WBITS)
    wanted = FIRST_CHUNK_BYTES
    while not stream.eof:
        try:
            chunk = stream.decompress(packed, wanted)
        except zlib.error:
            raise MalformedFrameError("the body is not gzip") from None
        packed = stream.unconsumed_tail
        if not chunk and not stream.eof:
            raise MalformedFrameError("the gzip body is cut off")
        if stream.unused_data:
            raise MalformedFrameError("bytes follow the gzip body")
        wanted = CHUNK_BYTES
        yield chunk


def _unbrotlied(packed: bytes) -> Iterator[bytes]:
    """Yield the content of a brotli stream chunk by chunk; raise if the stream is broken."""
    stream = brotli.Decompressor()
    wanted = FIRST_CHUNK_BYTES
    while not stream.is_finished():
        try:
            chunk: bytes = stream.process(packed, output_buffer_limit=wanted)
        except brotli.error:
            raise MalformedFrameError("the body is not brotli") from None
        packed = b""  # all input was given; from here on the decoder is only asked for more
        if not chunk and not stream.is_finished():
            raise MalformedFrameError("the brotli body is cut off")
        wanted = CHUNK_BYTES
        yield chunk


def pack_gzip(body: bytes) -> bytes:
    """Return *body* compressed as a gzip stream."""
    return zlib.compress(body, _FASTEST, _GZIP_WBITS)


def pack_brotli(body: bytes) -> bytes:
    """Return *body* compressed as a brotli stream."""
    packed: bytes = brotli.compress(body, quality=_FASTEST)
    return packed


def unpack_gzip(packed: bytes, size_max: int, judge: Judge | None = None) -> bytes:
    """Return the content of a gzip stream.

    Raises:
        UnwantedBodyError: It is longer than the *judge* wants.
        MalformedFrameError: It is not a gzip stream, is cut off, or bytes follow it.
        FrameTooLargeError: It holds more than *size_max* bytes.
    """
    return _unpack(_gunzipped, packed, size_max, judge)


def unpack_brotli(packed: bytes, size_max: int, judge: Judge | None = None) -> bytes:
    """Return the content of a brotli stream.

    Raises:
        UnwantedBodyError: It is longer than the *judge* wants.
        MalformedFrameError: It is not a brotli stream, is cut off, or bytes follow it.
        FrameTooLargeError: It holds more than *size_max* bytes.
    """
    # The narrowest window that holds size_max bytes reaches back to all but the first 16. That
    # is enough for nearly every body, and costs half the memory of the next wider one. A body
    # that is longer than the reach may refer to those 16 bytes: decode it with the wider one.
    window_bits = max(_WINDOW_BITS_MIN, (size_max - 1).bit_length())
    reach = (1 << window_bits) - _UNREACHABLE_BYTES
    try:
        body = _unpack(_unbrotlied, _narrowed(packed, window_bits), size_max, judge)
    except MalformedFrameError:
        if reach >= size_max:
            raise
    else:
        if len(body) <= reach:
            return body
    return _unpack(_unbrotlied, _narrowed(packed, window_bits + 1), size_max, judge)


def _unpack(
    chunks_of: Callable[[bytes], Iterator[bytes]],
    packed: bytes,
    size_max: int,
    judge: Judge | None,
) -> bytes:
    size, chunks = _bounded(chunks_of(packed), size_max, KEPT_BYTES_MAX, judge)
    if size > KEPT_BYTES_MAX:
        _, chunks = _bounded(chunks_of(packed), size_max, size, None)
    return b"".join(chunks)


def _bounded(
    chunks: Iterator[bytes], size_max: int, kept_max: int, judge: Judge | None
) -> tuple[int, list[bytes]]:
    """Return the total size, and the chunks if that is at most *kept_max*."""
    size = 0
    kept: list[bytes] = []
    start = b""
    wanted_max = size_max
    for chunk in chunks:
        size += len(chunk)
        if judge is not None:
            start += chunk
            verdict = judge(start)
            if verdict != UNDECIDED:
                wanted_max = verdict
                judge = None
        if wanted_max < size_max and size > wanted_max:
            raise UnwantedBodyError(start)
        if size > size_max:
            raise FrameTooLargeError(size, size_max)
        if size <= kept_max:
            kept.append(chunk)
        else:
            kept.clear()  # only the size is of interest now; see `_unpack`
    return size, kept


def _narrowed(packed: bytes, window_bits: int) -> bytes:
    """Return *packed* with a window of 2^*window_bits* bytes if it declares a wider one."""
    code = packed[0] & _NIBBLE
    declared = (code >> 1) + _WINDOW_BITS_OF_ZERO
    if not code & 1 or code == _LONG_CODE or declared <= window_bits:
        return packed
    assert _WINDOW_BITS_MIN <= window_bits < _WINDOW_BITS_MAX
    narrow = (window_bits - _WINDOW_BITS_OF_ZERO) << 1 | 1
    return bytes([packed[0] & ~_NIBBLE | narrow]) + packed[1:]
