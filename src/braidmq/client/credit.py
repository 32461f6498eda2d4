"""How many messages to have ahead of the handler: a pure decision, time is an argument.

A message that waits in the client is in flight to the broker: its redelivery timer runs. So the
window follows the handler. It starts small, doubles while messages are taken soon after they
came, and halves when they have waited long.
"""

from typing import Final

WAITED_SOON_S: Final = 0.1
"""A message taken sooner than this after it came: the handler keeps up, ask for more."""

WAITED_LONG_S: Final = 1.0
"""A message taken later than this: the window is too large. Far below the broker's first
redelivery, which is 5 s after the delivery by default."""

assert WAITED_SOON_S < WAITED_LONG_S


class CreditWindow:
    """The number of messages that may be under way or waiting, between 1 and *size_max*."""

    def __init__(self, size_max: int, *, begin: int = 1) -> None:
        assert size_max >= 1
        assert begin >= 1
        self._size_max = size_max
        self.size = min(begin, size_max)

    def due(self, held: int) -> int:
        """Return how much credit to give when *held* messages are under way or waiting.

        Credit goes out in halves: not before half of the window is used up.
        """
        return self.size - held if held <= self.size // 2 else 0

    def reach(self, count: int) -> None:
        """Grow to *count*, as far as that is allowed."""
        self.size = max(self.size, min(count, self._size_max))

    def taken(self, waited_s: float) -> None:
        """Follow the handler: the message that was just taken had waited so long."""
        if waited_s > WAITED_LONG_S:
            self.size = max(1, self.size // 2)
        elif waited_s < WAITED_SOON_S:
            self.size = min(self._size_max, self.size * 2)
