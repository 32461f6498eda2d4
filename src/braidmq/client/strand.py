"""What the clients of all strands do alike: publish in flights, repeat, drain, close.

One connection publishes; subscriptions have connections of their own. No frame is known here.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic

from braidmq.client.backoff import Backoff
from braidmq.client.connection import C
from braidmq.client.deliveries import Receipt
from braidmq.client.errors import (
    ClientError,
    Closed,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    PublishError,
    PublishRefused,
)
from braidmq.client.link import Health, Link, Resident
from braidmq.client.options import Options
from braidmq.client.publishing import FLIGHTS_MAX, Chunk, Flight, T
from braidmq.client.surface import Client, Subscription
from braidmq.client.url import Endpoint

RETRY_DELAY_S: Final = 0.1
RETRY_DELAY_MAX_S: Final = 5.0
"""Between repetitions of a publish that the broker could not store."""


def refuse_sealing(
    strand: str, *, recipient: object = None, schema: str = "", envelope: bool = False
) -> None:
    """Raise NotSupported for an option that only strands with sealed messages have."""
    for feature, given in (
        ("recipient", recipient is not None),
        ("schema", schema),
        ("envelope", envelope),
    ):
        if given:
            raise NotSupported(strand, feature)


class StrandClient(Client, Generic[C, T]):
    """A client whose publishing connection is a *C* and whose messages leave as *T*."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        self._endpoint = endpoint
        self._options = options
        self._health = Health(options)
        self._link: Link[C] = Link(endpoint, options, self._health, Resident(), self._dial)
        self._subscriptions: set[Subscription] = set()
        self._publishing = 0
        self._idle: asyncio.Future[None] | None = None
        self._draining = False

    @abstractmethod
    async def _dial(self, on_lost: Callable[[C], None]) -> C:
        """Make the publishing connection."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a publishing connection right now."""
        return self._link.current is not None

    async def open(self) -> None:
        """Make the publishing connection."""
        await self._link.open()

    async def ping(self) -> float:
        """Return the seconds of a round trip, every earlier publish's commit included."""
        connection = await self._link.ready()
        clock = asyncio.get_running_loop().time
        begin = clock()
        if not await connection.fence()[1]:
            raise connection.lost()
        return clock() - begin

    async def drain(self) -> None:
        """Take and publish nothing new; wait until everything under way is confirmed."""
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

    def _check_open(self) -> None:
        if self._link.end is not None:
            raise self._link.end.with_traceback(None)
        if self._draining:
            raise Closed("the client is draining")

    def _begin(self) -> None:
        try:
            self._check_open()
        except ClientError as error:
            raise self._unsent(error, repeated=False) from None
        self._publishing += 1

    def _finish(self) -> None:
        self._publishing -= 1
        if self._publishing == 0 and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    @staticmethod
    def _unsent(error: ClientError, *, repeated: bool) -> ClientError:
        if repeated:
            return OutcomeUnknown(str(error))  # an earlier attempt may have been stored
        return error if isinstance(error, Closed) else NotSent(str(error))

    @staticmethod
    def _retry_backoff() -> Backoff:
        return Backoff(RETRY_DELAY_S, RETRY_DELAY_MAX_S)

    def _is_worth_repeating(self, error: PublishError) -> bool:
        """Tell whether `retry=True` sends the message again."""
        return isinstance(error, OutcomeUnknown)

    def _renewed(
        self, one: T | PublishError, result: Receipt | PublishError
    ) -> T | PublishError:
        """Return a message as it is sent again."""
        del result
        return one

    async def _publish_all(
        self,
        chunks: Iterable[Chunk[T]],
        fly: Callable[[Chunk[T], C], Flight[T]],
        *,
        retry: bool,
    ) -> list[Receipt | PublishError]:
        """Let *chunks* *fly* as they are read; return what came of each message, in order."""
        results: list[Receipt | PublishError] = []
        flights: deque[Flight[T] | list[PublishError]] = deque()
        self._begin()
        try:
            for chunk in chunks:
                flights.append(await self._launch(fly, chunk))
                if len(flights) >= FLIGHTS_MAX:
                    results += await self._land(fly, flights.popleft(), retry=retry)
            while flights:
                results += await self._land(fly, flights.popleft(), retry=retry)
        finally:
            self._finish()
        return results

    async def _launch(
        self, fly: Callable[[Chunk[T], C], Flight[T]], chunk: Chunk[T]
    ) -> Flight[T] | list[PublishError]:
        """Hand a chunk over; when there is no connection, return an error for each."""
        while True:
            try:
                connection = await self._link.ready()
            except ClientError as error:
                return [
                    one if isinstance(one, PublishError) else NotSent(str(error))
                    for one in chunk
                ]
            await connection.writable()
            if not connection.is_lost:
                return fly(chunk, connection)

    async def _land(
        self,
        fly: Callable[[Chunk[T], C], Flight[T]],
        flight: Flight[T] | list[PublishError],
        *,
        retry: bool,
    ) -> list[Receipt | PublishError]:
        if not isinstance(flight, Flight):
            return list(flight)
        results = flight.results(reached=await flight.landed())
        backoff = self._retry_backoff()
        while retry and (again_at := self._to_repeat(results)):
            if any(isinstance(results[at], PublishRefused) for at in again_at):
                await asyncio.sleep(backoff.next_delay())
            for at in again_at:
                flight.chunk[at] = self._renewed(flight.chunk[at], results[at])
            again = await self._launch(fly, [flight.chunk[at] for at in again_at])
            if not isinstance(again, Flight):
                return results  # not having sent them again proves nothing: still in doubt
            outcome = again.results(reached=await again.landed(), repeated=True)
            for at, one in zip(again_at, outcome, strict=True):
                results[at] = one
        return results

    def _to_repeat(self, results: list[Receipt | PublishError]) -> list[int]:
        return [
            at
            for at, one in enumerate(results)
            if isinstance(one, PublishError) and self._is_worth_repeating(one)
        ]
