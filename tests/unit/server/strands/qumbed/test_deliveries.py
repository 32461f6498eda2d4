"""Messages as Qumbed has them: what is stored of a Publish, and a frame for each subscriber."""

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
    given = layout.Publish(topic="t", payload=payload, **fields)  # type: ignore[arg-type] # a test's own
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
    asked = publish_of(
        schema_id="control.Command",
        recipient_key_id=key_id(BOB),
        sender_public_key=public(ALICE),
    )
    message = message_of(asked, Topic("t"), hand.options, 7, sealed=False, dedup_id="d")

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


def test_what_says_nothing_has_no_headers() -> None:
    """And takes the short way into the log."""
    hand = QumbedHand(is_durable=False)
    message = message_of(publish_of(), Topic("t"), hand.options, 7, sealed=False, dedup_id="")

    assert (b"", 0, 0) == (message.headers, message.qos, message.expires_us)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_was_judged_at_the_publish_is_what_is_read_back(*, is_sealed: bool) -> None:
    """A message read from the log is the same kind as the one that was never stored."""
    hand = QumbedHand()
    payload = sealed(b"1", ALICE, BOB) if is_sealed else b'"%s"' % (b"x" * 60)
    asked = publish_of(payload, sender_public_key=public(ALICE))
    message = message_of(asked, Topic("t"), hand.options, 7, sealed=is_sealed, dedup_id="")
    judged = marks_of(message).sealed
    message.marks = None

    assert is_sealed == judged == marks_of(message).sealed


def test_a_dedup_id_is_the_senders_own() -> None:
    """Another sender's id of the same name is another; without an id there is none."""
    asked = [
        publish_of(id="x", sender_public_key=sender)
        for sender in (b"", public(ALICE), public(BOB))
    ]
    ids = {dedup_id_of(publish, "ada", "here") for publish in asked}
    ids.add(dedup_id_of(asked[1], "bob", "here"))

    assert 4 == len(ids)
    assert all(len(one) < 64 for one in ids)
    assert "" == dedup_id_of(publish_of(sender_public_key=public(ALICE)), "ada", "here")


def test_who_gives_no_key_and_a_short_id_is_known_by_its_connection() -> None:
    """Two clients that count from 1 are two; a random id is the same on every connection."""
    short, random = publish_of(id="1"), publish_of(id="0123456789abcdef")
    signed = publish_of(id="1", sender_public_key=public(ALICE))

    assert dedup_id_of(short, "ada", "here") == dedup_id_of(short, "ada", "here")
    assert dedup_id_of(short, "ada", "here") != dedup_id_of(short, "ada", "there")
    assert dedup_id_of(random, "ada", "here") == dedup_id_of(random, "ada", "there")
    assert dedup_id_of(signed, "ada", "here") == dedup_id_of(signed, "ada", "there")


def test_a_box_is_passed_on_and_anything_else_sealed() -> None:
    """By the gateway, for the key of whom it goes to."""
    hand = QumbedHand()
    delivering = Delivering(hand.options.gateway)
    topic = Topic("t")
    box = sealed(b"secret", ALICE, BOB)
    asked = publish_of(box, sender_public_key=public(ALICE), schema_id="sensor.Humidity")
    whole = message_of(asked, topic, hand.options, 7, sealed=True, dedup_id="")
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
    told = [second["m"][name] for name in ("id", "schema_id", "timestamp_ms")]
    assert ["13", "", 5_000] == told
    assert hand.options.gateway.public_key == unb64(second["m"]["sender_public_key"])


def test_what_is_longer_than_a_frame_has_none() -> None:
    """The last size that fits makes a frame, and one byte group more makes none."""
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
