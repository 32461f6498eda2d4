"""What a Blip publisher sends."""

import pytest

from braidmq.client.blip.publishing import BlipPosting
from braidmq.client.errors import InvalidArgument
from braidmq.wire.blip import frames, messages


@pytest.mark.parametrize("topic", ["", "x" * 65_536, "é" * 32_768, "\ud800"])
def test_what_is_no_topic_is_not_sent(topic: str) -> None:
    """A topic is 1 to 65,535 bytes of UTF-8, so that the broker need not say so."""
    with pytest.raises(InvalidArgument, match="a topic"):
        BlipPosting(topic, 1)


@pytest.mark.parametrize("topic", ["x", "x" * 65_535, "é" * 32_767])
def test_topics_up_to_the_limit_are_sent(topic: str) -> None:
    """The limit itself is legal."""
    assert topic == BlipPosting(topic, 1).topic


def test_a_payload_may_fill_a_frame_to_the_last_byte() -> None:
    """One byte more would make the broker hang up, so it is refused here."""
    posting = BlipPosting("orders", 1)
    largest = bytes(posting.payload_max)

    assert frames.LENGTH_MAX + 4 == len(messages.encode_publish(1, 1, "orders", largest))
    assert largest == posting.lay_out(largest)
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting.lay_out(largest + b"x")


def test_a_receipt_says_whether_the_message_is_durable() -> None:
    """QoS 1 is confirmed by the broker's log, QoS 0 by nobody."""
    assert BlipPosting("orders", 1).receipt().durable
    assert not BlipPosting("orders", 0).receipt().durable
