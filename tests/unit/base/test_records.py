"""Descriptions: what the log's index keeps of a record."""

from braidmq.base.records import Description


def test_a_description_holds_its_six_values() -> None:
    """The log and the broker agree on these values and their order."""
    described = Description(b"orders", 29, 1_700_000_000_000_000, 1, 2, 3)

    assert b"orders" == described.topic
    assert 29 == described.payload_at
    assert 1_700_000_000_000_000 == described.timestamp_us
    assert (1, 2, 3) == (described.qos, described.priority, described.origin)
