"""Qumbed messages: what the broker stores of a Publish, and the frame for each subscriber."""

import pytest

from braidmq.broker.marks import marks_of
from braidmq.broker.topics import ORIGIN_QUMBED, Message, Topic, body_of, decode_headers
from braidmq.server.strands.qumbed.deliveries import (
    Delivering,
    dedup_id_of,
    message_of,
)
from braidmq.wire.qumbed import layout, messages
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    FRAME_MAX,
    b64,
    key_id,
    opened,
    public,
    sealed,
    unb64,
)
from tests.unit.server.strands.qumbed.qumbed_by_hand import HandStream, QumbedHand


def publish_of(payload: bytes = b"1", **fields: object) -> messages.Publish:
    given = layout.Publish(topic="t", payload=payload, **fields)  # type: ignore[arg-type] # fields of any type
    return messages.Publish(given, "")


def frames_of(*data: bytes | None) -> list[dict[str, dict[str, str]]]:
    wire = HandStream()
    for one in data:
        assert one is not None
        wire.write(one)
    return wire.frames()


def test_a_publish_is_stored_with_its_marks_as_headers() -> None:
    """schemaId, recipientKeyId, senderPublicKey and the dedup id, in this order."""
    hand = QumbedHand()
    published = publish_of(
        schema_id="control.Command",
        recipient_key_id=key_id(BOB),
        sender_public_key=public(ALICE),
    )
    message = message_of(published, Topic("t"), hand.options, 7, sealed=False, dedup_id="d")

    assert (ORIGIN_QUMBED, 1, key_id(BOB), b"1") == (
        message.origin,
        message.qos,
        message.recipient_key_id,
        message.payload,
    )
    assert [
        ("schemaId", "control.Command"),
        ("recipientKeyId", b64(key_id(BOB))),
        ("senderPublicKey", b64(public(ALICE))),
        ("dedupId", "d"),
    ] == list(decode_headers(message.headers).items())


def test_a_publish_without_marks_has_no_headers() -> None:
    """And takes the short path into the log."""
    hand = QumbedHand(is_durable=False)
    message = message_of(publish_of(), Topic("t"), hand.options, 7, sealed=False, dedup_id="")

    assert (b"", 0, 0) == (message.headers, message.qos, message.expires_us)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_the_log_preserves_whether_a_message_is_sealed(*, is_sealed: bool) -> None:
    """A message read from the log counts as sealed exactly if it did when it was published."""
    hand = QumbedHand()
    payload = sealed(b"1", ALICE, BOB) if is_sealed else b'"%s"' % (b"x" * 60)
    published = publish_of(payload, sender_public_key=public(ALICE))
    message = message_of(published, Topic("t"), hand.options, 7, sealed=is_sealed, dedup_id="")
    judged = marks_of(message).sealed
    message.marks = None

    assert is_sealed == judged == marks_of(message).sealed


def test_a_dedup_id_is_the_senders_own() -> None:
    """The same id from another sender is a different one; without an id there is none."""
    published = [
        publish_of(id="x", sender_public_key=sender)
        for sender in (b"", public(ALICE), public(BOB))
    ]
    ids = {dedup_id_of(publish, "ada", "here") for publish in published}
    ids.add(dedup_id_of(published[1], "bob", "here"))

    assert 4 == len(ids)
    assert all(len(one) < 64 for one in ids)
    assert "" == dedup_id_of(publish_of(sender_public_key=public(ALICE)), "ada", "here")


def test_a_short_id_without_a_key_belongs_to_its_connection() -> None:
    """Two clients that count from 1 must not collide; a random id holds on every connection."""
    short, random = publish_of(id="1"), publish_of(id="0123456789abcdef")
    signed = publish_of(id="1", sender_public_key=public(ALICE))

    assert dedup_id_of(short, "ada", "here") == dedup_id_of(short, "ada", "here")
    assert dedup_id_of(short, "ada", "here") != dedup_id_of(short, "ada", "there")
    assert dedup_id_of(random, "ada", "here") == dedup_id_of(random, "ada", "there")
    assert dedup_id_of(signed, "ada", "here") == dedup_id_of(signed, "ada", "there")


def test_a_box_is_passed_on_and_anything_else_is_sealed() -> None:
    """By the gateway, for the subscriber's key."""
    hand = QumbedHand()
    delivering = Delivering(hand.options.gateway)
    topic = Topic("t")
    box = sealed(b"secret", ALICE, BOB)
    published = publish_of(box, sender_public_key=public(ALICE), schema_id="sensor.Humidity")
    whole = message_of(published, topic, hand.options, 7, sealed=True, dedup_id="")
    whole.id, whole.timestamp_us = 12, 3_456_789
    plain = Message(topic, 1, body_of(topic, b"plain"))
    plain.id = 13
    first, second = frames_of(
        delivering.frame(whole, public(BOB), 5_000_000),
        delivering.frame(plain, public(ALICE), 5_000_000),
    )

    assert {
        "topic": "t",
        "encrypted_payload": b64(box),
        "sender_key_id": b64(key_id(ALICE)),
        "sender_public_key": b64(public(ALICE)),
        "id": "12",
        "schema_id": "sensor.Humidity",
        "timestamp_ms": 3_456,
    } == first["m"]
    assert b"plain" == opened(second, ALICE)
    fields = [second["m"][name] for name in ("id", "schema_id", "timestamp_ms")]
    assert ["13", "", 5_000] == fields
    assert hand.options.gateway.public_key == unb64(second["m"]["sender_public_key"])


def test_a_message_that_is_too_long_has_no_frame() -> None:
    """The largest size that fits makes a frame, and three bytes more make none."""
    hand = QumbedHand()
    delivering = Delivering(hand.options.gateway)
    topic = Topic("t")
    fits = 0
    for size in range(FRAME_MAX * 3 // 4, 0, -3):
        message = Message(topic, 1, body_of(topic, bytes(size)))
        frame = delivering.frame(message, public(ALICE), 0)
        if frame is not None:
            fits = size
            assert FRAME_MAX - 64 < len(frame) <= FRAME_MAX + 4
            break

    assert 0 < fits < FRAME_MAX * 3 // 4
