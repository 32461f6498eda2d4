"""Payloads of the Blip strand."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.blip import frames, messages
from braidmq.wire.errors import MalformedPayloadError
from tests.unit.wire.vectors import vectors

VECTORS = vectors("blip")
STATS_NAMES = ("topics", "subscribers", "messages_published", "messages_delivered", "inflight")

# name in the vectors: the call that encodes it, the reader of its payload, what it reads
GOLDEN: dict[str, tuple[bytes, Callable[[bytes], object], object]] = {
    "HELLO v1, cid 1": (messages.encode_hello(1), messages.read_hello, 1),
    "AUTH dev-key, cid 2": (messages.encode_auth(2, "dev-key"), messages.read_auth, "dev-key"),
    "SUBSCRIBE demo qos1, cid 3": (
        messages.encode_subscribe(3, "demo", 1),
        messages.read_subscribe,
        ("demo", 1),
    ),
    "PUBLISH demo qos1 'hi', cid 4": (
        messages.encode_publish(4, 1, "demo", b"hi"),
        messages.read_publish,
        (1, "demo", b"hi"),
    ),
    "ACK subscription 42, cid 3": (
        messages.encode_ack(3, 42),
        messages.read_subscription_id,
        42,
    ),
    "ACK handshake, cid 1": (messages.encode_ack(1, 0), messages.read_subscription_id, 0),
    "POLL subscription 42, cid 9": (
        messages.encode_poll(9, 42),
        messages.read_subscription_id,
        42,
    ),
    "PING cid 2^64-1": (frames.encode(frames.PING, 2**64 - 1), bytes, b""),
    "PONG cid 2^64-1": (frames.encode(frames.PONG, 2**64 - 1), bytes, b""),
    "NACK 404, cid 5": (
        messages.encode_nack(5, 404, "unknown subscription or delivery tag"),
        messages.read_nack,
        (404, "unknown subscription or delivery tag"),
    ),
    "NACK 426, cid 1": (
        messages.encode_nack(1, 426, "unsupported protocol version"),
        messages.read_nack,
        (426, "unsupported protocol version"),
    ),
    "PUBLISH empty message qos0": (
        messages.encode_publish(0, 0, "t", b""),
        messages.read_publish,
        (0, "t", b""),
    ),
    "PUBLISH UTF-8 topic": (
        messages.encode_publish(6, 0, "температура", b"\x00\xff"),
        messages.read_publish,
        (0, "температура", b"\x00\xff"),
    ),
    "STATS request, cid 7": (frames.encode(frames.STATS, 7), bytes, b""),
    "STATS response, cid 7": (
        messages.encode_stats(7, messages.Stats(3, 2, 100, 90, 10)),
        lambda payload: [getattr(messages.read_stats(payload), name) for name in STATS_NAMES],
        [3, 2, 100, 90, 10],
    ),
    "UNSUBSCRIBE 42, cid 8": (
        messages.encode_unsubscribe(8, 42),
        messages.read_subscription_id,
        42,
    ),
    "CREDIT 42 x 1000, cid 9": (
        messages.encode_credit(9, 42, 1000),
        messages.read_credit,
        (42, 1000),
    ),
    "NACK 403": (
        messages.encode_nack(4, 403, "forbidden"),
        messages.read_nack,
        (403, "forbidden"),
    ),
    "NACK 401 unauthenticated": (
        messages.encode_nack(4, 401, "unauthenticated"),
        messages.read_nack,
        (401, "unauthenticated"),
    ),
}

READERS: dict[str, Callable[[bytes], object]] = {
    "hello": messages.read_hello,
    "auth": messages.read_auth,
    "subscribe": messages.read_subscribe,
    "publish": messages.read_publish,
    "subscription id": messages.read_subscription_id,
    "credit": messages.read_credit,
    "nack": messages.read_nack,
    "stats": messages.read_stats,
}

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
u64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("row", VECTORS["frames"], ids=lambda row: str(row["name"]))
def test_golden_bytes(row: dict[str, Any]) -> None:
    """Each vector equals our encoding, and reads back as the original values."""
    encoded, read, values = GOLDEN[row["name"]]

    assert row["hex"] == encoded.hex()
    assert values == read(encoded[frames.HEADER_BYTES :])


@pytest.mark.parametrize(
    ("reader", "payload"),
    [
        ("hello", ""),
        ("hello", "00"),
        ("hello", "000100"),
        ("auth", ""),
        ("auth", "00"),
        ("auth", "0002 61"),
        ("auth", "0001 6161"),
        ("auth", "0001 ff"),
        ("subscribe", ""),
        ("subscribe", "0000"),
        ("subscribe", "0001 61"),
        ("subscribe", "0001 61 01 00"),
        ("subscribe", "0001 ff 01"),
        ("publish", ""),
        ("publish", "01 00"),
        ("publish", "01 0002 61"),
        ("publish", "01 0001 ff"),
        ("publish", "01 0003 eda080"),  # a lone surrogate is not UTF-8
        ("subscription id", "00000000000000"),
        ("subscription id", "000000000000000000"),
        ("credit", "0000000000000001"),
        ("credit", "0000000000000001 00000001 00"),
        ("nack", "0190"),
        ("nack", "0190 0002 61"),
        ("nack", "0190 0001 6161"),
        ("nack", "0190 0001 ff"),
        ("stats", ""),
        ("stats", "00" * 41),
    ],
)
def test_a_payload_with_a_wrong_layout_is_refused(reader: str, payload: str) -> None:
    """A reader accepts exactly its own layout."""
    with pytest.raises(MalformedPayloadError):
        READERS[reader](bytes.fromhex(payload))


def test_the_shortest_payloads_are_read() -> None:
    """The session, not the reader, refuses empty texts."""
    assert "" == messages.read_auth(bytes.fromhex("0000"))
    assert ("", 1) == messages.read_subscribe(bytes.fromhex("0000 01"))
    assert (1, "", b"") == messages.read_publish(bytes.fromhex("01 0000"))
    assert (400, "") == messages.read_nack(bytes.fromhex("0190 0000"))


@given(u64, st.integers(0, 255), names, st.binary(max_size=40))
def test_a_delivery_is_a_header_and_a_slice_of_the_publish(
    correlation_id: int, qos: int, topic: str, message: bytes
) -> None:
    """Reusing the slice gives the same bytes as encoding again."""
    body = messages.topic_and_message(topic, message)
    encoded = messages.encode_publish(correlation_id, qos, topic, message)

    assert encoded == messages.delivery_header(correlation_id, qos, len(body)) + body
    assert (qos, topic, message) == messages.read_publish(encoded[frames.HEADER_BYTES :])


@given(u64, u64, st.integers(0, 2**32 - 1))
def test_credit_reads_back(correlation_id: int, subscription_id: int, count: int) -> None:
    """Both numbers keep their full range."""
    encoded = messages.encode_credit(correlation_id, subscription_id, count)

    assert (subscription_id, count) == messages.read_credit(encoded[frames.HEADER_BYTES :])


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=48))
def test_noise_raises_documented_errors_only(reader: str, noise: bytes) -> None:
    """For any payload a reader returns a value or raises MalformedPayloadError."""
    with suppress(MalformedPayloadError):
        READERS[reader](noise)
