"""Messages that wait for a handler, and handlers that wait for messages.

It requests nothing from the broker: credit and polling are up to the subscription.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from braidmq.client.deliveries import Message

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
