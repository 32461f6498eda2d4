"""Retry: how long a delivery may stay unacknowledged, and which delivery is the last.

Pure decisions; the broker acts on them.
"""

from typing import Final

_DOUBLINGS_MAX: Final = 40
"""By then every backoff has reached its maximum; this bounds the shift."""


def delay_us(attempt: int, *, backoff_us: int, backoff_max_us: int) -> int:
    """Return how long after delivery number *attempt* the message is ready again."""
    assert attempt >= 1
    return min(backoff_us << min(attempt - 1, _DOUBLINGS_MAX), backoff_max_us)


def is_exhausted(attempts: int, max_retries: int) -> bool:
    """Say whether a message that was delivered *attempts* times is given up on."""
    return attempts >= max_retries


def is_last(attempts: int, max_retries: int) -> bool:
    """Say whether the next delivery after *attempts* ones is the last allowed."""
    return attempts == max_retries - 1 and attempts > 0
