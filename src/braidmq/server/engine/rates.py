"""Rates: how many messages a connection may send in a second."""

from typing import Final, final

from braidmq.base import refusals

_US_PER_S: Final = 1_000_000


@final
class TokenBucket:
    """The rate limit of one connection, or of all streams of one: a message takes a token.

    It is full at the start, so a burst of *rate* messages is allowed; tokens come back at
    *rate* per second, and no more than *rate* are saved up.
    """

    def __init__(self, rate: int) -> None:
        self.rate: int = rate  # tokens per second
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


def rate_refusal(rate: int) -> str:
    """Return what a peer above its rate is told, where a strand has a reply for it."""
    return refusals.by_setting("too many messages", "limits.messages_per_s", rate)
