"""Publishing over Blip: topics, payload limits, receipts."""

import pytest

from braidmq.client.blip.publishing import BlipPosting
from braidmq.client.errors import InvalidArgument
from braidmq.wire.blip import frames, messages


@pytest.mark.parametrize("topic", ["", "x" * 65_536, "é" * 32_768, "\ud800"])
def test_an_invalid_topic_is_refused(topic: str) -> None:
    """A topic is 1 to 65,535 bytes of UTF-8; the client checks it before sending."""
    with pytest.raises(InvalidArgument, match="a topic"):
        BlipPosting(topic, 1)


@pytest.mark.parametrize("topic", ["x", "x" * 65_535, "é" * 32_767])
def test_topics_up_to_the_limit_are_sent(topic: str) -> None:
    """The limit itself is legal."""
    assert topic == BlipPosting(topic, 1).topic


def test_a_payload_may_fill_a_frame_to_the_last_byte() -> None:
    """The client refuses one byte more, which would make the broker hang up."""
    posting = BlipPosting("orders", 1)
    largest = bytes(posting.payload_max)

    assert frames.LENGTH_MAX + 4 == len(messages.encode_publish(1, 1, "orders", largest))
    assert largest == posting.lay_out(largest)
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting.lay_out(largest + b"x")


def test_a_receipt_says_whether_the_message_is_durable() -> None:
    """QoS 1 is confirmed once it is in the broker's log, QoS 0 is never confirmed."""
    assert BlipPosting("orders", 1).receipt().durable
    assert not BlipPosting("orders", 0).receipt().durable
