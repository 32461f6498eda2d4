"""When a message's time is over."""

import pytest

from braidmq.broker.expiry import expires_us, is_expired


@pytest.mark.parametrize(("ttl_us", "expected"), [(0, 0), (5, 105)])
def test_a_time_to_live_counts_from_acceptance(ttl_us: int, expected: int) -> None:
    """Zero is no limit."""
    assert expected == expires_us(100, ttl_us)


@pytest.mark.parametrize(
    ("message_expires_us", "expected"), [(0, False), (101, False), (100, True), (99, True)]
)
def test_a_message_is_over_at_its_time(message_expires_us: int, *, expected: bool) -> None:
    """Not before it, and never when it has none."""
    assert expected == is_expired(message_expires_us, 100)
