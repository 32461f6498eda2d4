"""Frames of the Blip strand."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.blip import frames
from braidmq.wire.blip.frames import FrameDecoder, encode
from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError
from tests.unit.wire.vectors import vectors

VECTORS = vectors("blip")
GOLDEN = {
    row["name"]: (row["type"], row["cid"], bytes.fromhex(row["hex"]))
    for row in VECTORS["frames"]
}
CLOSING = {row["name"]: bytes.fromhex(row["hex"]) for row in VECTORS["close_without_reply"]}
BEFORE_AUTHENTICATION = "before authentication: length 4,097"

Decoded = tuple[int, int, bytes]

decoded_frames = st.tuples(
    st.integers(frames.HELLO, frames.CREDIT),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=24),
)


def decode(chunks: Iterable[bytes], length_max: int = frames.LENGTH_MAX) -> list[Decoded]:
    """Decode with the decoder under test, asking for frames after every chunk."""
    decoder = FrameDecoder(length_max)
    received: list[Decoded] = []
    for chunk in chunks:
        decoder.receive_data(chunk)
        while kind := decoder.advance():
            received.append((kind, decoder.correlation_id, decoder.payload()))
    return received


def reference_decode(
    stream: bytes, length_max: int = frames.LENGTH_MAX
) -> list[Decoded] | None:
    """Decode as the specification says; return None if the stream must be refused."""
    received: list[Decoded] = []
    while True:
        if len(stream) < 4:
            return received
        length = int.from_bytes(stream[:4], "big")
        if length < 9 or length > length_max:
            return None
        if len(stream) > 4 and stream[4] not in range(1, 13):
            return None
        if len(stream) < 4 + length:
            return received
        kind, correlation_id = stream[4], int.from_bytes(stream[5:13], "big")
        received.append((kind, correlation_id, stream[13 : 4 + length]))
        stream = stream[4 + length :]


def decoded_or_refused(
    chunks: Iterable[bytes], length_max: int = frames.LENGTH_MAX
) -> list[Decoded] | None:
    """Decode like :func:`decode`, but return None for a refusal."""
    try:
        return decode(chunks, length_max)
    except WireError:
        return None


def one_byte_at_a_time(stream: bytes) -> list[bytes]:
    """Split *stream* as finely as TCP can."""
    return [bytes([byte]) for byte in stream]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    """The golden bytes decode to the frame, and the frame encodes to them."""
    kind, correlation_id, wire = GOLDEN[name]

    assert [(kind, correlation_id, wire[13:])] == decode([wire])
    assert wire == encode(kind, correlation_id, wire[13:])
    assert [(kind, correlation_id, wire[13:])] == reference_decode(wire)


def test_all_golden_frames_in_one_segment_or_byte_by_byte() -> None:
    """Frames may arrive pipelined in one segment, or one byte per segment."""
    stream = b"".join(wire for _, _, wire in GOLDEN.values())
    expected = [(kind, cid, wire[13:]) for kind, cid, wire in GOLDEN.values()]

    assert expected == decode([stream])
    assert expected == decode(one_byte_at_a_time(stream))


@pytest.mark.parametrize("name", [name for name in CLOSING if name != BEFORE_AUTHENTICATION])
def test_golden_bytes_that_close_the_connection(name: str) -> None:
    """They are refused whole and byte by byte."""
    wire = CLOSING[name]

    assert reference_decode(wire) is None
    assert decoded_or_refused([wire]) is None
    assert decoded_or_refused(one_byte_at_a_time(wire)) is None


def test_an_unauthenticated_peer_may_announce_at_most_4096_bytes() -> None:
    """The lower limit is checked on the same four bytes."""
    limit = frames.LENGTH_MAX_UNAUTHENTICATED
    wire = CLOSING[BEFORE_AUTHENTICATION]

    assert [] == decode([(4096).to_bytes(4, "big")], limit)
    with pytest.raises(FrameTooLargeError, match=r"4097 bytes, limit is 4096"):
        decode([wire], limit)
    assert [] == decode([wire])


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        ("00000000", MalformedFrameError, "length 0 does not cover"),
        ("00000008", MalformedFrameError, "length 8 does not cover"),
        ("01000001", FrameTooLargeError, "16777217 bytes, limit is 16777216"),
        ("ffffffff", FrameTooLargeError, "4294967295 bytes"),
        ("00000009 00", MalformedFrameError, "unknown frame type 0x00"),
        ("00000009 0d", MalformedFrameError, "unknown frame type 0x0d"),
        ("00000009 ff", MalformedFrameError, "unknown frame type 0xff"),
        ("00000009 0d 0000000000000001", MalformedFrameError, "unknown frame type 0x0d"),
        ("00000008 0d", MalformedFrameError, "length 8"),  # the length is checked first
    ],
)
def test_refuses_on_the_header_alone(header: str, error: type[WireError], message: str) -> None:
    """A bad header is refused as soon as its first invalid byte has arrived."""
    with pytest.raises(error, match=message):
        decode([bytes.fromhex(header)])


@pytest.mark.parametrize("header", ["00000000", "01000001", "000000090d"])
def test_nothing_is_refused_before_the_first_invalid_byte(header: str) -> None:
    """Without its last byte each of these may still become a good frame."""
    assert [] == decode([bytes.fromhex(header)[:-1]])


def test_a_refused_stream_stays_refused() -> None:
    """Once the framing is lost, asking again gives the same answer."""
    decoder = FrameDecoder()
    decoder.receive_data(bytes(4))
    for _ in range(2):
        with pytest.raises(MalformedFrameError):
            decoder.advance()


def test_frames_before_a_bad_one_are_returned() -> None:
    """Even if they arrive in the same segment."""
    decoder = FrameDecoder()
    decoder.receive_data(encode(frames.PING, 7) + bytes(4))

    assert frames.PING == decoder.advance()
    assert 7 == decoder.correlation_id
    with pytest.raises(MalformedFrameError):
        decoder.advance()


def test_a_frame_exactly_at_the_limit_is_legal() -> None:
    """16 MiB is the largest length, itself included."""
    payload = bytes(frames.LENGTH_MAX - frames.LENGTH_MIN)
    wire = encode(frames.PUBLISH, 1, payload)

    assert (16 * 1024 * 1024).to_bytes(4, "big") == wire[:4]
    assert [(frames.PUBLISH, 1, payload)] == decode([wire[:100_000], wire[100_000:]])


def test_encoding_a_frame_above_the_limit_fails_an_assertion() -> None:
    """We never encode a frame that a peer would have to refuse."""
    with pytest.raises(AssertionError):
        encode(frames.PUBLISH, 1, bytes(frames.LENGTH_MAX - frames.LENGTH_MIN + 1))


def test_the_smallest_frame_has_no_payload() -> None:
    """Length 9 covers type and correlation id and nothing else."""
    assert bytes.fromhex("00000009 07 0000000000000001") == encode(frames.PING, 1)
    assert [(frames.PING, 1, b"")] == decode([encode(frames.PING, 1)])


def test_held_bytes_are_those_of_incomplete_frames() -> None:
    """The driver uses the count to bound memory."""
    decoder = FrameDecoder()
    decoder.receive_data(encode(frames.PING, 1) + b"\x00\x00")
    decoder.receive_data(b"\x00")
    decoder.advance()

    assert 3 == decoder.held_bytes


def test_empty_chunks_change_nothing() -> None:
    """A transport may pass an empty chunk."""
    wire = encode(frames.PING, 1, b"ab")

    assert [(frames.PING, 1, b"ab")] == decode([b"", wire[:6], b"", wire[6:], b""])


@given(st.lists(decoded_frames, max_size=5), st.data())
def test_the_stream_may_be_split_anywhere(sent: list[Decoded], data: st.DataObject) -> None:
    """However TCP splits the stream, the same frames come out."""
    stream = b"".join(encode(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]

    assert sent == decode(chunks)
    assert sent == reference_decode(stream)


@given(st.lists(decoded_frames, max_size=3), st.binary(max_size=40), st.integers(9, 64))
def test_the_reference_decoder_agrees_on_noise(
    sent: list[Decoded], noise: bytes, length_max: int
) -> None:
    """Good frames, then noise: both decoders return the same frames or both refuse."""
    stream = b"".join(encode(*frame) for frame in sent) + noise
    expected = reference_decode(stream, length_max)

    assert expected == decoded_or_refused([stream], length_max)
    assert expected == decoded_or_refused(one_byte_at_a_time(stream), length_max)


@given(st.binary(max_size=64))
def test_noise_raises_documented_errors_only(noise: bytes) -> None:
    """For any bytes the decoder returns frames or raises WireError."""
    with suppress(WireError):
        decode([noise])
