"""What the subscriptions of all strands do alike: open, wait, drain, close.

How messages are asked for and settled is a strand's business.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, Self

from braidmq.client.connection import C
from braidmq.client.deliveries import Message
from braidmq.client.errors import ClientError, Closed
from braidmq.client.inbox import Inbox, M
from braidmq.client.link import Health, Link, Resident
from braidmq.client.options import Options
from braidmq.client.surface import Subscription
from braidmq.client.url import Endpoint


class Consumer(Subscription, Resident[C], Generic[C, M]):
    """A subscription on a connection of its own."""

    def __init__(
        self,
        topic: str,
        *,
        qos: int,
        inbox: Inbox[M],
        endpoint: Endpoint,
        options: Options,
        health: Health,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.subscription_id = 0
        self._endpoint = endpoint
        self._options = options
        self._health = health
        self._inbox = inbox
        self._on_closed = on_closed
        self._link: Link[C] = Link(endpoint, options, health, self, self._dial)
        self._connection: C | None = None
        self._opened = False
        self._pushing = False  # messages come by themselves
        self._end: ClientError | None = None
        self._leaving = False

    # --- what a strand says -----------------------------------------------------------------

    @abstractmethod
    async def _dial(self, on_lost: Callable[[C], None]) -> C:
        """Make the subscription's connection."""

    @abstractmethod
    async def _wait(self) -> None:
        """Wait until a message is here; raise how the subscription has ended."""

    @abstractmethod
    def _next(self) -> M:
        """Take the oldest message that is here."""

    @abstractmethod
    async def _leave(self, connection: C) -> None:
        """Say goodbye, after the confirmation of what was sent."""

    def _left_behind(self) -> None:
        """Learn that it ends without a connection to say goodbye on."""

    async def _open(self) -> None:
        """Make the first connection, and subscribe on it."""
        await self._link.open()

    # --- what users call --------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many messages are here and not yet handed out."""
        return len(self._inbox)

    @property
    def is_connected(self) -> bool:
        """Whether messages can come right now."""
        return self._connection is not None

    async def open(self) -> Self:
        """Subscribe, or resume."""
        if self._opened or self._end is not None:
            raise Closed("a subscription is entered once")
        try:
            await self._open()
        except BaseException:
            self._stop(Closed("the subscription could not be opened"))
            self._on_closed(self)
            raise
        self._opened = True
        return self

    async def __anext__(self) -> Message:
        if not self._inbox or not self._pushing:
            try:
                await self._wait()
            except Closed:
                raise StopAsyncIteration from None
        return self._next()

    async def take(self, limit: int) -> list[Message]:
        """Wait for messages as iterating does; return at least one and at most *limit*."""
        await self._wait()
        return [self._next() for _ in range(min(limit, len(self._inbox)))]

    async def drain(self) -> None:
        """Take no further messages and wait until acknowledgements are confirmed."""
        self._stop(Closed("the subscription is draining"))
        if self._connection is not None:
            await self._connection.settle()

    async def close(self) -> None:
        """End it, as leaving the context does."""
        if self._leaving:
            return
        self._leaving = True
        self._stop(Closed("the subscription was closed"))
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                async with asyncio.timeout(self._options.close_timeout):
                    await self._leave(connection)
            except TimeoutError:
                connection.abort("closing was not confirmed in time")
        elif self._opened and self._link.end is None:
            self._left_behind()
        await self._link.close()
        self._on_closed(self)

    # --- what the link calls ----------------------------------------------------------------

    def ended(self, error: ClientError) -> None:
        """End with the link."""
        self._connection = None
        self._stop(error)

    # --- inside -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end.with_traceback(None)
        if not self._opened:
            raise Closed("enter the subscription first: `async with`, or await it")

    def _stop(self, error: ClientError) -> None:
        if self._end is None:
            self._end = error
        self._inbox.clear()
        self._inbox.wake_all()
