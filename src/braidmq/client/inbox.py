"""Messages that wait for a handler, handlers that wait for messages, and how many to prefetch.

Nothing here requests messages from the broker: that is up to the subscription.

To the broker, a message that waits in the client is in flight: its redelivery timer runs. The
credit window therefore adapts to the handler. It starts small, doubles while messages are
handed out soon after they arrive, and halves when one has waited long.
"""

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from braidmq.client.deliveries import Message

WAITED_SOON_S: Final = 0.1
"""A message handed out sooner than this shows that the handler keeps up: request more."""

WAITED_LONG_S: Final = 1.0
"""A message handed out later than this shows that the window is too large. It is far below the
broker's first redelivery, which is 5 s after the delivery by default."""

assert WAITED_SOON_S < WAITED_LONG_S

M = TypeVar("M", bound=Message)


class Inbox(Generic[M]):
    """A queue that, if *once*, holds each delivery at most once."""

    def __init__(self, *, once: bool = True) -> None:
        self._once = once
        self._ready: deque[M] = deque()
        self._ids: set[int | str] = set()  # of what is in _ready
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, message: M) -> None:
        """Add *message*, unless the same delivery is waiting already."""
        if self._once and message.id is not None:
            if message.id in self._ids:
                return
            self._ids.add(message.id)
        self._ready.append(message)

    def pop(self) -> M:
        """Take the oldest message."""
        message = self._ready.popleft()
        if message.id is not None:
            self._ids.discard(message.id)
        return message

    def clear(self) -> None:
        """Drop all messages."""
        self._ready.clear()
        self._ids.clear()

    def forget_deliveries(self) -> None:
        """Drop the messages that the broker will redeliver; keep those of QoS 0."""
        kept = [message for message in self._ready if message.id is None]
        self.clear()
        self._ready.extend(kept)

    async def arrival(self, timeout: float | None) -> None:
        """Wait until messages may be here, the state has changed, or *timeout* has passed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # pass the wake-up on, or its message would wait for the next one
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake one waiter for each message."""
        self._wake(len(self._ready))

    def wake_all(self) -> None:
        """Wake all waiters, to look at a state that has changed."""
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1


class CreditWindow:
    """The number of messages that may be in flight or waiting, between 1 and *size_max*.

    A pure decision: it takes times as arguments, and sends nothing.
    """

    def __init__(self, size_max: int, *, begin: int = 1) -> None:
        assert size_max >= 1
        assert begin >= 1
        self._size_max = size_max
        # Small at first: messages prefetched for a handler that turns out to be slow would all
        # be redelivered.
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
