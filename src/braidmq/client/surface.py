"""One surface for all strands: what a client and a subscription can do, and nothing of how."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from braidmq.client.deliveries import Message, Payload, QueueInfo, Receipt, Stats
from braidmq.client.errors import PublishError
from braidmq.client.options import PublicKey

OnGap = Callable[[int, int], object]
"""Called with the id of the subscription that was lost and of the one that replaces it."""

PREFETCH_DEFAULT: Final = 256
"""Messages that wait here for a fast handler; a slow one has fewer waiting."""


_NONE_REFUSED: Final[Mapping[str, int]] = MappingProxyType({})


class Subscription(ABC):
    """A stream of one topic's messages: an async context manager and an async iterator.

    Entering (or awaiting) it subscribes. Leaving it ends what entering has made: a new
    subscription is removed from the broker, unless `keep=True` was asked; one that was resumed
    by its id stays, unless `keep=False` was asked.
    """

    topic: str
    qos: int
    subscription_id: int
    """The broker's number of this subscription, to resume it by; 0 before it is entered, and on
    strands that resume none."""

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason; on strands with sealed messages."""
        return _NONE_REFUSED

    @abstractmethod
    async def open(self) -> Self:
        """Subscribe; called by entering and awaiting."""

    @abstractmethod
    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none.

        Returns at once when any are there, else waits for the first for *timeout* seconds;
        `timeout=0` takes what the broker has now.
        """

    @abstractmethod
    async def take(self, limit: int) -> list[Message]:
        """Wait for messages as iterating does; return at least one and at most *limit*.

        Raises:
            Closed: The subscription was closed, or drained.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Take no further messages and wait until acknowledgements are confirmed.

        What was received and not handed out goes back to the broker; iterating ends. Qumbed
        takes nothing back: there, iterating ends behind what was received.
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.open().__await__()


class Client(ABC):
    """A connection to a broker, made again when it breaks."""

    @abstractmethod
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
        """Publish a message; return when it is durable (QoS 0: when it is handed over).

        While there is no connection this waits for one, for at most `offline_timeout`. When
        the connection breaks before the confirmation, the message may be stored or not:
        that raises OutcomeUnknown. *retry* asks to repeat it instead, perhaps storing it twice,
        until it is confirmed or refused for good; bound that with `asyncio.timeout`.
        *priority* is a :class:`~braidmq.Priority` or its number.

        With *recipient*, a public key, the message is sealed: only its holder can read it, and
        knows who sent it. *envelope* seals topic, schema, number and time in with it, so that
        nobody on the way can show it again or pass it for another. *schema* is the id of a
        schema that the payload keeps to.

        Raises:
            PublishRefused: The broker said no; `code` and `text` say why.
            OutcomeUnknown: The connection broke first.
            NotSent: There was no connection.
            InvalidArgument: Topic, payload or qos cannot be published.
            NotSupported: The strand lacks an option that was given.
            Closed: The client was closed, or is draining.
        """

    @abstractmethod
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
        """Publish messages in one pipeline; return a receipt or an error for each, in order.

        *payloads* is read as fast as the broker takes them, so it may be a long generator; it
        is read between other work of the loop, so it must not block. The options are as above.

        Raises:
            InvalidArgument: The topic or qos cannot be published to.
            Closed: The client was closed, or is draining.
        """

    @abstractmethod
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
        """Return a subscription, to be entered with `async with` or awaited.

        At most *prefetch* messages wait here for their handler; how many really do follows
        the handler's speed. *subscription_id* resumes a subscription that was kept. *keep* says
        what leaving does (see :class:`Subscription`). When the broker has forgotten the
        subscription while the connection was down, a new one takes its place and *on_gap* is
        called: messages in between are not seen by it. *schema* is the id of a schema that the
        topic's payloads keep to; *envelope* refuses sealed messages that are in none.
        """

    @abstractmethod
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
        """Make a queue, and return it as it is now; what is not given is the broker's choice.

        *mode* is `RoundRobin`, `FanOutWithAck`, `FanOutWithoutAck` or `PriorityBased`, and
        *overflow* `DropOldest`, `DropNewest`, `BlockPublisher` or `RedirectToDlq`; the case
        of letters does not matter, and `round_robin` will do. A queue that exists keeps the
        options it has: what is returned tells.

        Raises:
            InvalidArgument: Name or option cannot be used.
            QueueRefused: The broker said no.
            ConnectionLost: The connection broke before the answer.
            NotSupported: The strand has no such request.
        """

    @abstractmethod
    async def queue_info(self, name: str) -> QueueInfo | None:
        """Return what the broker says about a queue; None when there is none of that name.

        Raises as :meth:`declare_queue` does.
        """

    @abstractmethod
    async def list_queues(self) -> list[str]:
        """Return the names of the queues that we may see; raises as above."""

    @abstractmethod
    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all that waits in it; its dead letters stay. Raises as above."""

    @abstractmethod
    async def stats(self) -> Stats:
        """Return the broker's numbers."""

    @abstractmethod
    async def ping(self) -> float:
        """Return the seconds of a round trip, every earlier publish's commit included."""

    @abstractmethod
    async def drain(self) -> None:
        """Take and publish nothing new; wait until everything under way is confirmed."""

    @abstractmethod
    async def close(self) -> None:
        """Close subscriptions and connections; what was sent is confirmed first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Connecting:
    """What `connect` returns: await it for a client, or enter it for one that is closed."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None
        await self._client.close()
