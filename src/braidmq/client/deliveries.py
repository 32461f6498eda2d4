"""A message as a subscriber gets it, and how it is acknowledged or given back."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import ClassVar, Final

from braidmq.client import capabilities
from braidmq.client.errors import ClientError

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger("braidmq.client")


class Message(ABC):
    """A message as it was received; the broker redelivers it until it is acknowledged."""

    __slots__ = {  # noqa: RUF023 - with their docstrings, for `help` and the blocking facade
        "topic": "The topic it was published to.",
        "payload": "What was published.",
        "id": (
            "The message's id, the same on every redelivery: a number on Blip (None for\n"
            "QoS 0) and Qumbed; on Vibe the text that its publisher chose."
        ),
        "qos": "The effective QoS: the lower of the publisher's and the subscriber's.",
        "_settled": "It was acknowledged or given back.",
    }

    strand: ClassVar[str]

    topic: str
    payload: bytes
    id: int | str | None
    qos: int
    _settled: bool

    @property
    def attempt(self) -> int | None:
        """Which delivery of the message this is, from 1; None if the strand does not say."""
        return None

    @property
    def timestamp(self) -> datetime | None:
        """When the broker accepted the message; None on Blip, which does not say.

        On Vibe it is the header `timestamp`: a publisher that sends one of its own replaces
        the broker's.
        """
        return None

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers; empty on strands without them."""
        return _NO_HEADERS

    @property
    def sender(self) -> bytes | None:
        """The public key that sealed the message; None on strands without sealing."""
        return None

    @property
    def sealed_by_gateway(self) -> bool:
        """Whether the broker itself sealed it, because its publisher had not."""
        return False

    @property
    def schema(self) -> str:
        """The id of the schema that the message was published with; empty without one."""
        return ""

    async def ack(self, *, confirmed: bool = False) -> None:
        """Tell the broker that the message is done; a second call does nothing.

        The acknowledgement is sent and not waited for, unless *confirmed*. A broker that did
        not receive it delivers the message again.

        Raises:
            StaleDelivery: *confirmed*, and the delivery was no longer open.
            ConnectionLost: *confirmed*, and the connection broke before the answer.
            Closed: The subscription was closed.
        """
        await self._settle(lambda: self._ack(confirmed=confirmed))

    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Give the message back: to be redelivered after *delay*, or to be dead-lettered.

        Raises:
            NotSupported: The strand has no such frame.
        """
        capabilities.check(self.strand, ("nack",))
        await self._settle(lambda: self._nack(delay=delay, dead_letter=dead_letter))

    async def failed(self) -> None:
        """Give back a message whose handler raised, on a strand that can.

        This never raises: the handler's own exception is what the caller must see. If the
        message cannot be given back, the broker redelivers it when its timer runs out.
        """
        if capabilities.has(self.strand, "nack"):
            try:
                await self.nack()
            except ClientError as error:
                log.warning("message %s was not given back: %s", self.id, error)

    def process(self) -> "Processing":
        """Return an async context manager that acknowledges when its block succeeds.

        On an exception the message is given back or, where the strand cannot (Blip), left
        unacknowledged, to be redelivered; the exception propagates.
        """
        return Processing(self)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} topic={self.topic!r} id={self.id} qos={self.qos}"
            f" payload={len(self.payload)} bytes>"
        )

    # --- implemented by each strand ---------------------------------------------------------

    @abstractmethod
    def _ack(self, *, confirmed: bool) -> Awaitable[None]:
        """Send the acknowledgement."""

    def _nack(self, *, delay: float | None, dead_letter: bool) -> Awaitable[None]:
        """Send the refusal; called only if the strand has `nack`."""
        raise NotImplementedError

    # --- inside -----------------------------------------------------------------------------

    async def _settle(self, send: Callable[[], Awaitable[None]]) -> None:
        if self._settled:
            return
        self._settled = True  # before the first await, so that two tasks cannot both send
        try:
            await send()
        except BaseException:
            self._settled = False  # perhaps nothing was sent, so the caller may try again
            raise


def instant_of_ms(timestamp_ms: int) -> datetime | None:
    """Return milliseconds of Unix time as a moment; None for 0, or what is none."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms) if timestamp_ms else None
    except OverflowError:
        return None


def instant_of_iso(text: str) -> datetime | None:
    """Return the moment that an ISO 8601 text says, by default in UTC; None if it says none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    except ValueError:
        return None


class Processing:
    """What :meth:`Message.process` returns."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    async def __aenter__(self) -> Message:
        return self._message

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._message.ack()
        else:
            await self._message.failed()
