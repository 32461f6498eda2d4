"""What a Blip publisher sends."""

import pytest

from braidmq.client.connection import Refusal
from braidmq.client.errors import (
    InvalidArgument,
    NotSent,
    PublishFailed,
    PublishRefused,
)
from braidmq.client.publishing import (
    CHUNK_BYTES,
    CHUNK_COUNT,
    Envelope,
    check_qos,
    check_topic,
    chunks,
    refused,
)
from braidmq.wire.blip import frames, messages


@pytest.mark.parametrize("topic", ["", "x" * 65_536, "é" * 32_768, "\ud800"])
def test_what_is_no_topic_is_not_sent(topic: str) -> None:
    """A topic is 1 to 65,535 bytes of UTF-8, so that the broker need not say so."""
    with pytest.raises(InvalidArgument, match="a topic"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["x", "x" * 65_535, "é" * 32_767])
def test_topics_up_to_the_limit_are_sent(topic: str) -> None:
    """The limit itself is legal."""
    check_topic(topic)


@pytest.mark.parametrize("qos", [-1, 2])
def test_there_is_qos_0_and_1(qos: int) -> None:
    """Blip has no other."""
    with pytest.raises(InvalidArgument, match="qos is 0 or 1"):
        check_qos(qos)


def test_a_payload_may_fill_a_frame_to_the_last_byte() -> None:
    """One byte more would make the broker hang up, so it is refused here."""
    envelope = Envelope("orders", 1)
    largest = bytes(envelope.payload_max)

    assert frames.LENGTH_MAX + 4 == len(messages.encode_publish(1, 1, "orders", largest))
    assert largest == envelope.payload(largest)
    with pytest.raises(InvalidArgument, match="does not fit"):
        envelope.payload(largest + b"x")


def test_payloads_are_bytes_or_like_bytes() -> None:
    """What is like bytes is copied, so that later changes do not reach the wire."""
    envelope = Envelope("orders", 1)
    changing = bytearray(b"one")
    payload = envelope.payload(changing)
    changing[:] = b"two"

    assert b"one" == payload
    assert b"one" == envelope.payload(memoryview(b"one"))


@pytest.mark.parametrize("payload", ["text", 5, None, {"n": 1}])
def test_what_is_not_like_bytes_is_refused(payload: object) -> None:
    """Text has no one encoding, and a number must not become as many zeros."""
    with pytest.raises(InvalidArgument, match="a payload is bytes, not"):
        Envelope("orders", 1).payload(payload)  # type: ignore[arg-type] # that is the mistake


def test_a_receipt_says_whether_the_message_is_durable() -> None:
    """QoS 1 is confirmed by the broker's log, QoS 0 by nobody."""
    assert Envelope("orders", 1).receipt().durable
    assert not Envelope("orders", 0).receipt().durable


def test_code_500_leaves_the_outcome_open() -> None:
    """All other codes say that the message is not stored."""
    assert PublishFailed is type(refused(Refusal(500, "disk")))
    assert PublishRefused is type(refused(Refusal(403, "forbidden")))


def test_chunks_are_bounded_in_number_and_bytes() -> None:
    """Many small messages, or few large ones, share a write."""
    envelope = Envelope("orders", 1)
    small = [b"x"] * (CHUNK_COUNT + 1)
    large = [bytes(CHUNK_BYTES // 2)] * 3

    assert [CHUNK_COUNT, 1] == [len(chunk) for chunk in chunks(envelope, small)]
    assert [2, 1] == [len(chunk) for chunk in chunks(envelope, large)]
    assert [] == list(chunks(envelope, []))


def test_chunks_are_read_no_further_than_needed() -> None:
    """A long generator of messages is never held in memory."""
    numbers = iter(range(10 * CHUNK_COUNT))
    next(chunks(Envelope("orders", 1), (b"%d" % number for number in numbers)))

    assert CHUNK_COUNT == next(numbers)


def test_a_message_that_cannot_be_sent_keeps_its_place() -> None:
    """The others around it are sent."""
    payloads = [b"1", "2", b"3"]
    (chunk,) = chunks(Envelope("orders", 1), payloads)  # type: ignore[arg-type] # that is the mistake

    assert [b"1", b"3"] == [chunk[0], chunk[2]]
    assert isinstance(chunk[1], NotSent)
