"""The client over the Blip strand: publishing with fences, subscriptions on their own lines.

One connection publishes. Every subscription has a connection of its own, because a delivery
does not say which subscription it is for.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from braidmq.client.blip.connection import BlipConnection, Refusal, Tenant, open_connection
from braidmq.client.blip.publishing import (
    SERVER_ERROR,
    BlipFlight,
    Envelope,
    check_qos,
    check_topic,
    refused,
)
from braidmq.client.blip.subscription import BlipSubscription, Traits
from braidmq.client.deliveries import Payload, QueueInfo, Receipt, Stats
from braidmq.client.errors import (
    ClientError,
    InvalidArgument,
    NotSupported,
    OutcomeUnknown,
    PublishError,
)
from braidmq.client.options import Options, PublicKey
from braidmq.client.publishing import chunks
from braidmq.client.strand import StrandClient, refuse_sealing
from braidmq.client.surface import PREFETCH_DEFAULT, OnGap
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages

STRAND: Final = "blip"

KEY_BYTES_MAX: Final = frames.LENGTH_MAX_UNAUTHENTICATED - frames.LENGTH_MIN - 2
"""A longer key does not fit into the frame that a broker reads of a stranger."""


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


class BlipClient(StrandClient[BlipConnection, bytes]):
    """A client that speaks Blip; :func:`connect` makes it."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        super().__init__(endpoint, options)
        self._traits = Traits()

    async def _dial(self, on_lost: Callable[[BlipConnection], None]) -> BlipConnection:
        return await open_connection(self._endpoint, self._options, Tenant(), on_lost)

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> Receipt:
        """Publish a message; return when it is durable."""
        refuse_sealing(STRAND, recipient=recipient, schema=schema, envelope=envelope)
        for feature, value in (("headers", headers), ("priority", priority), ("ttl", ttl)):
            if value is not None:
                raise NotSupported(STRAND, feature)
        laid_out = Envelope(topic, qos)
        raw = laid_out.payload(payload)
        self._begin()
        try:
            return await self._publish(laid_out, raw, retry=retry)
        finally:
            self._finish()

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        qos: int = 1,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> list[Receipt | PublishError]:
        """Publish messages in one pipeline; return a receipt or an error for each, in order."""
        refuse_sealing(STRAND, recipient=recipient, schema=schema, envelope=envelope)
        laid_out = Envelope(topic, qos)
        return await self._publish_all(
            chunks(laid_out.payload, payloads),
            lambda chunk, connection: BlipFlight(laid_out, chunk, connection),
            retry=retry,
        )

    def subscribe(
        self,
        topic: str,
        *,
        qos: int = 1,
        prefetch: int = PREFETCH_DEFAULT,
        subscription_id: int | None = None,
        keep: bool | None = None,
        on_gap: OnGap | None = None,
        schema: str = "",
        envelope: bool = False,
    ) -> BlipSubscription:
        """Return a subscription, to be entered with `async with` or awaited."""
        refuse_sealing(STRAND, schema=schema, envelope=envelope)
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

    async def declare_queue(
        self,
        name: str,
        *,
        mode: str | None = None,
        max_size: int | None = None,
        ttl: float | None = None,
        dead_letters: bool | None = None,
        dead_letter_name: str | None = None,
        overflow: str | None = None,
        max_attempts: int | None = None,
        durable: bool | None = None,
    ) -> QueueInfo:
        """Raise NotSupported: Blip has topics only."""
        del name, mode, max_size, ttl, dead_letters, dead_letter_name, overflow
        del max_attempts, durable
        raise NotSupported(STRAND, "queues")

    async def queue_info(self, name: str) -> QueueInfo | None:
        """Raise NotSupported: Blip has topics only."""
        del name
        raise NotSupported(STRAND, "queues")

    async def list_queues(self) -> list[str]:
        """Raise NotSupported: Blip has topics only."""
        raise NotSupported(STRAND, "queues")

    async def delete_queue(self, name: str) -> None:
        """Raise NotSupported: Blip has topics only."""
        del name
        raise NotSupported(STRAND, "queues")

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

    # --- inside -----------------------------------------------------------------------------

    async def _publish(self, envelope: Envelope, payload: bytes, *, retry: bool) -> Receipt:
        backoff = self._retry_backoff()
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
                raise refused(refusal, envelope.topic)
            if not retry:
                raise OutcomeUnknown(str(connection.lost()))
            repeated = True
            if refusal is not None:
                await asyncio.sleep(backoff.next_delay())
