"""The client over the Blip strand: publishing with fences, subscriptions on their own lines.

One connection publishes. Every subscription has a connection of its own, because a delivery
does not say which subscription it is for.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from braidmq.client.backoff import Backoff
from braidmq.client.connection import Refusal
from braidmq.client.errors import (
    ClientError,
    Closed,
    InvalidArgument,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
)
from braidmq.client.link import Health, Link, Resident
from braidmq.client.messages import Payload, Receipt, Stats
from braidmq.client.options import Options
from braidmq.client.publishing import (
    FLIGHTS_MAX,
    SERVER_ERROR,
    Chunk,
    Envelope,
    Flight,
    check_qos,
    check_topic,
    chunks,
    refused,
)
from braidmq.client.subscription import BlipSubscription, Traits
from braidmq.client.surface import PREFETCH_DEFAULT, Client, OnGap
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages

STRAND: Final = "blip"

KEY_BYTES_MAX: Final = frames.LENGTH_MAX_UNAUTHENTICATED - frames.LENGTH_MIN - 2
"""A longer key does not fit into the frame that a broker reads of a stranger."""

RETRY_DELAY_S: Final = 0.1
RETRY_DELAY_MAX_S: Final = 5.0
"""Between repetitions of a publish that the broker could not store (code 500)."""


async def connect(endpoint: Endpoint, options: Options) -> "BlipClient":
    """Return a client that is connected.

    Raises:
        InvalidArgument: The key is none.
        ConnectionFailed: No connection could be made; AuthenticationFailed: the key is wrong.
    """
    if not 1 <= len(endpoint.key.encode(errors="replace")) <= KEY_BYTES_MAX:
        form = f"{STRAND}://KEY@{endpoint.address}"
        raise InvalidArgument(f"no usable API key: connect to {form} or pass key=")
    client = BlipClient(endpoint, options)
    await client.open()
    return client


class BlipClient(Client):
    """A client that speaks Blip; :func:`connect` makes it."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        self._endpoint = endpoint
        self._options = options
        self._health = Health(options)
        self._traits = Traits()
        self._link = Link(endpoint, options, self._health, Resident())
        self._subscriptions: set[BlipSubscription] = set()
        self._publishing = 0
        self._idle: asyncio.Future[None] | None = None
        self._draining = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a publishing connection right now."""
        return self._link.current is not None

    async def open(self) -> None:
        """Make the publishing connection."""
        await self._link.open()

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        retry: bool = False,
    ) -> Receipt:
        """Publish a message; return when it is durable."""
        for feature, value in (("headers", headers), ("priority", priority), ("ttl", ttl)):
            if value is not None:
                raise NotSupported(STRAND, feature)
        envelope = Envelope(topic, qos)
        raw = envelope.payload(payload)
        self._begin()
        try:
            return await self._publish(envelope, raw, retry=retry)
        finally:
            self._finish()

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        qos: int = 1,
        retry: bool = False,
    ) -> list[Receipt | PublishError]:
        """Publish messages in one pipeline; return a receipt or an error for each, in order."""
        envelope = Envelope(topic, qos)
        results: list[Receipt | PublishError] = []
        flights: deque[Flight | Chunk] = deque()
        self._begin()
        try:
            for chunk in chunks(envelope, payloads):
                flights.append(await self._launch(envelope, chunk))
                if len(flights) >= FLIGHTS_MAX:
                    results += await self._land(envelope, flights.popleft(), retry=retry)
            while flights:
                results += await self._land(envelope, flights.popleft(), retry=retry)
        finally:
            self._finish()
        return results

    def subscribe(
        self,
        topic: str,
        *,
        qos: int = 1,
        prefetch: int = PREFETCH_DEFAULT,
        subscription_id: int | None = None,
        keep: bool | None = None,
        on_gap: OnGap | None = None,
    ) -> BlipSubscription:
        """Return a subscription, to be entered with `async with` or awaited."""
        self._check_open()
        check_topic(topic)
        check_qos(qos)
        if prefetch < 1:
            raise InvalidArgument(f"prefetch is at least 1, not {prefetch}")
        if subscription_id is not None and subscription_id < 1:
            raise InvalidArgument(f"subscription ids are above 0, not {subscription_id}")
        subscription = BlipSubscription(
            topic,
            qos=qos,
            prefetch=prefetch,
            subscription_id=subscription_id or 0,
            keep=subscription_id is not None if keep is None else keep,
            on_gap=on_gap,
            endpoint=self._endpoint,
            options=self._options,
            health=self._health,
            traits=self._traits,
            on_closed=self._subscriptions.discard,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def stats(self) -> Stats:
        """Return the broker's numbers."""
        if not self._traits.credit:
            # It knows none of the frames beyond the specification, and would hang up.
            raise NotSupported(STRAND, "stats at this broker")
        connection = await self._link.ready()
        answer = await connection.ask(lambda cid: frames.encode(frames.STATS, cid))
        if answer is None:
            raise connection.lost()
        if isinstance(answer, Refusal):
            raise ClientError(f"stats refused: {answer.code} {answer.text}")
        assert isinstance(answer, messages.Stats)
        return Stats(
            answer.topics,
            answer.subscribers,
            answer.messages_published,
            answer.messages_delivered,
            answer.inflight,
        )

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

    async def _publish(self, envelope: Envelope, payload: bytes, *, retry: bool) -> Receipt:
        backoff = Backoff(RETRY_DELAY_S, RETRY_DELAY_MAX_S)
        repeated = False
        while True:
            try:
                connection = await self._link.ready()
            except ClientError as error:
                raise self._unsent(error, repeated=repeated) from error
            await connection.writable()
            if connection.is_lost:
                continue  # while it was full; nothing was handed over
            correlation_id = connection.publish(envelope.prefix, payload, qos=envelope.qos)
            if envelope.qos == 0:
                return envelope.receipt()
            fence, reached = connection.fence()
            reached_it = await reached
            refusal = fence.refusals.get(correlation_id)
            if refusal is None and reached_it:
                return envelope.receipt(repeated=repeated)
            if refusal is not None and not (retry and refusal.code >= SERVER_ERROR):
                raise refused(refusal)
            if not retry:
                raise OutcomeUnknown(str(connection.lost()))
            repeated = True
            if refusal is not None:
                await asyncio.sleep(backoff.next_delay())

    @staticmethod
    def _unsent(error: ClientError, *, repeated: bool) -> ClientError:
        if repeated:
            return OutcomeUnknown(str(error))  # an earlier attempt may have been stored
        return error if isinstance(error, Closed) else NotSent(str(error))

    async def _launch(self, envelope: Envelope, chunk: Chunk) -> Flight | Chunk:
        """Hand a chunk over; when there is no connection, return it as a chunk of errors."""
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
                return Flight(envelope, chunk, connection)

    async def _land(
        self, envelope: Envelope, flight: Flight | Chunk, *, retry: bool
    ) -> list[Receipt | PublishError]:
        if not isinstance(flight, Flight):
            return [one for one in flight if isinstance(one, PublishError)]
        results = flight.results(reached=await flight.landed())
        backoff = Backoff(RETRY_DELAY_S, RETRY_DELAY_MAX_S)
        while retry and (doubtful := _doubtful(results)):
            if any(isinstance(results[at], PublishFailed) for at in doubtful):
                await asyncio.sleep(backoff.next_delay())
            again = await self._launch(envelope, [flight.chunk[at] for at in doubtful])
            if not isinstance(again, Flight):
                return results  # not having sent them again proves nothing: still in doubt
            outcome = again.results(reached=await again.landed(), repeated=True)
            for at, one in zip(doubtful, outcome, strict=True):
                results[at] = one
        return results


def _doubtful(results: list[Receipt | PublishError]) -> list[int]:
    return [at for at, one in enumerate(results) if isinstance(one, OutcomeUnknown)]
