"""A token bucket: the rate limit of one connection, or of all streams of one.

rate ┤██████      full at the start: a burst of `rate` messages is allowed
     │████        each message takes one token
   0 ┤──────▶ µs  tokens come back at `rate` per second
"""

from typing import Final, final

_US_PER_S: Final = 1_000_000


@final
class TokenBucket:
    """Tokens for messages, of which at most one second's worth are saved up."""

    def __init__(self, rate: int) -> None:
        self.rate: int = rate  # tokens per second; 0: the peer is not limited, nothing is taken
        self._tokens: float = float(rate)
        self._filled_us: int = 0

    def take(self, now_us: int) -> bool:
        """Take a token for a message; return whether there was one."""
        rate = self.rate
        earned = (now_us - self._filled_us) * rate / _US_PER_S
        self._tokens = min(float(rate), self._tokens + earned)
        self._filled_us = now_us
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def missing_us(self) -> int:
        """Return how long it takes until there is a token, counted from the last `take`."""
        return int((1.0 - self._tokens) * _US_PER_S / self.rate) + 1
