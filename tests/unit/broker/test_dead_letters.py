"""Where dead letters go, and what they say."""

import hashlib

import pytest

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker import dead_letters, records
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic, decode_headers, encode_headers
from tests.unit.broker.drive import Drive, body_of


def test_a_dead_letter_topic_is_named_after_its_topic() -> None:
    """`dlq.` and the name."""
    assert "dlq.orders" == dead_letters.topic_for("orders")


def test_the_longest_name_that_fits_is_kept() -> None:
    """The limit counts bytes, not characters."""
    fitting = "ä" * ((TOPIC_BYTES_MAX - len("dlq.")) // 2)

    assert "dlq." + fitting == dead_letters.topic_for(fitting)


def test_a_name_that_would_be_too_long_becomes_a_digest() -> None:
    """`dlq.` and the SHA-256 of the topic in hex, which always fits."""
    topic = "a" * (TOPIC_BYTES_MAX - len("dlq.") + 1)

    assert "dlq." + hashlib.sha256(topic.encode()).hexdigest() == dead_letters.topic_for(topic)


@pytest.mark.parametrize(
    ("topic", "expected"), [("dlq.a", True), ("dlq", False), ("a.dlq.", False)]
)
def test_dead_letter_topics_are_known_by_their_prefix(topic: str, *, expected: bool) -> None:
    """Only the prefix counts."""
    assert expected == dead_letters.is_dead_letter_topic(topic)


def test_the_headers_say_why_where_and_how_often() -> None:
    """The message's own headers stay; what they said of an earlier death does not."""
    made = letter(kept={"trace": "7", "deathReason": "old"}, keep_id=False)

    assert {
        "trace": "7",
        "deathReason": "rejected",
        "deathQueue": "q",
        "deathAttempts": "2",
    } == decode_headers(made.headers)


def test_a_message_with_the_longest_name_is_buried() -> None:
    """The digest is the topic, and the header says the whole name."""
    topic = "t" * TOPIC_BYTES_MAX
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe(topic)
    drive.publish(topic, b"late")
    drive.commit()
    drive.poll(consumer)
    drive.disconnect(consumer)
    drive.commit()
    (letter,) = drive.dead_letters(dead_letters.topic_for(topic))

    assert letter.body.endswith(b"late")
    assert topic == decode_headers(letter.headers)["deathQueue"]


def test_a_queue_of_dead_letters_is_named_after_its_queue() -> None:
    """A name over 256 characters becomes a digest; characters count, not bytes."""
    fitting = "ä" * (dead_letters.QUEUE_NAME_CHARACTERS_MAX - len("dlq."))
    longer = fitting + "ä"

    assert "dlq." + fitting == dead_letters.queue_for(fitting)
    assert "dlq." + hashlib.sha256(longer.encode()).hexdigest() == dead_letters.queue_for(
        longer
    )


def letter(*, kept: dict[str, str], keep_id: bool) -> Message:
    message = Message(Topic("q"), 1, body_of("q", b"payload"))
    message.id, message.priority, message.origin = 7, 3, 2
    message.expires_us = 99
    message.headers = encode_headers(kept)
    return dead_letters.letter_of(
        message, Topic("dlq.q"), "rejected", attempts=2, keep_id=keep_id, now_us=50
    )


def test_a_letter_is_its_message_elsewhere() -> None:
    """Payload, priority and origin are the same; it is new, and has no end."""
    made = letter(kept={}, keep_id=False)

    assert (body_of("dlq.q", b"payload"), b"payload") == (made.body, made.payload)
    assert (1, 3, 2, 50, 0) == (
        made.qos,
        made.priority,
        made.origin,
        made.timestamp_us,
        made.expires_us,
    )


@pytest.mark.parametrize(
    ("kept", "keep_id", "expected"),
    [({}, True, "7"), ({}, False, None), ({"": "mine"}, True, "mine")],
)
def test_a_letter_keeps_the_name_its_message_had(
    kept: dict[str, str], expected: str | None, *, keep_id: bool
) -> None:
    """The publisher's, else the broker's if consumers knew it by that."""
    assert expected == decode_headers(letter(kept=kept, keep_id=keep_id).headers).get("")


def test_nothing_of_its_death_is_left_when_a_letter_is_sent_back() -> None:
    """The rest stays as it was."""
    block = letter(kept={"": "mine", "k": "v"}, keep_id=True).headers

    assert {"": "mine", "k": "v"} == decode_headers(dead_letters.headers_sent_back(block))


def test_the_record_of_a_letter_says_which_message_it_ends() -> None:
    """And everything of the letter itself."""
    made = letter(kept={"k": "v"}, keep_id=False)
    made.expires_us = 77
    record = records.encode_dead_letter(made, subscription_id=4, after_id=5, message_id=7)
    read = records.StoredMessage(record)

    assert (4, 5, 7) == (read.settles_subscription, read.settles_after, read.settles_id)
    assert ("dlq.q", 1, 3, 2, 50, 77) == (
        read.topic,
        read.qos,
        read.priority,
        read.origin,
        read.timestamp_us,
        read.expires_us,
    )
    assert (made.headers, made.body) == (read.headers, read.body)
