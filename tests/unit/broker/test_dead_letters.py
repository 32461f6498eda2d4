"""Dead letters: where they go, and what their headers say."""

import hashlib

import pytest

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker import dead_letters, records
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic, decode_headers, encode_headers
from tests.unit.broker.drive import Drive, body_of


def test_a_dead_letter_topic_is_named_after_its_topic() -> None:
    """It is `dlq.` followed by the topic's name."""
    assert "dlq.orders" == dead_letters.topic_for("orders")


def test_the_longest_fitting_topic_name_is_kept() -> None:
    """The limit counts bytes, not characters."""
    fitting = "ä" * ((TOPIC_BYTES_MAX - len("dlq.")) // 2)

    assert "dlq." + fitting == dead_letters.topic_for(fitting)


def test_a_topic_name_that_is_too_long_becomes_a_digest() -> None:
    """It is `dlq.` followed by the topic's SHA-256 in hex, which always fits."""
    topic = "a" * (TOPIC_BYTES_MAX - len("dlq.") + 1)

    assert "dlq." + hashlib.sha256(topic.encode()).hexdigest() == dead_letters.topic_for(topic)


@pytest.mark.parametrize(
    ("topic", "expected"), [("dlq.a", True), ("dlq", False), ("a.dlq.", False)]
)
def test_dead_letter_topics_are_recognized_by_their_prefix(
    topic: str, *, expected: bool
) -> None:
    """The prefix is `dlq.`, with the dot."""
    assert expected == dead_letters.is_dead_letter_topic(topic)


def test_the_headers_give_reason_queue_and_attempts() -> None:
    """The message keeps its headers except those of an earlier death."""
    made = letter(kept={"trace": "7", "deathReason": "old"}, keep_id=False)

    assert {
        "trace": "7",
        "deathReason": "rejected",
        "deathQueue": "q",
        "deathAttempts": "2",
    } == decode_headers(made.headers)


def test_a_message_of_the_longest_topic_is_dead_lettered() -> None:
    """Its dead-letter topic is a digest, and a header holds the full name."""
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


def test_a_dead_letter_queue_is_named_after_its_queue() -> None:
    """A name over 256 characters becomes a digest; the limit counts characters, not bytes."""
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


def test_a_dead_letter_copies_its_message() -> None:
    """Payload, priority and origin are kept; the timestamp is new, and it never expires."""
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
def test_a_dead_letter_keeps_its_messages_id(
    kept: dict[str, str], expected: str | None, *, keep_id: bool
) -> None:
    """The publisher's id, or else the broker's if consumers knew that one."""
    assert expected == decode_headers(letter(kept=kept, keep_id=keep_id).headers).get("")


def test_replaying_a_dead_letter_removes_the_death_headers() -> None:
    """The other headers stay."""
    block = letter(kept={"": "mine", "k": "v"}, keep_id=True).headers

    assert {"": "mine", "k": "v"} == decode_headers(dead_letters.headers_sent_back(block))


def test_a_dead_letter_record_names_the_message_it_settles() -> None:
    """It holds every field of the letter itself as well."""
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
