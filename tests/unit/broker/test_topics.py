"""Topics and the messages on them."""

from braidmq.broker.topics import TOPIC_NAMES_BYTES_MAX, Message, Pending, Topic, Topics
from tests.unit.broker.drive import body_of

NAME_BYTES = 32 * 1024


def test_a_topic_is_made_when_it_is_first_named() -> None:
    """Finding does not make one; getting does, once."""
    topics = Topics()

    assert topics.find("ä") is None
    topic = topics.get("ä")
    assert topic is not None
    assert topic is topics.get("ä")
    assert topic is topics.find("ä")
    assert ("ä", b"\xc3\xa4") == (topic.name, topic.raw)
    assert 1 == len(topics)


def test_topics_are_listed_in_the_order_they_were_made() -> None:
    """Oldest first."""
    topics = Topics()
    for name in ("b", "a", "c"):
        topics.get(name)

    assert ["b", "a", "c"] == [topic.name for topic in topics.all()]


def test_invented_names_cannot_fill_the_memory() -> None:
    """The bytes of all names together are bounded, and the ones that are known stay known."""
    topics = Topics()
    fitting = TOPIC_NAMES_BYTES_MAX // NAME_BYTES
    made = [topics.get(str(number).rjust(NAME_BYTES)) for number in range(fitting)]

    assert None not in made
    assert topics.get("one more") is None
    assert made[0] is topics.get("0".rjust(NAME_BYTES))
    assert fitting == len(topics)


def test_a_payload_is_what_follows_the_topic() -> None:
    """The publisher's own bytes."""
    topic = Topic("orders")

    assert b"hi" == Message(topic, 1, body_of("orders", b"hi")).payload
    assert b"" == Message(topic, 1, body_of("orders")).payload


def test_nothing_has_an_id_before_it_is_given_one() -> None:
    """Zero is no id."""
    assert [0, 0] == [Pending().id, Message(Topic("a"), 1, b"").id]
