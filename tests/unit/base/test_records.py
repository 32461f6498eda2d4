"""What the log's index keeps of a record."""

from braidmq.base.records import Description


def test_a_description_says_what_it_was_told() -> None:
    """Log and broker meet in these six values, in this order."""
    described = Description(b"orders", 29, 1_700_000_000_000_000, 1, 2, 3)

    assert b"orders" == described.topic
    assert 29 == described.payload_at
    assert 1_700_000_000_000_000 == described.timestamp_us
    assert (1, 2, 3) == (described.qos, described.priority, described.origin)
