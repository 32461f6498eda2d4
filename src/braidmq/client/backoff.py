"""How long to wait before the next attempt: a pure decision, which does not wait itself."""

import random
from collections.abc import Callable
from typing import Final

_FACTOR: Final = 2.0
_JITTER: Final = 0.5
_DOUBLINGS_MAX: Final = 64  # more than any ceiling needs, and far from overflowing a float


class Backoff:
    """Delays that double up to a ceiling, each shortened at random by up to a half.

    The jitter spreads out the clients that reconnect to a broker after a restart.
    """

    def __init__(
        self,
        first: float,
        ceiling: float,
        *,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._ceiling = ceiling
        self._dice = dice
        self._attempts = 0

    def next_delay(self) -> float:
        """Return the seconds to wait before the next attempt, and count the attempt."""
        delay = min(self._first * _FACTOR ** min(self._attempts, _DOUBLINGS_MAX), self._ceiling)
        self._attempts += 1
        return delay * (1.0 - _JITTER * self._dice())

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._attempts = 0
