"""A subscription over the Vibe strand, on a connection of its own.

The broker pushes: at most `prefetch` messages may be here and not settled. While a message
waits here, its redelivery timer runs at the broker, so the number that the client asks for
adapts to the handler's speed; subscribing again changes it.

The subscription outlives its connection: it is made again on the next one, and the broker
redelivers what was not settled. A message of an old connection can no longer be settled.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from braidmq.client.deliveries import Message, instant_of_iso
from braidmq.client.errors import Closed, InvalidArgument
from braidmq.client.inbox import CreditWindow, Inbox
from braidmq.client.link import Dialer
from braidmq.client.replies import Replies
from braidmq.client.subscription import Consumer, Subscription, report_stale
from braidmq.client.vibe.connection import Receiver, VibeConnection, asking
from braidmq.wire.vibe import messages
from braidmq.wire.vibe.session import (
    QUEUE_NOT_FOUND,
    RATE_LIMITED,
    REQUEUE_DELAY_MS_MAX,
    SERVER_ERROR,
)

WINDOW_BEGIN: Final = 16
"""The prefetch to ask for before the handler's speed is known."""

_ENCODING_HEADER: Final = "contentEncoding"
_TIMESTAMP_HEADER: Final = "timestamp"
_ATTEMPTS_HEADER: Final = "deliveryAttempts"
_ATTEMPTS_DIGITS_MAX: Final = 10

log = logging.getLogger("braidmq.client")


class VibeMessage(Message):
    """A message of a Vibe subscription."""

    __slots__ = (
        "_attempt",
        "_headers",
        "_subscription",
        "connection",
        "received_at",
    )

    strand = "vibe"

    def __init__(
        self,
        subscription: "VibeSubscription",
        connection: VibeConnection,
        body: messages.Body,
        received_at: float,
    ) -> None:
        self.id = body.id
        self.topic = body.queue
        self.qos = 1
        self.payload = unpacked(body)
        self.connection = connection
        self.received_at = received_at
        attempts = body.headers.get(_ATTEMPTS_HEADER, "")
        # The length is checked because Python refuses to convert thousands of digits.
        is_number = attempts.isdecimal() and len(attempts) <= _ATTEMPTS_DIGITS_MAX
        self._attempt = int(attempts) if is_number else None
        self._headers = body.headers
        self._subscription = subscription
        self._settled = False

    @property
    def attempt(self) -> int | None:
        """Which delivery of the message this is, from 1 on."""
        return self._attempt

    @property
    def timestamp(self) -> datetime | None:
        """When the broker accepted it, or what its publisher wrote into that header."""
        return instant_of_iso(self._headers.get(_TIMESTAMP_HEADER, ""))

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's headers, and what the broker has added."""
        return MappingProxyType(self._headers)

    def _ack(self, *, confirmed: bool) -> Awaitable[None]:
        return self._subscription.settle(self, None, confirmed=confirmed)

    def _nack(self, *, delay: float | None, dead_letter: bool) -> Awaitable[None]:
        if dead_letter and delay is not None:
            raise InvalidArgument("a dead letter is not redelivered: it has no delay")
        headers = {"result": "reject" if dead_letter else "requeue"}
        if delay is not None:
            # Compared before it is rounded: NaN and infinity cannot be.
            if not 0 <= delay * 1000 <= REQUEUE_DELAY_MS_MAX:
                limit_s = REQUEUE_DELAY_MS_MAX // 1000
                raise InvalidArgument(f"delay must be 0 to {limit_s} seconds, not {delay}")
            headers["delayMs"] = str(round(delay * 1000))
        return self._subscription.settle(self, headers, confirmed=False)


def unpacked(body: messages.Body) -> bytes:
    """Return the payload as it was published, and remove the header about its encoding."""
    if body.headers.get(_ENCODING_HEADER) != "base64":
        return body.payload
    try:
        payload = base64.b64decode(body.payload.strip(b'"'), validate=True)
    except ValueError:
        return body.payload  # the header is wrong: leave both as they are
    del body.headers[_ENCODING_HEADER]
    return payload


class VibeSubscription(Consumer[VibeConnection, VibeMessage], Receiver):
    """A subscription of a :class:`~braidmq.client.vibe.strand.VibeStrand`."""

    transient_codes = frozenset({RATE_LIMITED, SERVER_ERROR})
    gone_code = QUEUE_NOT_FOUND

    def __init__(
        self,
        topic: str,
        *,
        prefetch: int,
        dialer: Dialer[VibeConnection, Receiver],
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=1,
            inbox=Inbox(once=False),  # publishers choose the ids: two may be the same
            dialer=dialer,
            on_closed=on_closed,
        )
        self._window = CreditWindow(prefetch, begin=WINDOW_BEGIN)
        self._asked_for = 0  # the prefetch that the broker was told last
        self._held = 0  # handed out and not settled

    # --- called by messages, the connection and the link -----------------------------------

    async def settle(
        self, message: VibeMessage, headers: dict[str, str] | None, *, confirmed: bool
    ) -> None:
        """Acknowledge the message, or do with it what *headers* say."""
        if self._leaving:
            raise Closed("the subscription was closed")
        assert isinstance(message.id, str)
        # A delivery belongs to its connection: once that has ended, the broker redelivers it.
        connection = message.connection
        if connection.is_lost:
            text = "its connection broke, so it is redelivered"
            report_stale(message.id, text, confirmed=confirmed)
            return
        frame_id = message.id
        if headers is not None and frame_id.isdecimal():
            # The broker may answer it with an Error, which must not be taken for the answer to
            # a request: those have numbers as ids.
            headers = {**headers, "messageId": frame_id}
            frame_id = "nack"
        connection.tell(messages.ACK, frame_id, message.topic, headers)
        if connection is self._connection and self._held:
            self._held -= 1
        if not confirmed:
            await connection.writable()
        elif not await connection.fence()[1]:
            raise connection.lost()

    def deliver(self, connection: VibeConnection, body: messages.Body, now: float) -> None:
        """Take a message that the broker sent."""
        if self._end is None:
            self._inbox.put(VibeMessage(self, connection, body, now))

    async def prepare(self, connection: VibeConnection) -> None:
        """Subscribe on a new connection."""
        # An attempt that broke while it was prepared may have left messages: `went_down` is
        # called only for connections that were in use.
        self._inbox.clear()
        self._held = 0
        self._asked_for = self._window.size
        await connection.ask(self._subscribe(), self._refused)
        self._connection = connection
        self._tell()  # the window may have changed during the round trip

    def went_down(self) -> None:
        """Drop what the broker will redeliver."""
        self._connection = None
        self._inbox.clear()
        self._held = 0

    # --- inside -----------------------------------------------------------------------------

    def _next(self) -> VibeMessage:
        message = self._inbox.pop()
        self._held += 1
        self._window.taken(asyncio.get_running_loop().time() - message.received_at)
        self._tell()
        return message

    def _make_room(self, count: int) -> None:
        self._window.reach(self._held + count)
        self._tell()

    def _subscribe(self) -> Callable[[int], bytes]:
        return asking(messages.SUBSCRIBE, self.topic, {"prefetch": str(self._asked_for)})

    def _tell(self) -> None:
        """Tell the broker the prefetch if it has changed; the answer is only logged."""
        connection = self._connection
        if connection is None or self._asked_for == self._window.size:
            return
        self._asked_for = self._window.size
        replies = connection.request(self._subscribe())
        replies.done.add_done_callback(lambda _: self._told(replies))

    @staticmethod
    def _told(replies: Replies[messages.Body]) -> None:
        (answer,) = replies.answers
        refusal = None if answer is None else VibeConnection.refusal_of(answer)
        if refusal is not None:
            log.warning("prefetch was refused: %s %s", refusal.code, refusal.text)

    async def _leave(self, connection: VibeConnection) -> None:
        # The fence comes after it, for the acknowledgements: they get no answer of their own.
        await self._unsubscribe(connection, asking(messages.UNSUBSCRIBE, self.topic))
        await connection.settle()
