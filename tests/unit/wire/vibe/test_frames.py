"""Frames of the Vibe strand."""

import random
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError
from braidmq.wire.vibe import frames
from braidmq.wire.vibe.frames import (
    BROTLI,
    DIALECT_1_0,
    DIALECT_1_1,
    DIALECT_UNKNOWN,
    GZIP,
    RAW,
    FrameDecoder,
    encode,
)
from tests.unit.wire.vectors import vectors

VECTORS = vectors("vibe")
ROWS: list[dict[str, Any]] = VECTORS["messages"]
HEADER_BYTES = {DIALECT_1_0: 4, DIALECT_1_1: 5}
LARGE = b"\x01" + bytes(range(256)) * 8

dialects = st.sampled_from([DIALECT_1_0, DIALECT_1_1])
# A body starts with the version, and the bytes after it never look like the start of gzip.
bodies = st.binary(max_size=24).map(lambda rest: b"\x01\x14" + rest)
compressions = st.sampled_from([RAW, GZIP, BROTLI])


def decode(chunks: Iterable[bytes], body_max: int = frames.BODY_MAX) -> tuple[int, list[bytes]]:
    """Decode, asking for bodies after every chunk; return the dialect and the bodies."""
    decoder = FrameDecoder(body_max)
    received: list[bytes] = []
    for chunk in chunks:
        decoder.receive_data(chunk)
        while (body := decoder.next_body()) is not None:
            received.append(body)
    return decoder.dialect, received


def decoded_or_refused(
    chunks: Iterable[bytes], body_max: int = frames.BODY_MAX
) -> tuple[int, list[bytes]] | None:
    """Decode like :func:`decode`, but return None for a refusal."""
    try:
        return decode(chunks, body_max)
    except WireError:
        return None


def reference_decode(stream: bytes, body_max: int) -> tuple[int, list[bytes]] | None:
    """Decode raw frames as the specification says; return None if refused or compressed."""
    dialect = DIALECT_UNKNOWN
    received: list[bytes] = []
    while len(stream) >= 4:
        length = int.from_bytes(stream[:4], "big")
        if length == 0 or length > body_max:
            return None
        if len(stream) == 4:
            break
        if dialect == DIALECT_UNKNOWN:
            if stream[4] > 2:
                return None
            if stream[4] == 1 and stream[5:6] in {b"", b"\x1f"} and length > 1:
                if len(stream) < 7:
                    break
                dialect = DIALECT_1_1 if stream[5:7] == b"\x1f\x8b" else DIALECT_1_0
            else:
                dialect = DIALECT_1_0 if stream[4] == 1 else DIALECT_1_1
        start = HEADER_BYTES[dialect]
        if dialect == DIALECT_1_1 and stream[4] > 2:
            return None
        if len(stream) < start + length:
            break
        if dialect == DIALECT_1_1 and stream[4] > 0:
            return None
        received.append(stream[start : start + length])
        stream = stream[start + length :]
    return dialect, received


def one_byte_at_a_time(stream: bytes) -> list[bytes]:
    """Split *stream* as finely as TCP can."""
    return [bytes([byte]) for byte in stream]


def cut(stream: bytes, data: st.DataObject) -> list[bytes]:
    """Split *stream* at random offsets."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
@pytest.mark.parametrize(
    ("column", "dialect"),
    [
        ("dialect_1_0", DIALECT_1_0),
        ("dialect_1_0_short", DIALECT_1_0),
        ("dialect_1_1", DIALECT_1_1),
    ],
)
def test_golden_frames_both_ways(row: dict[str, Any], column: str, dialect: int) -> None:
    """Each golden frame reveals its dialect, decodes to its body, and equals our encoding."""
    wire = bytes.fromhex(row[column])
    body = wire[HEADER_BYTES[dialect] :]

    assert (dialect, [body]) == decode([wire])
    assert (dialect, [body]) == decode(one_byte_at_a_time(wire))
    assert wire == encode(dialect, body)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_golden_gzip_frames_are_read(row: dict[str, Any]) -> None:
    """A compressed first frame reveals dialect 1.1 and decodes to the raw body."""
    wire = bytes.fromhex(row["dialect_1_1_gzip"])
    body = bytes.fromhex(row["dialect_1_1"])[5:]

    assert (DIALECT_1_1, [body]) == decode([wire])
    assert (DIALECT_1_1, [body]) == decode(one_byte_at_a_time(wire))


@pytest.mark.parametrize("column", ["dialect_1_0", "dialect_1_1", "dialect_1_1_gzip"])
def test_all_golden_frames_in_one_segment_or_byte_by_byte(column: str) -> None:
    """Frames may arrive pipelined in one segment, or one byte per segment."""
    stream = b"".join(bytes.fromhex(row[column]) for row in ROWS)
    raw = column.removesuffix("_gzip")
    start = 4 if raw == "dialect_1_0" else 5
    expected = [bytes.fromhex(row[raw])[start:] for row in ROWS]

    assert expected == decode([stream])[1]
    assert expected == decode(one_byte_at_a_time(stream))[1]


@pytest.mark.parametrize(
    ("stream", "dialect"),
    [
        ("", DIALECT_UNKNOWN),
        ("0000000c", DIALECT_UNKNOWN),
        ("0000000c 00", DIALECT_1_1),
        ("0000000c 02", DIALECT_1_1),
        ("0000000c 01", DIALECT_UNKNOWN),
        ("0000000c 01 00", DIALECT_1_0),
        ("0000000c 01 1f", DIALECT_UNKNOWN),
        ("0000000c 01 1f 8a", DIALECT_1_0),
        ("0000000c 01 1f 8b", DIALECT_1_1),
        ("00000001 01", DIALECT_1_0),  # too short to be gzip: nothing to wait for
        ("00000002 01 1f", DIALECT_UNKNOWN),
    ],
)
def test_the_first_frame_reveals_the_dialect(stream: str, dialect: int) -> None:
    """By its fifth byte, or by the two after it, as soon as they arrive."""
    assert dialect == decode([bytes.fromhex(stream)])[0]
    assert dialect == decode(one_byte_at_a_time(bytes.fromhex(stream)))[0]


def test_the_dialect_holds_for_the_connection() -> None:
    """A later body of dialect 1.0 that looks compressed is still a plain body."""
    looks_packed = b"\x01\x1f\x8b" + bytes(9)
    stream = encode(DIALECT_1_0, b"\x01\x00") + encode(DIALECT_1_0, looks_packed)

    assert (DIALECT_1_0, [b"\x01\x00", looks_packed]) == decode([stream])


def test_raw_and_compressed_frames_may_alternate() -> None:
    """In dialect 1.1 each frame says how it is compressed."""
    stream = b"".join(encode(DIALECT_1_1, LARGE, how) for how in (RAW, BROTLI, GZIP, RAW))

    assert (DIALECT_1_1, [LARGE] * 4) == decode([stream])


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        ("00000000", MalformedFrameError, "length 0"),
        ("00100001", FrameTooLargeError, "1048577 bytes, limit is 1048576"),
        ("ffffffff", FrameTooLargeError, "4294967295 bytes"),
        ("80000000", FrameTooLargeError, "2147483648 bytes"),
        ("0000000c 03", MalformedFrameError, "0x03 as its fifth byte"),
        ("0000000c ff", MalformedFrameError, "0xff as its fifth byte"),
        ("00000002 00 0114 00000002 03", MalformedFrameError, "unknown flags 0x03"),
        ("00000002 00 0114 00000000", MalformedFrameError, "length 0"),
        ("00000002 0114 00100001", FrameTooLargeError, "1048577 bytes"),
    ],
)
def test_refuses_on_the_header_alone(header: str, error: type[WireError], message: str) -> None:
    """A bad header is refused as soon as its first invalid byte arrives, and not before."""
    wire = bytes.fromhex(header)

    with pytest.raises(error, match=message):
        decode([wire])
    assert decoded_or_refused([wire[:-1]]) is not None


def test_the_length_is_checked_before_the_dialect() -> None:
    """However much has arrived, a bad first length is refused before the dialect is known."""
    for wire in (bytes(4), bytes(5), bytes.fromhex("00000000 03"), bytes(7)):
        decoder = FrameDecoder()
        decoder.receive_data(wire)
        with pytest.raises(MalformedFrameError, match="length 0"):
            decoder.next_body()
        assert DIALECT_UNKNOWN == decoder.dialect


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ("00000002 01 1f8b", "gzip body is cut off"),
        ("0000000a 01 1f8bff00000000000203", "not gzip"),
        ("00000001 02 ff", "not brotli"),
        ("00000001 02 8b", "brotli body is cut off"),
        ("00000001 00 01 00000002 01 0000", "not gzip"),
    ],
)
def test_a_body_that_cannot_be_unpacked_ends_the_stream(wire: str, message: str) -> None:
    """Broken compression is refused like a broken header, on every call."""
    decoder = FrameDecoder()
    decoder.receive_data(bytes.fromhex(wire))
    with suppress(MalformedFrameError):
        decoder.next_body()

    for _ in range(2):
        with pytest.raises(MalformedFrameError, match=message):
            decoder.next_body()


def test_frames_before_a_bad_one_are_returned() -> None:
    """Even if they arrive in the same segment."""
    decoder = FrameDecoder()
    decoder.receive_data(encode(DIALECT_1_1, b"\x01\x0a") + bytes(4))

    assert b"\x01\x0a" == decoder.next_body()
    for _ in range(2):
        with pytest.raises(MalformedFrameError):
            decoder.next_body()


@pytest.mark.parametrize("dialect", [DIALECT_1_0, DIALECT_1_1])
def test_a_body_exactly_at_the_limit_is_legal(dialect: int) -> None:
    """One more byte is refused."""
    limit = frames.BODY_MAX_UNAUTHENTICATED
    body = b"\x01\x00" + bytes(limit - 2)

    assert (dialect, [body]) == decode([encode(dialect, body)], limit)
    with pytest.raises(FrameTooLargeError, match="4097 bytes, limit is 4096"):
        decode([encode(dialect, body + b"\x00")], limit)


@pytest.mark.parametrize("how", [GZIP, BROTLI])
def test_an_unpacked_body_has_the_limit_of_a_raw_one(how: int) -> None:
    """The limit applies before and after unpacking."""
    body = b"\x01\x00" + bytes(frames.BODY_MAX_UNAUTHENTICATED - 2)
    limit = frames.BODY_MAX_UNAUTHENTICATED

    assert (DIALECT_1_1, [body]) == decode([encode(DIALECT_1_1, body, how)], limit)
    with pytest.raises(FrameTooLargeError, match="limit is 4096"):
        decode([encode(DIALECT_1_1, body + b"\x00", how)], limit)


def test_a_raised_limit_applies_from_the_next_frame_on() -> None:
    """Even to a frame in the same segment as the Connect before it."""
    decoder = FrameDecoder(frames.BODY_MAX_UNAUTHENTICATED)
    large = b"\x01\x14" + bytes(frames.BODY_MAX_UNAUTHENTICATED)
    decoder.receive_data(encode(DIALECT_1_1, b"\x01\x00") + encode(DIALECT_1_1, large))

    assert b"\x01\x00" == decoder.next_body()
    decoder.body_max = frames.BODY_MAX
    assert large == decoder.next_body()


@pytest.mark.parametrize(("how", "magic"), [(GZIP, b"\x1f\x8b"), (BROTLI, b"")])
def test_long_bodies_are_compressed_if_that_makes_them_shorter(how: int, magic: bytes) -> None:
    """From 1 KiB on, only in dialect 1.1 and only if requested."""
    threshold = frames.COMPRESS_FROM_BYTES
    assert 1024 == threshold

    packed = encode(DIALECT_1_1, bytes(threshold), how)
    assert how == packed[4]
    assert packed[5:].startswith(magic)
    assert len(packed) - 5 == int.from_bytes(packed[:4], "big") < threshold
    assert RAW == encode(DIALECT_1_1, bytes(threshold - 1), how)[4]
    assert RAW == encode(DIALECT_1_1, bytes(threshold))[4]
    assert bytes(threshold) == encode(DIALECT_1_0, bytes(threshold), how)[4:]

    noise = random.Random(1).randbytes(2 * threshold)
    assert encode(DIALECT_1_1, noise) == encode(DIALECT_1_1, noise, how)


def test_a_peer_of_unknown_dialect_is_answered_in_1_1() -> None:
    """Released clients, which speak it, are more likely."""
    assert encode(DIALECT_1_1, b"\x01") == encode(DIALECT_UNKNOWN, b"\x01")


def test_held_bytes_are_those_of_incomplete_frames() -> None:
    """The driver uses the count to bound memory."""
    decoder = FrameDecoder()
    decoder.receive_data(encode(DIALECT_1_1, b"\x01\x0a") + b"\x00\x00")
    decoder.receive_data(b"\x00")
    decoder.next_body()

    assert 3 == decoder.held_bytes


def test_empty_chunks_change_nothing() -> None:
    """A transport may pass an empty chunk."""
    wire = encode(DIALECT_1_1, b"\x01\x0aab")

    assert (DIALECT_1_1, [b"\x01\x0aab"]) == decode([b"", wire[:6], b"", wire[6:], b""])


@given(st.lists(bodies, max_size=5), dialects, st.data())
def test_the_stream_may_be_split_anywhere(
    sent: list[bytes], dialect: int, data: st.DataObject
) -> None:
    """However TCP splits the stream, the same bodies come out."""
    stream = b"".join(encode(dialect, body) for body in sent)

    assert (dialect if sent else DIALECT_UNKNOWN, sent) == decode(cut(stream, data))


@given(st.lists(st.tuples(bodies, compressions), max_size=4), st.data())
def test_a_compressed_stream_may_be_split_anywhere(
    sent: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    """Compressed frames among raw ones, too."""
    stream = b"".join(encode(DIALECT_1_1, body * 600, how) for body, how in sent)

    assert [body * 600 for body, _ in sent] == decode(cut(stream, data))[1]


@given(st.lists(bodies, max_size=3), dialects, st.binary(max_size=40), st.integers(1, 64))
def test_the_reference_decoder_agrees_on_noise(
    sent: list[bytes], dialect: int, noise: bytes, body_max: int
) -> None:
    """Good frames, then noise: both decoders return the same bodies or both refuse."""
    stream = b"".join(encode(dialect, body) for body in sent) + noise
    expected = reference_decode(stream, body_max)
    if expected is None:  # refused, or compressed noise: whole and byte by byte must agree
        whole = decoded_or_refused([stream], body_max)
        assert whole == decoded_or_refused(one_byte_at_a_time(stream), body_max)
    else:
        assert expected == decoded_or_refused([stream], body_max)
        assert expected == decoded_or_refused(one_byte_at_a_time(stream), body_max)


@given(st.binary(max_size=64), st.sampled_from([b"", b"\x01\x1f\x8b\x08", b"\x02"]))
def test_noise_raises_documented_errors_only(noise: bytes, start: bytes) -> None:
    """For any bytes the decoder returns bodies or raises WireError."""
    framed = max(1, len(start + noise) - 1).to_bytes(4, "big") + start + noise
    for stream in (noise, framed):
        with suppress(WireError):
            decode([stream])


def test_a_body_that_its_reader_would_refuse_is_sent_raw() -> None:
    """Brotli can compress more than a server lets a body expand."""
    size = 512 * 1024
    frame = frames.encode(DIALECT_1_1, b"\x01" + bytes(size), BROTLI)
    decoder = FrameDecoder()
    decoder.bounds_ratio = True
    decoder.receive_data(frame)

    assert (RAW, size + 1) == (frame[4], len(decoder.next_body() or b""))
    assert GZIP == frames.encode(DIALECT_1_1, b"\x01" + bytes(size), GZIP)[4]


def test_a_body_that_expands_too_much_is_refused() -> None:
    """45 bytes must not cost what a megabyte costs; the error says what to do."""
    packed = brotli.compress(b"\x01\x14" + b" " * 1_000_000)
    assert len(packed) < 64
    for bounds_ratio in (False, True):
        decoder = FrameDecoder()
        decoder.bounds_ratio = bounds_ratio
        decoder.receive_data(len(packed).to_bytes(4, "big") + b"\x02" + packed)
        if bounds_ratio:
            with pytest.raises(MalformedFrameError, match="expands more than 1100 times; send"):
                decoder.next_body()
        else:
            assert 1_000_002 == len(decoder.next_body() or b"")
