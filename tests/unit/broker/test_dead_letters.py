"""Where dead letters go, and what they say."""

import hashlib

import pytest

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker import dead_letters, headers
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive


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
    told = dead_letters.headers_for(
        {"trace": "7", "deathReason": "old"}, reason="maxRetries", topic="a", attempts=5
    )

    assert {
        "trace": "7",
        "deathReason": "maxRetries",
        "deathQueue": "a",
        "deathAttempts": "5",
    } == told


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
    assert topic == headers.decode(letter.headers)["deathQueue"]
