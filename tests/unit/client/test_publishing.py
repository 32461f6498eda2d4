"""Strand-neutral publishing: payload checks and chunks."""

import pytest

from braidmq.client.blip.publishing import BlipPosting
from braidmq.client.errors import InvalidArgument, NotSent, PublishFailed, PublishRefused
from braidmq.client.publishing import (
    CHUNK_BYTES,
    CHUNK_COUNT,
    check_topic,
    chunks,
    payload_bytes,
    refused,
    utf8,
)
from braidmq.client.replies import Refusal


def test_payloads_are_bytes_or_bytes_like() -> None:
    """A bytes-like payload is copied, so that later changes do not reach the wire."""
    changing = bytearray(b"one")
    payload = payload_bytes(changing)
    changing[:] = b"two"

    assert b"one" == payload
    assert b"one" == payload_bytes(memoryview(b"one"))


@pytest.mark.parametrize("payload", ["text", 5, None, {"n": 1}])
def test_a_payload_that_is_not_bytes_like_is_refused(payload: object) -> None:
    """Text has no single encoding, and `bytes(5)` would be five zero bytes."""
    with pytest.raises(InvalidArgument, match="a payload is bytes, not"):
        payload_bytes(payload)  # type: ignore[arg-type] # the mistake under test


def test_chunks_are_bounded_in_number_and_bytes() -> None:
    """Many small messages, or a few large ones, share a write."""
    small = [b"x"] * (CHUNK_COUNT + 1)
    large = [bytes(CHUNK_BYTES // 2)] * 3

    assert [CHUNK_COUNT, 1] == [len(chunk) for chunk in chunks(BlipPosting("t", 1), small)]
    assert [2, 1] == [len(chunk) for chunk in chunks(BlipPosting("t", 1), large)]
    assert [] == list(chunks(BlipPosting("t", 1), []))


def test_chunks_read_the_messages_lazily() -> None:
    """A long generator of messages is never held in memory as a whole."""
    numbers = iter(range(10 * CHUNK_COUNT))
    next(chunks(BlipPosting("t", 1), (b"%d" % number for number in numbers)))

    assert CHUNK_COUNT == next(numbers)


def test_a_message_that_cannot_be_sent_keeps_its_place() -> None:
    """The messages around it are sent."""
    payloads = [b"1", "2", b"3"]
    (chunk,) = chunks(BlipPosting("t", 1), payloads)  # type: ignore[arg-type] # the mistake under test

    assert [b"1", b"3"] == [chunk[0], chunk[2]]
    assert isinstance(chunk[1], NotSent)


def test_a_server_error_leaves_the_outcome_open() -> None:
    """All other codes mean that the message is not stored; Blip's codes are numbers."""
    assert PublishFailed is type(refused(Refusal(500, "disk"), "t"))
    assert PublishRefused is type(refused(Refusal(403, "forbidden"), "t"))
    assert PublishFailed is type(refused(Refusal("SERVER_ERROR", "disk"), "t"))
    assert PublishRefused is type(refused(Refusal("AUTH_FAILED", "not allowed"), "t"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\ud800", "a name is text without lone surrogates"),
        ("éé", "a name has at most 3 bytes, not 4"),
    ],
)
def test_text_that_cannot_be_sent_is_refused(text: str, problem: str) -> None:
    """The error names the text and says what is wrong with it."""
    with pytest.raises(InvalidArgument, match=problem):
        utf8("a name", text, 3)

    assert "ét".encode() == utf8("a name", "ét", 3)


def test_a_topic_is_not_empty() -> None:
    """The broker would refuse it."""
    check_topic("t")
    with pytest.raises(InvalidArgument, match="a topic has 1 to 65535 bytes of UTF-8"):
        check_topic("")
