"""How long to wait before the next attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.backoff import Backoff


def test_delays_double_up_to_the_ceiling() -> None:
    """Without luck, each wait is twice the one before, and no longer than the ceiling."""
    backoff = Backoff(0.1, 1.0, dice=lambda: 0.0)

    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pytest.approx(
        [backoff.next_delay() for _ in range(6)]
    )


def test_success_begins_again() -> None:
    """After a reset the first delay comes first."""
    backoff = Backoff(0.1, 1.0, dice=lambda: 0.0)
    backoff.next_delay()
    backoff.next_delay()
    backoff.reset()

    assert 0.1 == backoff.next_delay()


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2000))
def test_luck_shortens_a_delay_by_at_most_a_half(luck: float, attempts: int) -> None:
    """The dice spread clients that fell together; no number of attempts overflows."""
    backoff = Backoff(0.1, 5.0, dice=lambda: luck)
    plain = Backoff(0.1, 5.0, dice=lambda: 0.0)
    for _ in range(attempts):
        backoff.next_delay()
        plain.next_delay()
    whole = plain.next_delay()

    assert whole / 2 <= backoff.next_delay() <= whole


def test_two_clients_do_not_come_back_together() -> None:
    """The default dice are real."""
    assert 1 < len({Backoff(0.1, 1.0).next_delay() for _ in range(10)})
