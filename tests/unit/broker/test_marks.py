"""What a Qumbed publisher said of a message, in its headers."""

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


def test_what_a_publisher_said_is_kept_in_headers() -> None:
    """Each only when it is there, in this order, keys in base64."""
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


def test_what_a_publisher_said_is_found_in_the_headers_once() -> None:
    """The second asker gets the same answer without a look."""
    message = Message(Topic("a"), 1, body_of("a", BOX))
    mark(message, schema_id="s", recipient_key_id=b"", sender_public_key=SENDER)
    found = marks_of(message)

    assert ("s", SENDER, True) == (found.schema_id, found.sender_public_key, found.sealed)
    assert found is marks_of(message)


def test_nothing_is_said_of_another_strands_message() -> None:
    """Whatever its headers are called."""
    message = Message(Topic("a"), 1, body_of("a", BOX))
    mark(message, schema_id="s", recipient_key_id=b"", sender_public_key=SENDER)
    message.origin = ORIGIN_VIBE
    found = marks_of(message)

    assert ("", b"", False) == (found.schema_id, found.sender_public_key, found.sealed)


def test_marks_may_be_known_before_anyone_asks() -> None:
    """Who has judged a payload need not have it judged again."""
    message = Message(Topic("a"), 1, body_of("a", b"x"))
    message.marks = Marks("s", SENDER, sealed=True)

    assert marks_of(message).sealed


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, b""),
        ({"recipientKeyId": "AQIDBAUGBwg="}, id_of(KEY)),
        ({"schemaId": "recipientKeyId"}, b""),  # a value of that name is no recipient
    ],
)
def test_whom_headers_name(said: dict[str, str], expected: bytes) -> None:
    """Nobody, unless the header is there."""
    assert expected == recipient_of(encode_headers(said))
