"""Messages that have come and wait for their handler, and handlers that wait for messages.

It asks for nothing: who gives credit and who polls is the subscription's business.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from braidmq.client.deliveries import Message

M = TypeVar("M", bound=Message)


class Inbox(Generic[M]):
    """A queue in which, if *once*, a delivery is at most once."""

    def __init__(self, *, once: bool = True) -> None:
        self._once = once
        self._ready: deque[M] = deque()
        self._ids: set[int | str] = set()  # of what is in _ready
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, message: M) -> None:
        """Add *message*, unless the same delivery waits here already."""
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
        """Forget all messages."""
        self._ready.clear()
        self._ids.clear()

    def forget_deliveries(self) -> None:
        """Forget the messages that the broker will send again; keep those it will not."""
        kept = [message for message in self._ready if message.id is None]
        self.clear()
        self._ready.extend(kept)

    async def arrival(self, timeout: float | None) -> None:
        """Wait until messages may be here, something has changed, or the seconds are over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # the message that it was woken for is another's now
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake as many as there are messages for."""
        self._wake(len(self._ready))

    def wake_all(self) -> None:
        """Wake everyone: something has changed."""
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
