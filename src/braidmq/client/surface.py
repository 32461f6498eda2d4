"""One surface for all strands: every public signature and its documentation, written once.

The surface checks what no strand would take (`capabilities` says what each one lacks) and hands
the rest to the strand as a record of options. The blocking facade in `sync` is made from the
methods here.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Final, Self

from braidmq.client import capabilities
from braidmq.client.answers import QueueInfo, Receipt, Stats
from braidmq.client.errors import InvalidArgument, PublishError
from braidmq.client.options import (
    PREFETCH_DEFAULT,
    DeliveryMode,
    OnGap,
    Outgoing,
    Overflow,
    Payload,
    PublicKey,
    PublishOptions,
    QueueOptions,
    SubscribeOptions,
)
from braidmq.client.strand import AnyStrand, Queues
from braidmq.client.subscription import Subscription

_PUBLISH_DEFAULTS: Final = PublishOptions()
_SUBSCRIBE_DEFAULTS: Final = SubscribeOptions()


class Client:
    """A connection to a broker, made again when it breaks."""

    def __init__(self, strand: AnyStrand) -> None:
        self._strand = strand

    @property
    def is_connected(self) -> bool:
        """Whether there is a publishing connection right now."""
        return self._strand.is_connected

    @property
    def public_key(self) -> bytes:
        """The key that others seal for, so that this client can open it; empty without one."""
        return self._strand.public_key

    @property
    def gateway_public_key(self) -> bytes:
        """The broker's own key, as the broker reports it; empty if there is none."""
        return self._strand.gateway_public_key

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
        """Publish a message; return when it is durable (with QoS 0: when it is sent).

        Without a connection this waits for one, for at most `offline_timeout`. If the
        connection breaks before the confirmation, the message may have been stored or not:
        that raises OutcomeUnknown. With *retry* the client sends it again instead, perhaps
        storing it twice, until the broker confirms it or refuses it for good; use
        `asyncio.timeout` to limit that. *priority* is a :class:`~braidmq.Priority` or its
        number.

        With *recipient*, a public key, the message is sealed: only the holder of that key can
        read it, and knows who sent it. *envelope* seals the topic, schema, sequence number and
        time in with it, so that a relay can neither replay it nor pass it off as another.
        *schema* is the id of the schema that the payload conforms to.

        Raises:
            PublishRefused: The broker refused it; `code` and `text` say why.
            OutcomeUnknown: The connection broke before the confirmation.
            NotSent: There was no connection.
            InvalidArgument: The topic, payload or an option is invalid.
            NotSupported: The strand lacks an option that was given.
            Closed: The client was closed, or is draining.
        """
        given = (qos, headers, priority, ttl, recipient, schema, envelope, retry)
        options = _PUBLISH_DEFAULTS
        # Plain publishes share one record: building one for each message would cost more than
        # everything else here.
        if given != _PUBLISH_DEFAULTS:
            options = PublishOptions(*given)
            self._check(options, _PUBLISH_DEFAULTS)
        return await self._strand.publish(topic, payload, options)

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload | Outgoing],
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> list[Receipt | PublishError]:
        """Publish messages in one pipeline; return a receipt or an error for each, in order.

        *payloads* is read as fast as the broker accepts them, so it may be a long generator; it
        is read on the event loop, so it must not block. The options are those of `publish`, and
        hold for every message. A :class:`~braidmq.Outgoing` among the payloads adds headers or
        a priority of its own; on a strand without them its outcome is NotSent.

        Raises:
            InvalidArgument: The topic or an option is invalid.
            NotSupported: The strand lacks an option that was given.
            Closed: The client was closed, or is draining.
        """
        options = PublishOptions(
            qos=qos,
            headers=headers,
            priority=priority,
            recipient=recipient,
            schema=schema,
            envelope=envelope,
            retry=retry,
        )
        self._check(options, _PUBLISH_DEFAULTS)
        return await self._strand.publish_many(topic, payloads, options)

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
    ) -> Subscription:
        """Return a subscription, to be entered or awaited.

        At most *prefetch* messages wait in the client; the actual number adapts to the
        handler's speed. *subscription_id* resumes a subscription that was kept. *keep* says
        what leaving does (see :class:`Subscription`). If the broker has forgotten the
        subscription while the connection was down, a new one replaces it and *on_gap* is
        called: the messages in between are missed. *schema* is the id of the schema that the
        topic's payloads conform to; *envelope* refuses sealed messages without one.

        Raises:
            InvalidArgument: The topic or an option is invalid.
            NotSupported: The strand lacks an option that was given.
            Closed: The client was closed, or is draining.
        """
        options = SubscribeOptions(
            qos=qos,
            prefetch=prefetch,
            subscription_id=subscription_id,
            keep=keep,
            on_gap=on_gap,
            schema=schema,
            envelope=envelope,
        )
        self._check(options, _SUBSCRIBE_DEFAULTS)
        return self._strand.subscribe(topic, options)

    async def declare_queue(
        self,
        name: str,
        *,
        mode: DeliveryMode | None = None,
        max_size: int | None = None,
        ttl: float | None = None,
        dead_letters: bool | None = None,
        dead_letter_name: str | None = None,
        overflow: Overflow | None = None,
        max_attempts: int | None = None,
        durable: bool | None = None,
    ) -> QueueInfo:
        """Create a queue unless it exists, and return it as it is now.

        The broker chooses every option that is not given. *mode* is `RoundRobin`,
        `FanOutWithAck`, `FanOutWithoutAck` or `PriorityBased`, and *overflow* `DropOldest`,
        `DropNewest`, `BlockPublisher` or `RedirectToDlq`; `round_robin`, `drop_oldest` and so
        on are the same, and case does not matter. A queue that exists keeps its options, as
        the result shows.

        Raises:
            InvalidArgument: The name or an option is invalid.
            QueueRefused: The broker refused the request.
            ConnectionLost: The connection broke before the answer.
            NotSupported: The strand has no queues.
        """
        options = QueueOptions(
            mode=mode,
            max_size=max_size,
            ttl=ttl,
            dead_letters=dead_letters,
            dead_letter_name=dead_letter_name,
            overflow=overflow,
            max_attempts=max_attempts,
            durable=durable,
        )
        return await self._queues().declare(name, options)

    async def queue_info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None if there is no such queue.

        Raises as :meth:`declare_queue` does.
        """
        return await self._queues().info(name)

    async def list_queues(self) -> list[str]:
        """Return the names of the queues that these credentials may see; raises as above."""
        return await self._queues().names()

    async def delete_queue(self, name: str) -> None:
        """Delete a queue and all messages in it; its dead letters stay. Raises as above."""
        await self._queues().delete(name)

    async def stats(self) -> Stats:
        """Return the broker's numbers.

        Raises:
            NotSupported: The strand has no such request, or the broker does not know it.
            ConnectionLost: The connection broke before the answer.
        """
        capabilities.check(self._strand.name, ("stats",))
        return await self._strand.stats()

    async def ping(self) -> float:
        """Return the seconds of a round trip, including the commit of every earlier publish."""
        return await self._strand.ping()

    async def drain(self) -> None:
        """Start nothing new; wait until everything in flight is confirmed."""
        await self._strand.drain()

    async def close(self) -> None:
        """Close subscriptions and connections; what was sent is confirmed first."""
        await self._strand.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check(
        self,
        given: PublishOptions | SubscribeOptions,
        defaults: PublishOptions | SubscribeOptions,
    ) -> None:
        if given.qos not in {0, 1}:
            raise InvalidArgument(f"qos is 0 or 1, not {given.qos}")
        capabilities.check_options(self._strand.name, given, defaults)

    def _queues(self) -> Queues:
        capabilities.check(self._strand.name, ("queues",))
        assert self._strand.queues is not None
        return self._strand.queues


class Connecting:
    """What `connect` returns: await it for a client, or enter it to have it closed as well."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()
