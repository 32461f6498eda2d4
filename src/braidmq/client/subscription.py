"""A subscription: what users do with it, and what the strands' own have in common.

How messages are requested and acknowledged is up to each strand.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from math import isnan
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Self, cast

from braidmq.client.connection import C, V
from braidmq.client.deliveries import Message
from braidmq.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    InvalidArgument,
    StaleDelivery,
    SubscriptionGone,
    SubscriptionRefused,
)
from braidmq.client.inbox import Inbox, M
from braidmq.client.link import Dialer, Link, Owner
from braidmq.client.replies import Refusal

FETCH_GRACE_S: Final = 1.0
"""How long one answer may take even if the caller's timeout is shorter, for example 0."""

_NONE_REFUSED: Final[Mapping[str, int]] = MappingProxyType({})

log = logging.getLogger("braidmq.client")


class Subscription(ABC):
    """A stream of one topic's messages: an async context manager and an async iterator.

    Entering (or awaiting) it subscribes. Leaving it undoes that: a new subscription is removed
    from the broker unless `keep=True` was given; one that was resumed by its id stays unless
    `keep=False` was given.
    """

    topic: str
    qos: int
    subscription_id: int
    """The broker's id of this subscription, to resume it by; 0 before it is entered, and on
    strands without such ids."""

    _redelivers: ClassVar[bool] = True
    """Whether the broker delivers again what was received and not acknowledged."""

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason, on strands with sealed messages."""
        return _NONE_REFUSED

    @abstractmethod
    async def open(self) -> Self:
        """Subscribe; called by entering and awaiting."""

    @abstractmethod
    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none.

        Returns at once if messages are waiting, else waits up to *timeout* seconds for the
        first; `timeout=0` takes what the broker has now.
        """

    @abstractmethod
    async def take(self, limit: int) -> list[Message]:
        """Wait for messages as iterating does; return at least one and at most *limit*.

        Raises:
            Closed: The subscription was closed or drained.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Take no further messages and wait until acknowledgements are confirmed.

        Messages that were received and not handed out go back to the broker, and iterating
        ends. Qumbed cannot give back: there, iterating ends after the messages received so far.
        """

    @abstractmethod
    async def close(self) -> None:
        """End it, as leaving the context does."""

    @abstractmethod
    async def __anext__(self) -> Message: ...

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.open().__await__()


class Consumer(Subscription, Owner[C], Generic[C, M]):
    """A subscription on a connection of its own.

    By default the broker pushes, and a message that is waiting is handed out while the
    subscription is open.
    """

    transient_codes: ClassVar[frozenset[int | str]] = frozenset()
    """Refusals that a reconnecting subscription retries instead of ending."""

    gone_code: ClassVar[int | str | None] = None
    """The refusal that says that there is nothing to subscribe to."""

    def __init__(
        self,
        topic: str,
        *,
        qos: int,
        inbox: Inbox[M],
        dialer: Dialer[C, V],
        on_closed: Callable[[Subscription], None],
    ) -> None:
        self.topic = topic
        self.qos = qos
        self.subscription_id = 0
        self._options = dialer.options
        self._health = dialer.health
        self._address = dialer.endpoint.address
        self._inbox = inbox
        self._on_closed = on_closed
        # Each strand's subscription is what its connections deliver to.
        self._link: Link[C] = Link(dialer, self, cast("V", self))
        self._connection: C | None = None
        self._opened = False
        self._pushing = True  # the broker sends messages without being polled
        self._end: ClientError | None = None
        self._leaving = False

    # --- implemented by each strand ---------------------------------------------------------

    @abstractmethod
    def _next(self) -> M:
        """Take the oldest message that is waiting."""

    @abstractmethod
    async def _leave(self, connection: C) -> None:
        """Unsubscribe, after what was sent is confirmed."""

    def _left_behind(self) -> None:
        """Note that it ends without a connection to unsubscribe on."""

    def _make_room(self, count: int) -> None:
        """Allow the broker to send *count* more messages than were handed out."""

    async def _open(self) -> None:
        """Make the first connection, and subscribe on it."""
        await self._link.open()

    # --- called by users --------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many messages have been received and not yet handed out."""
        return len(self._inbox)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._connection is not None

    async def open(self) -> Self:
        """Subscribe, or resume."""
        if self._opened or self._end is not None:
            raise Closed("a subscription can be entered only once")
        try:
            await self._open()
        except BaseException:
            self._stop(Closed("the subscription could not be opened"))
            self._on_closed(self)
            raise
        self._opened = True
        return self

    async def __anext__(self) -> Message:
        # Messages that a `fetch` has left may be here before the broker was asked to push.
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

    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none."""
        if max < 1:
            raise InvalidArgument(f"max must be at least 1, not {max}")
        if isnan(timeout):
            raise InvalidArgument(f"timeout must be a number of seconds, not {timeout}")
        await self._gather(max, asyncio.get_running_loop().time() + timeout)
        return [self._next() for _ in range(min(max, len(self._inbox)))]

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
        # Cleared first: nothing may be acknowledged behind the unsubscribe.
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

    # --- called by the connection and the link ----------------------------------------------

    def delivered(self) -> None:
        """Wake one waiter for each message."""
        self._inbox.wake()

    async def abandon(self, connection: C) -> None:
        """Unsubscribe: the caller was cancelled while it subscribed."""
        self._connection = None
        await self._leave(connection)

    def ended(self, error: ClientError) -> None:
        """End with the link."""
        self._connection = None
        self._stop(error)

    # --- inside -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end.with_traceback(None)  # one error, raised to many callers
        if not self._opened:
            raise Closed("enter the subscription first: `async with`, or await it")

    def _stop(self, error: ClientError) -> None:
        if self._end is None:
            self._end = error
        self._inbox.clear()
        self._inbox.wake_all()

    async def _wait(self) -> None:
        """Wait until a message is here; raise how the subscription has ended."""
        self._check_open()
        while not self._inbox:
            # A handler that holds all messages it was allowed, and waits, wants one more.
            self._make_room(1)
            await self._inbox.arrival(None)
            self._check_open()

    async def _gather(self, count: int, deadline: float) -> None:
        """Wait for the first of *count* messages until the loop's time is *deadline*."""
        clock = asyncio.get_running_loop().time
        self._check_open()
        self._make_room(count)
        if not self._inbox and clock() >= deadline and self._connection is not None:
            # After a round trip, everything that the broker had for us is here. If it is late,
            # nothing is lost: it goes to the inbox.
            with suppress(TimeoutError):
                async with asyncio.timeout(FETCH_GRACE_S):
                    await self._connection.fence()[1]
        while not self._inbox and (left := deadline - clock()) > 0:
            await self._inbox.arrival(left)
            self._check_open()
        self._check_open()

    def _refused(self, refusal: Refusal) -> ClientError:
        """Return the error for a subscribe that the broker refused."""
        if self._opened and refusal.code in self.transient_codes:
            # ConnectionLost makes the link back off and try again.
            reason = f"subscribing again was refused: {refusal.code} {refusal.text}"
            return ConnectionLost(self._address, reason)
        kind = SubscriptionGone if refusal.code == self.gone_code else SubscriptionRefused
        return kind(self.topic, refusal.code, refusal.text)

    async def _unsubscribe(self, connection: C, write: Callable[[int], bytes]) -> None:
        try:
            answer = await connection.ask(write)
        except ConnectionLost:
            return  # it ends at the broker with its connection or, on Blip, with its lease
        refusal = connection.refusal_of(answer)
        if refusal is not None:
            log.warning("unsubscribing was refused: %s %s", refusal.code, refusal.text)


def report_stale(delivery_id: int | str, text: str, *, confirmed: bool) -> None:
    """Raise StaleDelivery if the caller waits for the confirmation, else log it."""
    if confirmed:
        raise StaleDelivery(delivery_id, text)
    log.warning("delivery %s cannot be acknowledged: %s", delivery_id, text)
