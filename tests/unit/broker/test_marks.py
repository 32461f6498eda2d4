"""Marks: a Qumbed publisher's schema, recipient and sender key, kept in headers."""

import pytest

from braidmq.broker.marks import Marks, mark, marks_of, recipient_of
from braidmq.broker.topics import (
    ORIGIN_QUMBED,
    ORIGIN_VIBE,
    Message,
    Topic,
    decode_headers,
    encode_headers,
)
from tests.unit.broker.drive import body_of
from tests.unit.broker.following import BOX, KEY, SENDER, id_of


def test_marks_are_kept_in_headers() -> None:
    """Only those given, in this order, with keys in base64."""
    message = Message(Topic("a"), 1, body_of("a", BOX))
    mark(message, schema_id="s", recipient_key_id=id_of(KEY), sender_public_key=SENDER)
    bare = Message(Topic("a"), 1, body_of("a"))
    mark(bare, schema_id="", recipient_key_id=b"", sender_public_key=b"")

    assert [
        ("schemaId", "s"),
        ("recipientKeyId", "AQIDBAUGBwg="),
        ("senderPublicKey", "ycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm5+g="),
    ] == list(decode_headers(message.headers).items())
    assert (ORIGIN_QUMBED, b"") == (bare.origin, bare.headers)
    assert (id_of(KEY), b"") == (message.recipient_key_id, bare.recipient_key_id)


def test_marks_are_parsed_once() -> None:
    """A second call returns the same object without parsing."""
    message = Message(Topic("a"), 1, body_of("a", BOX))
    mark(message, schema_id="s", recipient_key_id=b"", sender_public_key=SENDER)
    found = marks_of(message)

    assert ("s", SENDER, True) == (found.schema_id, found.sender_public_key, found.sealed)
    assert found is marks_of(message)


def test_messages_of_other_strands_have_no_marks() -> None:
    """Even if their headers have the same names."""
    message = Message(Topic("a"), 1, body_of("a", BOX))
    mark(message, schema_id="s", recipient_key_id=b"", sender_public_key=SENDER)
    message.origin = ORIGIN_VIBE
    found = marks_of(message)

    assert ("", b"", False) == (found.schema_id, found.sender_public_key, found.sealed)


def test_marks_can_be_set_in_advance() -> None:
    """A payload that has been judged is not judged again."""
    message = Message(Topic("a"), 1, body_of("a", b"x"))
    message.marks = Marks("s", SENDER, sealed=True)

    assert marks_of(message).sealed


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, b""),
        ({"recipientKeyId": "AQIDBAUGBwg="}, id_of(KEY)),
        ({"schemaId": "recipientKeyId"}, b""),  # the name as a value is no recipient
    ],
)
def test_the_recipient_is_read_from_the_headers(
    headers: dict[str, str], expected: bytes
) -> None:
    """Without the header there is none."""
    assert expected == recipient_of(encode_headers(headers))
