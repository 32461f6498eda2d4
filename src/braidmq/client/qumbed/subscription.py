"""A subscription over the Qumbed strand, on a connection of its own.

The broker pushes, and what it has handed to QUIC is settled: nothing is acknowledged, and
nothing comes again. So what is here is kept when the connection breaks, and given out when the
subscription drains. When enough messages wait, nothing more is read, and the broker keeps the
place.

Each message is opened as it comes. What cannot be opened, comes from somebody who is not
trusted, comes back to its sender, was meant for another topic, was shown before or breaks its
schema is refused: counted by reason, and never given out.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from braidmq.client.deliveries import Message
from braidmq.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    InvalidArgument,
    MessageRefused,
    NotOpened,
    NotSupported,
    Replayed,
    Retargeted,
    SenderRefused,
    SubscriptionRefused,
)
from braidmq.client.inbox import Inbox
from braidmq.client.link import Health
from braidmq.client.options import Options
from braidmq.client.qumbed.connection import (
    QumbedConnection,
    Tenant,
    open_connection,
    refusal_of,
)
from braidmq.client.qumbed.envelope import Opened, Opener
from braidmq.client.qumbed.publishing import STRAND
from braidmq.client.qumbed.schemas import Schemas
from braidmq.client.subscription import Consumer
from braidmq.client.surface import Subscription
from braidmq.client.url import Endpoint
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.session import RATE_LIMIT, SERVER_ERROR

FETCH_GRACE_S: Final = 1.0
"""What one answer may take although the caller's timeout is shorter, 0 for example."""

QUARANTINE_MAX: Final = 64
"""Messages that broke their schema and are kept to be looked at: the newest."""

NOT_OPENED: Final = "not_opened"
UNTRUSTED: Final = "untrusted"
REFLECTED: Final = "reflected"
RETARGETED: Final = "retargeted"
REPLAYED: Final = "replayed"
ENVELOPE: Final = "envelope"
"""There is none although they are required, or it is broken."""
SCHEMA: Final = "schema"

ID_DIGITS_MAX: Final = 20
"""Of the largest id of a record."""

_TRANSIENT: Final = frozenset({RATE_LIMIT, SERVER_ERROR})

log = logging.getLogger("braidmq.client")


class QumbedMessage(Message):
    """A message of a Qumbed subscription, opened."""

    __slots__ = ("_gateway", "_schema", "_sender", "sealed_at_ms", "sequence", "timestamp_ms")

    def __init__(self, frame: messages.Message, opened: Opened, gateway_key: bytes) -> None:
        is_number = frame.id.isdecimal() and frame.id.isascii()
        self.id = int(frame.id) if is_number and len(frame.id) <= ID_DIGITS_MAX else None
        self.topic = frame.topic
        self.payload = opened.payload
        self.qos = 1
        self.timestamp_ms = frame.timestamp_ms
        """When the broker took it."""
        self.sequence = opened.sequence
        """Its number among its sender's, sealed in with it; None without an envelope."""
        self.sealed_at_ms = opened.timestamp_ms
        """When its sender sealed it, by the sender's clock; None without an envelope."""
        self._schema = frame.schema_id
        self._sender = opened.sender
        self._gateway = opened.sender == gateway_key

    @property
    def sender(self) -> bytes:
        """The public key of who sealed it."""
        return self._sender

    @property
    def sealed_by_gateway(self) -> bool:
        """Whether the broker itself sealed it, because its publisher had not."""
        return self._gateway

    @property
    def schema(self) -> str:
        """The id of the schema that it was published with; empty without one."""
        return self._schema

    async def ack(self, *, confirmed: bool = False) -> None:
        """Do nothing: handing it over has settled it."""

    async def nack(self, *, delay: float | None = None, dead_letter: bool = False) -> None:
        """Raise NotSupported: it cannot be given back."""
        del delay, dead_letter
        raise NotSupported(STRAND, "nack: a message is settled when it is handed over")

    async def failed(self) -> None:
        """Do nothing: it cannot be given back."""


class QumbedSubscription(Consumer[QumbedConnection, QumbedMessage], Tenant):
    """A subscription of a :class:`~braidmq.client.qumbed.strand.QumbedClient`."""

    def __init__(
        self,
        topic: str,
        *,
        public_key: bytes,
        opener: Opener,
        schema: str,
        schemas: Schemas,
        prefetch: int,
        keep: bool,
        endpoint: Endpoint,
        options: Options,
        health: Health,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=1,
            inbox=Inbox(once=False),  # the original's messages have no id
            endpoint=endpoint,
            options=options,
            health=health,
            on_closed=on_closed,
        )
        self._pushing = True
        self._public_key = public_key
        self._opener = opener
        self._schema = schema
        self._schemas = schemas
        self._prefetch = prefetch
        self._keep = keep
        self._refused: dict[str, int] = {}
        self.quarantine: deque[QumbedMessage] = deque(maxlen=QUARANTINE_MAX)
        """The last messages that were opened and broke their schema."""

    async def _dial(self, on_lost: Callable[[QumbedConnection], None]) -> QumbedConnection:
        return await open_connection(self._endpoint, self._options, self, on_lost)

    # --- what users call --------------------------------------------------------------------

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason."""
        return MappingProxyType(self._refused)

    async def fetch(self, *, max: int = 100, timeout: float = 1.0) -> list[Message]:  # noqa: A002 - the name users know it by
        """Return up to *max* messages, perhaps none."""
        if max < 1:
            raise InvalidArgument(f"max is at least 1, not {max}")
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        if not self._inbox:
            self._check_open()
            if timeout <= 0:
                await self._round_trip()
        while not self._inbox and (left := deadline - clock()) > 0:
            await self._inbox.arrival(left)
            if not self._inbox:
                self._check_open()
        return [self._next() for _ in range(min(max, len(self._inbox)))]

    async def drain(self) -> None:
        """Take no further messages from the broker; those that are here are still given out."""
        self._stop(Closed("the subscription is draining"))
        connection = self._connection
        if connection is not None:
            connection.resume_reading()
            await self._unsubscribe(connection)

    # --- what the connection and the link call ----------------------------------------------

    def deliver(self, connection: QumbedConnection, frame: messages.Message) -> None:
        """Open a message that the broker sent, and take it or not."""
        if self._leaving:
            return
        try:
            message = self._open_message(connection, frame)
        except MessageRefused as error:
            self._refuse(_reason(error), str(error))
            return
        problem = self._schemas.problem(self._schema or message.schema, message.payload)
        if problem:
            self.quarantine.append(message)
            self._refuse(SCHEMA, problem)
            return
        self._inbox.put(message)
        # While it drains, all that is under way must come: the broker's last word is behind it.
        if len(self._inbox) >= self._prefetch and self._end is None:
            connection.pause_reading()

    def delivered(self) -> None:
        """Wake as many as there are messages for."""
        self._inbox.wake()

    async def prepare(self, connection: QumbedConnection) -> None:
        """Subscribe on a new connection."""
        if self._end is None:
            answer = await connection.ask(
                lambda number: messages.subscribe(
                    self.topic, self._schema, self._public_key, frame_id=number
                )
            )
            refusal = refusal_of(answer)
            if refusal is not None:
                if self._opened and refusal.code in _TRANSIENT:
                    reason = f"subscribing again was refused: {refusal.code} {refusal.text}"
                    raise ConnectionLost(self._endpoint.address, reason)
                raise SubscriptionRefused(self.topic, refusal.code, refusal.text)
        self._connection = connection

    def went_down(self) -> None:
        """Keep what is here: it will not come again."""
        self._connection = None

    # --- inside -----------------------------------------------------------------------------

    def _open_message(
        self, connection: QumbedConnection, frame: messages.Message
    ) -> QumbedMessage:
        if frame.topic != self.topic:
            raise Retargeted("the message is of another topic than was subscribed to")
        opened = self._opener.open(
            frame.encrypted_payload,
            frame.sender_public_key,
            topic=frame.topic,
            schema_id=frame.schema_id,
        )
        return QumbedMessage(frame, opened, connection.gateway_key)

    def _refuse(self, reason: str, text: str) -> None:
        count = self._refused[reason] = self._refused.get(reason, 0) + 1
        if count == 1:
            log.warning("a message on %r is refused (%s): %s", self.topic, reason, text)

    async def _wait(self) -> None:
        while not self._inbox:
            self._check_open()
            await self._inbox.arrival(None)

    def _next(self) -> QumbedMessage:
        message = self._inbox.pop()
        if self._connection is not None and len(self._inbox) <= self._prefetch // 2:
            self._connection.resume_reading()
        return message

    def _stop(self, error: ClientError) -> None:
        if self._end is None:
            self._end = error
        if self._leaving:
            self._inbox.clear()
        self._inbox.wake_all()

    async def _round_trip(self) -> None:
        """Wait until what the broker had for us is here."""
        connection = self._connection
        if connection is not None:
            try:
                async with asyncio.timeout(FETCH_GRACE_S):
                    await connection.fence()[1]
            except TimeoutError:
                return  # the answer is not lost: it will be in the inbox

    async def _leave(self, connection: QumbedConnection) -> None:
        connection.resume_reading()
        if not self._keep:
            await self._unsubscribe(connection)

    async def _unsubscribe(self, connection: QumbedConnection) -> None:
        try:
            answer = await connection.ask(
                lambda number: messages.unsubscribe(self.topic, frame_id=number)
            )
        except ConnectionLost:
            return  # which ends it as well
        refusal = refusal_of(answer)
        if refusal is not None:
            log.warning("unsubscribing was refused: %s %s", refusal.code, refusal.text)


def _reason(error: MessageRefused) -> str:
    if isinstance(error, SenderRefused):
        return REFLECTED if error.reflected else UNTRUSTED
    if isinstance(error, NotOpened):
        return NOT_OPENED
    if isinstance(error, Retargeted):
        return RETARGETED
    return REPLAYED if isinstance(error, Replayed) else ENVELOPE
