"""Topics and the messages on them."""

import pytest

from braidmq.broker.topics import TOPIC_NAMES_BYTES_MAX, Message, Pending, Topic, Topics
from tests.unit.broker.drive import body_of

NAME_BYTES = 32 * 1024


def test_a_topic_is_created_on_first_use() -> None:
    """`find` does not create one; `get` does, once."""
    topics = Topics()

    assert topics.find("ä") is None
    topic = topics.get("ä")
    assert topic is not None
    assert topic is topics.get("ä")
    assert topic is topics.find("ä")
    assert ("ä", b"\xc3\xa4") == (topic.name, topic.raw)
    assert 1 == len(topics)


def test_topics_are_listed_in_creation_order() -> None:
    """The oldest comes first."""
    topics = Topics()
    for name in ("b", "a", "c"):
        topics.get(name)

    assert ["b", "a", "c"] == [topic.name for topic in topics.all()]


def test_new_names_cannot_fill_the_memory() -> None:
    """The total size of all names is bounded; existing topics stay usable."""
    topics = Topics()
    fitting = TOPIC_NAMES_BYTES_MAX // NAME_BYTES
    made = [topics.get(str(number).rjust(NAME_BYTES)) for number in range(fitting)]

    assert None not in made
    assert topics.get("one more") is None
    assert made[0] is topics.get("0".rjust(NAME_BYTES))
    assert fitting == len(topics)


def test_the_payload_follows_the_topic() -> None:
    """It may be empty."""
    topic = Topic("orders")

    assert b"hi" == Message(topic, 1, body_of("orders", b"hi")).payload
    assert b"" == Message(topic, 1, body_of("orders")).payload


def test_new_items_have_no_id() -> None:
    """Zero means none."""
    assert [0, 0] == [Pending().id, Message(Topic("a"), 1, b"").id]


@pytest.mark.parametrize(("ttl_us", "expected"), [(0, 0), (5, 105)])
def test_a_time_to_live_counts_from_acceptance(ttl_us: int, expected: int) -> None:
    """Zero means no limit."""
    message = Message(Topic("a"), 1, b"")
    message.set_ttl(ttl_us, 100)

    assert expected == message.expires_us


def test_a_messages_own_expiry_wins() -> None:
    """A queue's time to live applies to messages published without one."""
    message = Message(Topic("a"), 1, b"")
    message.expires_us = 7
    message.set_ttl(5, 100)

    assert 7 == message.expires_us


@pytest.mark.parametrize(
    ("expires_us", "expected"), [(0, False), (101, False), (100, True), (99, True)]
)
def test_a_message_expires_at_its_time(expires_us: int, *, expected: bool) -> None:
    """Not earlier, and never without one."""
    message = Message(Topic("a"), 1, b"")
    message.expires_us = expires_us

    assert expected == message.is_expired(100)
