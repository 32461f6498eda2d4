"""A subscription over the Vibe strand, on a connection of its own.

The broker pushes: as many messages as `prefetch` says may be here and unsettled. A message that
waits is in flight to the broker and its redelivery timer runs, so the number that we ask for
follows the handler; asking is subscribing again.

The subscription outlives its connection: on the next one it is made again, and what was not
settled comes again. A message of an old connection can no longer be settled.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from braidmq.client.credit import CreditWindow
from braidmq.client.deliveries import Message
from braidmq.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    InvalidArgument,
    StaleDelivery,
    SubscriptionGone,
    SubscriptionRefused,
)
from braidmq.client.inbox import Inbox
from braidmq.client.link import Health
from braidmq.client.options import Options
from braidmq.client.replies import Replies
from braidmq.client.subscription import Consumer
from braidmq.client.surface import Subscription
from braidmq.client.url import Endpoint
from braidmq.client.vibe.connection import (
    Tenant,
    VibeConnection,
    open_connection,
    refusal_of,
)
from braidmq.wire.vibe import messages
from braidmq.wire.vibe.session import (
    QUEUE_NOT_FOUND,
    RATE_LIMITED,
    REQUEUE_DELAY_MS_MAX,
    SERVER_ERROR,
)

WINDOW_BEGIN: Final = 16
"""What is asked for before the handler's speed is known."""

FETCH_GRACE_S: Final = 1.0
"""What one answer may take although the caller's timeout is shorter, 0 for example."""

_TRANSIENT: Final = frozenset({RATE_LIMITED, SERVER_ERROR})

_ENCODING_HEADER: Final = "contentEncoding"
_ATTEMPTS_HEADER: Final = "deliveryAttempts"

log = logging.getLogger("braidmq.client")


class VibeMessage(Message):
    """A message of a Vibe subscription."""

    __slots__ = (
        "_attempt",
        "_headers",
        "_settled",
        "_subscription",
        "connection",
        "received_at",
    )

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
        self._attempt = int(attempts) if attempts.isdecimal() else None
        self._headers = body.headers
        self._subscription = subscription
        self._settled = False

    @property
    def attempt(self) -> int | None:
        """Which delivery of the message this is, from 1 on."""
        return self._attempt

    @property
    def headers(self) -> Mapping[str, str]:
        """The publisher's headers, and what the broker has added."""
        return MappingProxyType(self._headers)

    async def ack(self, *, confirmed: bool = False) -> None:
        """Tell the broker that the message is done."""
        await self._settle(None, confirmed=confirmed)

    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Give the message back: to be delivered again after *delay*, or to be buried."""
        if dead_letter and delay is not None:
            raise InvalidArgument("a dead letter is not delivered again: no delay")
        headers = {"result": "reject" if dead_letter else "requeue"}
        if delay is not None:
            delay_ms = round(delay * 1000)
            if not 0 <= delay_ms <= REQUEUE_DELAY_MS_MAX:
                limit_s = REQUEUE_DELAY_MS_MAX // 1000
                raise InvalidArgument(f"delay is 0 to {limit_s} seconds, not {delay}")
            headers["delayMs"] = str(delay_ms)
        await self._settle(headers, confirmed=False)

    async def failed(self) -> None:
        """Give the message back; when that fails, the broker's timer does it."""
        try:
            await self.nack()
        except ClientError as error:
            log.warning("message %s was not given back: %s", self.id, error)

    async def _settle(self, headers: dict[str, str] | None, *, confirmed: bool) -> None:
        if self._settled:
            return
        self._settled = True
        try:
            await self._subscription.settle(self, headers, confirmed=confirmed)
        except BaseException:
            self._settled = False  # it may be tried again
            raise


def unpacked(body: messages.Body) -> bytes:
    """Return the payload as it was published; the header that says how it was packed goes."""
    if body.headers.get(_ENCODING_HEADER) != "base64":
        return body.payload
    try:
        payload = base64.b64decode(body.payload.strip(b'"'), validate=True)
    except ValueError:
        return body.payload  # not what the broker's header says: leave both as they are
    del body.headers[_ENCODING_HEADER]
    return payload


class VibeSubscription(Consumer[VibeConnection, VibeMessage], Tenant):
    """A subscription of a :class:`~braidmq.client.vibe.strand.VibeClient`."""

    def __init__(
        self,
        topic: str,
        *,
        prefetch: int,
        endpoint: Endpoint,
        options: Options,
        health: Health,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=1,
            inbox=Inbox(once=False),  # two messages may have the same id
            endpoint=endpoint,
            options=options,
            health=health,
            on_closed=on_closed,
        )
        self._pushing = True
        self._window = CreditWindow(prefetch, begin=WINDOW_BEGIN)
        self._asked_for = 0  # the prefetch that the broker was told last
        self._held = 0  # handed out and not settled

    async def _dial(self, on_lost: Callable[[VibeConnection], None]) -> VibeConnection:
        return await open_connection(self._endpoint, self._options, self, on_lost)

    # --- what users call --------------------------------------------------------------------

    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none."""
        if max < 1:
            raise InvalidArgument(f"max is at least 1, not {max}")
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        self._check_open()
        self._make_room(max)
        if not self._inbox and timeout <= 0:
            await self._round_trip()
        while not self._inbox and (left := deadline - clock()) > 0:
            await self._inbox.arrival(left)
            self._check_open()
        self._check_open()
        return [self._next() for _ in range(min(max, len(self._inbox)))]

    async def settle(
        self, message: VibeMessage, headers: dict[str, str] | None, *, confirmed: bool
    ) -> None:
        """Send an acknowledgement or a refusal; called by the message."""
        if self._leaving:
            raise Closed("the subscription was closed")
        connection = message.connection
        if connection.is_lost:
            self._stale(message, confirmed=confirmed)
            return
        assert isinstance(message.id, str)
        connection.tell(messages.ACK, message.id, message.topic, headers)
        if connection is self._connection and self._held:
            self._held -= 1
        if not confirmed:
            await connection.writable()
        elif not await connection.fence()[1]:
            raise connection.lost()

    # --- what the connection and the link call ----------------------------------------------

    def deliver(self, connection: VibeConnection, body: messages.Body, now: float) -> None:
        """Take a message that the broker sent."""
        if self._end is None:
            self._inbox.put(VibeMessage(self, connection, body, now))

    def delivered(self) -> None:
        """Wake as many as there are messages for."""
        self._inbox.wake()

    async def prepare(self, connection: VibeConnection) -> None:
        """Subscribe on a new connection."""
        self._inbox.clear()
        self._held = 0
        self._asked_for = self._window.size
        answer = await connection.ask(messages.SUBSCRIBE, self.topic, self._wish())
        refusal = refusal_of(answer)
        if refusal is not None:
            if self._opened and refusal.code in _TRANSIENT:
                reason = f"subscribing again was refused: {refusal.code} {refusal.text}"
                raise ConnectionLost(self._endpoint.address, reason)
            gone = refusal.code == QUEUE_NOT_FOUND
            kind = SubscriptionGone if gone else SubscriptionRefused
            raise kind(self.topic, refusal.code, refusal.text)
        self._connection = connection
        self._tell()

    def went_down(self) -> None:
        """Forget what will come again."""
        self._connection = None
        self._inbox.clear()
        self._held = 0

    # --- inside -----------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._check_open()
        while not self._inbox:
            self._make_room(1)  # whoever holds all that was asked for, and waits, wants more
            await self._inbox.arrival(None)
            self._check_open()

    def _next(self) -> VibeMessage:
        message = self._inbox.pop()
        self._held += 1
        self._window.taken(asyncio.get_running_loop().time() - message.received_at)
        self._tell()
        return message

    def _make_room(self, count: int) -> None:
        self._window.reach(self._held + count)
        self._tell()

    def _wish(self) -> dict[str, str]:
        return {"prefetch": str(self._asked_for)}

    def _tell(self) -> None:
        connection = self._connection
        if connection is None or self._asked_for == self._window.size:
            return
        self._asked_for = self._window.size
        replies = connection.request(messages.SUBSCRIBE, self.topic, self._wish())
        replies.done.add_done_callback(lambda _: self._told(replies))

    def _told(self, replies: Replies[messages.Body]) -> None:
        (answer,) = replies.answers
        refusal = refusal_of(answer) if answer is not None else None
        if refusal is not None:
            log.warning("prefetch was refused: %s %s", refusal.code, refusal.text)

    async def _round_trip(self) -> None:
        """Wait until what the broker had for us is here."""
        connection = self._connection
        if connection is not None:
            try:
                async with asyncio.timeout(FETCH_GRACE_S):
                    await connection.fence()[1]
            except TimeoutError:
                return  # the answer is not lost: it will be in the inbox

    @staticmethod
    def _stale(message: VibeMessage, *, confirmed: bool) -> None:
        assert isinstance(message.id, str)
        text = "its connection broke, so it comes again"
        if confirmed:
            raise StaleDelivery(message.id, text)
        log.warning("delivery %s cannot be acknowledged: %s", message.id, text)

    async def _leave(self, connection: VibeConnection) -> None:
        try:
            answer = await connection.ask(messages.UNSUBSCRIBE, self.topic)
        except ConnectionLost:
            return  # which gives everything back as well
        refusal = refusal_of(answer)
        if refusal is not None:
            log.warning("unsubscribing was refused: %s %s", refusal.code, refusal.text)
        await connection.settle()
