"""How long to wait before the next attempt: a pure decision, it waits for nothing itself."""

import random
from collections.abc import Callable
from typing import Final

_FACTOR: Final = 2.0
_JITTER: Final = 0.5
_DOUBLINGS_MAX: Final = 64  # far above any ceiling, and far below what overflows a float


class Backoff:
    """Delays that double up to a ceiling, each shortened at random by up to a half.

    Many clients of one broker that fell at the same time come back one after the other.
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
        """Return the seconds to wait before the next attempt, and count it."""
        delay = min(self._first * _FACTOR ** min(self._attempts, _DOUBLINGS_MAX), self._ceiling)
        self._attempts += 1
        return delay * (1.0 - _JITTER * self._dice())

    def reset(self) -> None:
        """Begin again with the first delay: something went well."""
        self._attempts = 0
