"""The client over the Vibe strand: publishing into queues, subscriptions, and the queues.

One connection publishes and manages. Every subscription has a connection of its own, so that a
queue can be subscribed to more than once and a slow handler holds up nobody else.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final

from braidmq.client.deliveries import Payload, QueueInfo, Receipt, Stats
from braidmq.client.errors import (
    InvalidArgument,
    NotSupported,
    PublishError,
    PublishRefused,
    QueueRefused,
)
from braidmq.client.options import Options, PublicKey
from braidmq.client.publishing import check_confirmed, chunks
from braidmq.client.strand import StrandClient, refuse_sealing
from braidmq.client.surface import PREFETCH_DEFAULT, OnGap
from braidmq.client.url import Endpoint
from braidmq.client.vibe.connection import (
    OFFERED_COMPRESSION,
    Tenant,
    VibeConnection,
    credentials,
    open_connection,
    refusal_of,
)
from braidmq.client.vibe.publishing import (
    STRAND,
    Envelope,
    Sealed,
    VibeFlight,
    check_queue,
)
from braidmq.client.vibe.queues import declaration, read_info, read_names
from braidmq.client.vibe.subscription import VibeSubscription
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.session import PREFETCH_MAX, QUEUE_NOT_FOUND, RATE_LIMITED

CREDENTIAL_BYTES_MAX: Final = (
    frames.BODY_MAX_UNAUTHENTICATED - 256 - len(OFFERED_COMPRESSION)  # and what is around them
)
"""Longer ones do not fit into the frame that a broker reads of a stranger."""

_PUBLISHER_ID_BYTES: Final = 8


async def connect(endpoint: Endpoint, options: Options) -> "VibeClient":
    """Return a client that is connected.

    Raises:
        InvalidArgument: There is neither a token nor a user's name and password.
        ConnectionFailed: No connection could be made; AuthenticationFailed: we are not known.
    """
    if not _are_usable(*credentials(endpoint).values()):
        forms = f"{STRAND}://TOKEN@{endpoint.address} or {STRAND}://USER:PASSWORD@…"
        raise InvalidArgument(f"no usable credentials: connect to {forms}, or pass key=")
    client = VibeClient(endpoint, options)
    await client.open()
    return client


def _are_usable(*texts: str) -> bool:
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        return False
    return all(texts) and size <= CREDENTIAL_BYTES_MAX


class VibeClient(StrandClient[VibeConnection, Sealed]):
    """A client that speaks Vibe; :func:`connect` makes it."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        super().__init__(endpoint, options)
        self._publisher = secrets.token_hex(_PUBLISHER_ID_BYTES)
        self._numbers = count(1)

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
        if ttl is not None:
            raise NotSupported(STRAND, "ttl of one message: declare the queue with it")
        laid_out = Envelope(topic, self._next_id, qos=qos, headers=headers, priority=priority)
        chunk: list[Sealed | PublishError] = [laid_out.seal(payload)]
        (result,) = await self._fly(laid_out, [chunk], retry=retry)
        if isinstance(result, PublishError):
            raise result
        return result

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
        laid_out = Envelope(topic, self._next_id, qos=qos)
        return await self._fly(laid_out, chunks(laid_out.seal, payloads), retry=retry)

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
    ) -> VibeSubscription:
        """Return a subscription, to be entered with `async with` or awaited."""
        refuse_sealing(STRAND, schema=schema, envelope=envelope)
        for feature, value in (
            ("subscription ids", subscription_id),
            ("keep: a queue keeps its messages anyway", keep),
            ("on_gap: a queue keeps its messages meanwhile", on_gap),
        ):
            if value is not None:
                raise NotSupported(STRAND, feature)
        self._check_open()
        check_queue(topic)
        check_confirmed(STRAND, qos)
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidArgument(f"prefetch is 1 to {PREFETCH_MAX}, not {prefetch}")
        subscription = VibeSubscription(
            topic,
            prefetch=prefetch,
            endpoint=self._endpoint,
            options=self._options,
            health=self._health,
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
        """Make a queue, and return it as it is now."""
        headers = declaration(
            mode=mode,
            max_size=max_size,
            ttl=ttl,
            dead_letters=dead_letters,
            dead_letter_name=dead_letter_name,
            overflow=overflow,
            max_attempts=max_attempts,
            durable=durable,
        )
        await self._manage(messages.CREATE_QUEUE, name, headers)
        info = await self.queue_info(name)
        if info is None:
            raise QueueRefused(name, QUEUE_NOT_FOUND, "it was deleted meanwhile")
        return info

    async def queue_info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None when there is none of that name."""
        payload = await self._manage(messages.QUEUE_INFO, name)
        return read_info(payload) if payload else None

    async def list_queues(self) -> list[str]:
        """Return the names of the queues that we may see."""
        return read_names(await self._ask(messages.LIST_QUEUES, ""))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all that waits in it; its dead letters stay."""
        await self._manage(messages.DELETE_QUEUE, name)

    async def stats(self) -> Stats:
        """Raise NotSupported: Vibe has numbers of single queues only."""
        raise NotSupported(STRAND, "stats: ask for a queue_info")

    # --- inside -----------------------------------------------------------------------------

    async def _dial(self, on_lost: Callable[[VibeConnection], None]) -> VibeConnection:
        return await open_connection(self._endpoint, self._options, Tenant(), on_lost)

    def _next_id(self) -> str:
        return f"{self._publisher}-{next(self._numbers)}"

    def _is_worth_repeating(self, error: PublishError) -> bool:
        is_too_soon = isinstance(error, PublishRefused) and error.code == RATE_LIMITED
        return is_too_soon or super()._is_worth_repeating(error)

    async def _fly(
        self,
        envelope: Envelope,
        chunks: Iterable[list[Sealed | PublishError]],
        *,
        retry: bool,
    ) -> list[Receipt | PublishError]:
        return await self._publish_all(
            chunks,
            lambda chunk, connection: VibeFlight(envelope, chunk, connection),
            retry=retry,
        )

    async def _manage(
        self, kind: int, name: str, headers: dict[str, str] | None = None
    ) -> bytes:
        check_queue(name)
        return await self._ask(kind, name, headers)

    async def _ask(self, kind: int, name: str, headers: dict[str, str] | None = None) -> bytes:
        connection = await self._link.ready()
        answer = await connection.ask(kind, name, headers)
        refusal = refusal_of(answer)
        if refusal is not None:
            raise QueueRefused(name, refusal.code, refusal.text)
        return answer.payload
