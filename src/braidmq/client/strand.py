"""What every strand does for a client: publish in flights, retry, drain, close.

One connection publishes; each subscription has a connection of its own. No frame is known here.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Generic, Protocol, cast

from braidmq.client.answers import QueueInfo, Receipt, Stats
from braidmq.client.connection import C, Post, V
from braidmq.client.errors import (
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
    InvalidArgument,
    NotSent,
    OutcomeUnknown,
    PublishError,
    PublishRefused,
)
from braidmq.client.link import Dialer, Link, Owner, backoff
from braidmq.client.options import (
    Outgoing,
    Payload,
    PublishOptions,
    QueueOptions,
    SubscribeOptions,
)
from braidmq.client.publishing import (
    FLIGHTS_MAX,
    Chunk,
    Flight,
    Posting,
    T,
    chunks,
)
from braidmq.client.subscription import Subscription

RETRY_DELAY_S: Final = 0.1
RETRY_DELAY_MAX_S: Final = 5.0
"""Between attempts to publish a message that the broker could not store."""


class Queues(Protocol):
    """The queues of a strand that has them; the surface documents the methods."""

    async def declare(self, name: str, options: QueueOptions) -> QueueInfo:
        """Create a queue unless it exists; return it as it is now."""

    async def info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None if there is no such queue."""

    async def names(self) -> list[str]:
        """Return the names of the queues that these credentials may see."""

    async def delete(self, name: str) -> None:
        """Delete a queue."""


class Strand(ABC, Generic[C, T]):
    """Publishes over a connection *C*, as messages *T*; the base of every strand's own.

    Options that the strand lacks never get here: the surface has refused them.
    """

    name: ClassVar[str]

    busy_codes: ClassVar[frozenset[int | str]] = frozenset()
    """Refusals after which `retry=True` sends again: the broker only asks to slow down."""

    def __init__(self, dialer: Dialer[C, V], receiver: V) -> None:
        self._dialer: Dialer[C, Any] = dialer
        self._options = dialer.options
        self._link: Link[C] = Link(dialer, Owner(), receiver)
        self._subscriptions: set[Subscription] = set()
        self._publishing = 0
        self._idle: asyncio.Future[None] | None = None
        self._draining = False
        self.queues: Queues | None = None

    # --- implemented by each strand ---------------------------------------------------------

    @abstractmethod
    def _posting(self, topic: str, options: PublishOptions) -> Posting[C, T]:
        """Check the topic and options of a publish."""

    @abstractmethod
    def _subscription(self, topic: str, options: SubscribeOptions) -> Subscription:
        """Return a subscription that calls :meth:`_forget` when it is closed."""

    async def stats(self) -> Stats:
        """Return the broker's numbers; called only if the strand has them."""
        raise NotImplementedError

    # --- called by the surface --------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a publishing connection right now."""
        return self._link.current is not None

    @property
    def public_key(self) -> bytes:
        """The key that others seal for; empty on strands without sealing."""
        return b""

    @property
    def gateway_public_key(self) -> bytes:
        """The broker's own key; empty on strands without sealing."""
        return b""

    async def open(self) -> None:
        """Make the publishing connection."""
        await self._link.open()

    async def publish(self, topic: str, payload: Payload, options: PublishOptions) -> Receipt:
        """Publish one message."""
        posting = self._posting(topic, options)
        chunk: Chunk[T] = [posting.lay_out(payload)]
        self._begin()
        try:
            flight = self._launch_now(posting, chunk) or await self._launch(posting, chunk)
            results = await flight.land()
            if options.retry:
                await self._retry(posting, flight.chunk, results)
        except (ConnectionFailed, ConnectionLost) as error:
            # Only `_launch` raises these. A connection that breaks later is a result of
            # `land`, OutcomeUnknown, so that the two can be told apart.
            raise NotSent(str(error)) from error
        finally:
            self._finish()
        (result,) = results
        if isinstance(result, PublishError):
            raise result
        return result

    async def publish_many(
        self, topic: str, payloads: Iterable[Payload | Outgoing], options: PublishOptions
    ) -> list[Receipt | PublishError]:
        """Publish messages as they are read; return the outcome of each, in order."""
        posting = self._posting(topic, options)
        results: list[Receipt | PublishError] = []
        flights: deque[Flight[T]] = deque()

        async def land_until(left: int) -> None:
            while len(flights) > left:
                flight = flights.popleft()
                landed = await flight.land()
                if options.retry:
                    await self._retry(posting, flight.chunk, landed)
                results.extend(landed)

        self._begin()
        try:
            for chunk in chunks(posting, payloads):
                try:
                    flights.append(await self._launch(posting, chunk))
                except ClientError as error:
                    await land_until(0)  # results are in the order of the payloads
                    results += [
                        one if isinstance(one, PublishError) else NotSent(str(error))
                        for one in chunk
                    ]
                await land_until(FLIGHTS_MAX - 1)
            await land_until(0)
        finally:
            self._finish()
        return results

    def subscribe(self, topic: str, options: SubscribeOptions) -> Subscription:
        """Return a subscription that is not yet open."""
        self._check_open()
        if options.prefetch < 1:
            raise InvalidArgument(f"prefetch must be at least 1, not {options.prefetch}")
        subscription = self._subscription(topic, options)
        self._subscriptions.add(subscription)
        return subscription

    async def ping(self) -> float:
        """Return the seconds of a round trip, including the commit of every earlier publish."""
        connection = await self._link.ready()
        clock = asyncio.get_running_loop().time
        begin = clock()
        if not await connection.fence()[1]:
            raise connection.lost()
        return clock() - begin

    async def drain(self) -> None:
        """Start nothing new; wait until everything in flight is confirmed."""
        self._draining = True
        await asyncio.gather(*(one.drain() for one in list(self._subscriptions)))
        if self._publishing:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
        if self._link.current is not None:
            await self._link.current.settle()

    async def close(self) -> None:
        """Close subscriptions and connections; what was sent is confirmed first."""
        self._draining = True
        await asyncio.gather(*(one.close() for one in list(self._subscriptions)))
        connection = self._link.current
        if connection is not None:
            try:
                async with asyncio.timeout(self._options.close_timeout):
                    await connection.settle()
            except TimeoutError:
                connection.abort("closing was not confirmed in time")
        await self._link.close()

    # --- inside -----------------------------------------------------------------------------

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def _check_open(self) -> None:
        if self._link.end is not None:
            raise self._link.end.with_traceback(None)
        if self._draining:
            raise Closed("the client is draining")

    def _begin(self) -> None:
        """Count a publish, which `drain` then waits for."""
        # Closed is the program's own doing. A link that ended for another reason has not sent
        # the message, which is what a publisher needs to know.
        try:
            self._check_open()
        except Closed:
            raise
        except ClientError as error:
            raise NotSent(str(error)) from None
        self._publishing += 1

    def _finish(self) -> None:
        self._publishing -= 1
        if self._publishing == 0 and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _launch_now(self, posting: Posting[C, T], chunk: Chunk[T]) -> Flight[T] | None:
        """Hand a chunk over if that takes no waiting: the common case, made fast."""
        connection = self._link.current
        if connection is None or not connection.is_ready:
            return None
        return posting.fly(chunk, connection)

    async def _launch(self, posting: Posting[C, T], chunk: Chunk[T]) -> Flight[T]:
        """Hand a chunk over.

        Raises:
            ClientError: There is no connection, so nothing of it was sent.
        """
        while True:
            connection = await self._link.ready()
            await connection.writable()
            # A connection that broke while its buffer was full took nothing of this chunk.
            if not connection.is_lost:
                return posting.fly(chunk, connection)

    async def _retry(
        self, posting: Posting[C, T], chunk: Chunk[T], results: list[Receipt | PublishError]
    ) -> None:
        """Send messages of *chunk* again until their *results* need no retry."""
        delays = backoff(RETRY_DELAY_S, RETRY_DELAY_MAX_S)
        perhaps_stored: set[int] = set()
        while again_at := [at for at, one in enumerate(results) if self._is_retried(one)]:
            if any(isinstance(results[at], PublishRefused) for at in again_at):
                await asyncio.sleep(next(delays))
            # Only what was refused each time is laid out afresh. If an attempt may have stored
            # it, the id stays the same, so that the broker can recognise it.
            perhaps_stored.update(
                at for at in again_at if isinstance(results[at], OutcomeUnknown)
            )
            for at in again_at:
                one = chunk[at]
                if isinstance(one, Post) and at not in perhaps_stored:
                    chunk[at] = cast("T", one.renewed())
            try:
                flight = await self._launch(posting, [chunk[at] for at in again_at])
            except ClientError:
                # That they could not be sent again says nothing about the first attempt:
                # their outcome is still unknown.
                return
            for at, result in zip(again_at, await flight.land(repeated=True), strict=True):
                results[at] = result

    def _is_retried(self, result: Receipt | PublishError) -> bool:
        """Tell whether `retry=True` sends a message with this outcome again."""
        if isinstance(result, PublishRefused) and result.code in self.busy_codes:
            return True
        return isinstance(result, OutcomeUnknown)


AnyStrand = Strand[Any, Any]
