"""Frames of the Qumbed strand."""

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError
from braidmq.wire.qumbed.frames import FRAME_MAX, FrameDecoder, encode
from tests.unit.wire.vectors import vectors

VECTORS = vectors("qumbed")
LIMIT = 16


def decode(chunks: Iterable[bytes], length_max: int = LIMIT) -> list[bytes]:
    """Decode with the decoder under test, asking for payloads after every chunk."""
    decoder = FrameDecoder(length_max)
    received: list[bytes] = []
    for chunk in chunks:
        decoder.receive_data(chunk)
        while (payload := decoder.next_payload()) is not None:
            received.append(payload)
    return received


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Split a stream at these offsets."""
    edges = [0, *sorted(min(cut_at, len(stream)) for cut_at in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("row", VECTORS["frames"], ids=lambda row: row["name"])
def test_golden_bytes(row: dict[str, Any]) -> None:
    """The golden frames hold exactly their compact JSON."""
    wire = bytes.fromhex(row["hex"])
    text = json.dumps(row["json"], separators=(",", ":")).encode()

    assert [text] == decode([wire], FRAME_MAX)
    assert wire == encode(text)


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        ("00000000", MalformedFrameError, "length 0"),
        ("00000011", FrameTooLargeError, "frame of 17 bytes, limit is 16"),
        ("7fffffff", FrameTooLargeError, "frame of 2147483647 bytes, limit is 16"),
        ("80000000", FrameTooLargeError, "frame of 2147483648 bytes, limit is 16"),
        ("ffffffff", FrameTooLargeError, "frame of 4294967295 bytes, limit is 16"),
    ],
)
def test_a_bad_length_is_refused_before_any_payload_arrives(
    header: str, error: type[WireError], text: str
) -> None:
    """Making the server wait for a huge frame is the attack."""
    with pytest.raises(error, match=text):
        decode([bytes.fromhex(header)])


def test_the_largest_frame_is_a_mebibyte() -> None:
    """One more byte is refused by its length alone."""
    largest = b"x" * FRAME_MAX

    assert 1_048_576 == FRAME_MAX
    assert [largest] == decode([encode(largest)], FRAME_MAX)
    with pytest.raises(FrameTooLargeError):
        decode([(FRAME_MAX + 1).to_bytes(4, "big")], FRAME_MAX)


@given(
    st.lists(st.binary(min_size=1, max_size=LIMIT), max_size=6),
    st.binary(max_size=3),
    st.lists(st.integers(0, 150), max_size=8),
)
def test_the_stream_may_be_split_anywhere(
    payloads: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    """Neither the split nor an incomplete rest changes the payloads."""
    stream = b"".join(map(encode, payloads)) + rest

    assert payloads == decode(cut(stream, cuts))
    assert payloads == decode([stream])


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=5))
def test_noise_raises_only_wire_errors(noise: bytes, cuts: list[int]) -> None:
    """Any bytes give payloads, wait for more, or raise a documented error."""
    with suppress(WireError):
        decode(cut(noise, cuts))


@given(
    st.lists(st.binary(min_size=1, max_size=LIMIT), min_size=1, max_size=4),
    st.lists(st.integers(0, 80), max_size=5),
)
def test_held_bytes_are_those_not_yet_returned(payloads: list[bytes], cuts: list[int]) -> None:
    """Bytes received minus bytes returned, after every step."""
    decoder = FrameDecoder(LIMIT)
    received = returned = 0
    for chunk in cut(b"".join(map(encode, payloads)), cuts):
        decoder.receive_data(chunk)
        received += len(chunk)
        while (payload := decoder.next_payload()) is not None:
            returned += 4 + len(payload)
            assert received - returned == decoder.held_bytes

        assert received - returned == decoder.held_bytes


def test_a_large_frame_may_arrive_byte_by_byte() -> None:
    """The decoder returns it complete."""
    payload = bytes(range(256)) * 400

    assert [payload] == decode((bytes([byte]) for byte in encode(payload)), FRAME_MAX)
