"""How long a delivery may stay unacknowledged, and when it was the last."""

import pytest

from braidmq.broker.delivery.retry import delay_us, is_exhausted, is_last


@pytest.mark.parametrize(
    ("attempt", "expected"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (10_000, 60)]
)
def test_the_delay_doubles_up_to_its_maximum(attempt: int, expected: int) -> None:
    """min(backoff · 2^(n-1), maximum), for any number of deliveries."""
    assert expected == delay_us(attempt, backoff_us=5, backoff_max_us=60)


def test_there_is_no_delay_before_the_first_delivery() -> None:
    """Deliveries are counted from 1."""
    with pytest.raises(AssertionError):
        delay_us(0, backoff_us=5, backoff_max_us=60)


@pytest.mark.parametrize(
    ("attempts", "max_retries", "exhausted", "last"),
    [
        (0, 5, False, False),
        (3, 5, False, False),
        (4, 5, False, True),
        (5, 5, True, False),
        (6, 5, True, False),
        (0, 1, False, False),  # a first delivery goes with others, also when it is the only one
        (1, 1, True, False),
        (1, 2, False, True),
    ],
)
def test_deliveries_are_counted_in_total(
    attempts: int, max_retries: int, *, exhausted: bool, last: bool
) -> None:
    """`max_retries` is the number of all deliveries, the first included."""
    assert exhausted == is_exhausted(attempts, max_retries)
    assert last == is_last(attempts, max_retries)
