"""How many messages to prefetch for a handler: a pure decision, time is an argument.

To the broker, a message that waits in the client is in flight: its redelivery timer runs. The
window therefore adapts to the handler. It starts small, doubles while messages are handed out
soon after they arrive, and halves when one has waited long.
"""

from typing import Final

WAITED_SOON_S: Final = 0.1
"""A message handed out sooner than this shows that the handler keeps up: request more."""

WAITED_LONG_S: Final = 1.0
"""A message handed out later than this shows that the window is too large. It is far below the
broker's first redelivery, which is 5 s after the delivery by default."""

assert WAITED_SOON_S < WAITED_LONG_S


class CreditWindow:
    """The number of messages that may be in flight or waiting, between 1 and *size_max*."""

    def __init__(self, size_max: int, *, begin: int = 1) -> None:
        assert size_max >= 1
        assert begin >= 1
        self._size_max = size_max
        self.size = min(begin, size_max)

    def due(self, held: int) -> int:
        """Return how much credit to give when *held* messages are in flight or waiting.

        It is 0 until half of the window is used up, so that credit is given in few frames.
        """
        return self.size - held if held <= self.size // 2 else 0

    def reach(self, count: int) -> None:
        """Grow to *count*, but not beyond the maximum."""
        self.size = max(self.size, min(count, self._size_max))

    def taken(self, waited_s: float) -> None:
        """Adapt to the handler, which took a message that had waited for *waited_s*."""
        if waited_s > WAITED_LONG_S:
            self.size = max(1, self.size // 2)
        elif waited_s < WAITED_SOON_S:
            self.size = min(self._size_max, self.size * 2)
