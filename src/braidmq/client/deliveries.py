"""What goes in and out of a client: messages, receipts, numbers. No strand is known here."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Final

Payload = bytes | bytearray | memoryview
"""What can be published; what is received is always bytes."""


class Priority(enum.IntEnum):
    """How urgent a message is, on strands with priorities."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Receipt:
    """What publishing a message came to."""

    topic: str
    qos: int
    durable: bool
    """The broker has committed it to its log; False: it was only handed over (QoS 0)."""

    id: int | str | None = None
    """The message's id, on strands that tell it: text on Vibe and Qumbed; None on Blip."""

    repeated: bool = False
    """It was sent more than once on request (`retry=True`), so it may be stored twice; on
    Qumbed only when the broker's dedup window was over."""

    delivered: int | None = None
    """How many subscribers it was passed on to at once, where the strand tells (Qumbed)."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The broker's numbers, over all strands; counters start at 0 with its process."""

    topics: int
    subscribers: int
    messages_published: int
    messages_delivered: int
    inflight: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue: how it was declared, and what is in it."""

    name: str
    waiting: int
    in_flight: int
    """Delivered, and neither acknowledged nor given back."""
    subscribers: int
    mode: str
    """`RoundRobin`, `FanOutWithAck`, `FanOutWithoutAck` or `PriorityBased`."""
    max_size: int | None
    """How many messages may wait; None: any number."""
    ttl: float | None
    """After how many seconds a message expires; None: never."""
    dead_letters: bool
    dead_letter_name: str | None
    overflow: str
    """`DropOldest`, `DropNewest`, `BlockPublisher` or `RedirectToDlq`."""
    max_attempts: int
    durable: bool
    created: datetime | None


class Message(ABC):
    """A message as it was received; acknowledge it, or it comes again."""

    __slots__ = ("id", "payload", "qos", "topic")

    topic: str
    payload: bytes
    id: int | str | None
    """The message's id, the same on every redelivery: a number on Blip (None for QoS 0, which
    has none) and Qumbed, on Vibe the text that its publisher chose."""
    qos: int

    @property
    def attempt(self) -> int | None:
        """Which delivery of the message this is, from 1 on; None where the strand is silent."""
        return None

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers; empty on strands without them."""
        return _NO_HEADERS

    @property
    def sender(self) -> bytes | None:
        """The public key of who sealed the message; None on strands without sealing."""
        return None

    @property
    def sealed_by_gateway(self) -> bool:
        """Whether the broker itself sealed it, because its publisher had not."""
        return False

    @property
    def schema(self) -> str:
        """The id of the schema that the message was published with; empty without one."""
        return ""

    @abstractmethod
    async def ack(self, *, confirmed: bool = False) -> None:
        """Tell the broker that the message is done; a second call does nothing.

        The acknowledgement is handed over and not waited for, unless *confirmed*. Without
        having heard of it, the broker delivers the message again.

        Raises:
            StaleDelivery: *confirmed*, and the delivery was no longer open.
            ConnectionLost: *confirmed*, and the connection broke before the answer.
            Closed: The subscription was closed.
        """

    @abstractmethod
    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Give the message back: to be delivered again after *delay*, or to be buried.

        Raises:
            NotSupported: The strand has no such frame.
        """

    @abstractmethod
    async def failed(self) -> None:
        """Do what the strand can do for a message whose handler has raised."""

    def process(self) -> "Processing":
        """Return an async context manager: acknowledge when the block ends well.

        On an exception the message is given back, or, where the strand cannot (Blip), left
        unacknowledged to be delivered again; the exception goes on.
        """
        return Processing(self)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} topic={self.topic!r} id={self.id} qos={self.qos}"
            f" payload={len(self.payload)} bytes>"
        )


class Processing:
    """What :meth:`Message.process` returns."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    async def __aenter__(self) -> Message:
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self._message.ack()
        else:
            await self._message.failed()
