"""A subscription over the Qumbed strand, on a connection of its own.

The broker pushes, and a message that it has handed to QUIC is settled: there are no
acknowledgements and no redelivery. Messages that are here are therefore kept when the
connection breaks, and still handed out when the subscription drains. When enough messages wait,
the client stops reading, and the broker keeps the rest.

Each message is opened as it arrives. One that cannot be opened, comes from a sender that is not
trusted, returns to its sender, was meant for another topic, was seen before, or violates its
schema is refused: counted by reason, and never handed out.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from braidmq.client.deliveries import Message, instant_of_ms
from braidmq.client.errors import (
    ClientError,
    Closed,
    MessageRefused,
    NotOpened,
    Replayed,
    Retargeted,
    SenderRefused,
)
from braidmq.client.inbox import Inbox
from braidmq.client.link import Dialer
from braidmq.client.options import SubscribeOptions
from braidmq.client.qumbed.connection import QumbedConnection, Receiver
from braidmq.client.qumbed.envelope import Opened, Opener
from braidmq.client.qumbed.schemas import Schemas
from braidmq.client.subscription import Consumer, Subscription
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.session import RATE_LIMIT, SERVER_ERROR

QUARANTINE_MAX: Final = 64
"""How many of the newest messages that violated their schema are kept for inspection."""

NOT_OPENED: Final = "not_opened"
UNTRUSTED: Final = "untrusted"
REFLECTED: Final = "reflected"
RETARGETED: Final = "retargeted"
REPLAYED: Final = "replayed"
ENVELOPE: Final = "envelope"
"""It is missing although the subscription requires one, or it is malformed."""
SCHEMA: Final = "schema"

ID_DIGITS_MAX: Final = 20
"""Of the largest id of a record."""

log = logging.getLogger("braidmq.client")


class QumbedMessage(Message):
    """A message of a Qumbed subscription, opened."""

    __slots__ = ("_gateway", "_schema", "_sender", "sealed_at_ms", "sequence", "timestamp_ms")

    strand = "qumbed"

    def __init__(self, frame: messages.Message, opened: Opened, gateway_key: bytes) -> None:
        is_number = frame.id.isdecimal() and frame.id.isascii()
        self.id = int(frame.id) if is_number and len(frame.id) <= ID_DIGITS_MAX else None
        self.topic = frame.topic
        self.payload = opened.payload
        self.qos = 1
        self.timestamp_ms = frame.timestamp_ms
        """When the broker accepted it."""
        self.sequence = opened.sequence
        """Its sender's sequence number, sealed in with it; None without an envelope."""
        self.sealed_at_ms = opened.timestamp_ms
        """When its sender sealed it, by the sender's clock; None without an envelope."""
        self._schema = frame.schema_id
        self._sender = opened.sender
        self._gateway = opened.sender == gateway_key
        self._settled = True  # the broker settled it by handing it to QUIC

    @property
    def timestamp(self) -> datetime | None:
        """When the broker accepted it."""
        return instant_of_ms(self.timestamp_ms)

    @property
    def sender(self) -> bytes:
        """The public key that sealed it."""
        return self._sender

    @property
    def sealed_by_gateway(self) -> bool:
        """Whether the broker itself sealed it, because its publisher had not."""
        return self._gateway

    @property
    def schema(self) -> str:
        """The id of the schema that it was published with; empty without one."""
        return self._schema

    def _ack(self, *, confirmed: bool) -> Awaitable[None]:
        raise NotImplementedError  # never called: it is settled from the start


class QumbedSubscription(Consumer[QumbedConnection, QumbedMessage], Receiver):
    """A subscription of a :class:`~braidmq.client.qumbed.strand.QumbedStrand`."""

    transient_codes = frozenset({RATE_LIMIT, SERVER_ERROR})
    _redelivers = False

    def __init__(
        self,
        topic: str,
        options: SubscribeOptions,
        *,
        public_key: bytes,
        opener: Opener,
        schemas: Schemas,
        dialer: Dialer[QumbedConnection, Receiver],
        on_closed: Callable[[Subscription], None],
    ) -> None:
        super().__init__(
            topic,
            qos=1,
            inbox=Inbox(once=False),  # the specification has no ids of messages
            dialer=dialer,
            on_closed=on_closed,
        )
        self._public_key = public_key
        self._opener = opener
        self._schema = options.schema
        self._schemas = schemas
        self._prefetch = options.prefetch
        # If so, leaving does not unsubscribe: a broker with `qumbed.offline_s` keeps the
        # position for this key.
        self._keep = bool(options.keep)
        self._refusals: dict[str, int] = {}
        self.quarantine: deque[QumbedMessage] = deque(maxlen=QUARANTINE_MAX)
        """The newest messages that were opened and violated their schema."""

    # --- called by users --------------------------------------------------------------------

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused, by reason."""
        return MappingProxyType(self._refusals)

    async def drain(self) -> None:
        """Take no further messages from the broker; hand out those that are here."""
        self._stop(Closed("the subscription is draining"))
        connection = self._connection
        if connection is not None:
            connection.resume_reading()
            await self._quit(connection)

    # --- called by the connection and the link ----------------------------------------------

    def deliver(self, connection: QumbedConnection, frame: messages.Message) -> None:
        """Open a message that the broker sent; keep it or refuse it."""
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
        # While draining, read on: the answer to Unsubscribe is behind all messages in flight.
        if len(self._inbox) >= self._prefetch and self._end is None:
            connection.pause_reading()

    async def prepare(self, connection: QumbedConnection) -> None:
        """Subscribe on a new connection."""
        if self._end is None:
            await connection.ask(
                lambda number: messages.subscribe(
                    self.topic, self._schema, self._public_key, frame_id=str(number)
                ),
                self._refused,
            )
        self._connection = connection

    def went_down(self) -> None:
        """Keep the messages that are here: the broker will not redeliver them."""
        self._connection = None

    # --- inside -----------------------------------------------------------------------------

    def _open_message(
        self, connection: QumbedConnection, frame: messages.Message
    ) -> QumbedMessage:
        if frame.topic != self.topic:
            raise Retargeted("the message belongs to another topic than the subscription")
        opened = self._opener.open(
            frame.encrypted_payload,
            frame.sender_public_key,
            topic=frame.topic,
            schema_id=frame.schema_id,
        )
        return QumbedMessage(frame, opened, connection.gateway_key)

    def _refuse(self, reason: str, text: str) -> None:
        count = self._refusals[reason] = self._refusals.get(reason, 0) + 1
        if count == 1:
            log.warning("refused a message on %r (%s): %s", self.topic, reason, text)

    def _check_open(self) -> None:
        # Messages that are here are handed out even while it drains, or after its link ended.
        if not self._inbox:
            super()._check_open()

    def _next(self) -> QumbedMessage:
        message = self._inbox.pop()
        # At half, not at the first free place: pausing and resuming for each message would
        # send as many flow-control frames.
        if self._connection is not None and len(self._inbox) <= self._prefetch // 2:
            self._connection.resume_reading()
        return message

    def _stop(self, error: ClientError) -> None:
        if self._end is None:
            self._end = error
        if self._leaving:
            self._inbox.clear()
        self._inbox.wake_all()

    async def _leave(self, connection: QumbedConnection) -> None:
        connection.resume_reading()  # while paused, no answer would be read
        if not self._keep:
            await self._quit(connection)

    async def _quit(self, connection: QumbedConnection) -> None:
        await self._unsubscribe(
            connection, lambda number: messages.unsubscribe(self.topic, frame_id=str(number))
        )


def _reason(error: MessageRefused) -> str:
    if isinstance(error, SenderRefused):
        return REFLECTED if error.reflected else UNTRUSTED
    if isinstance(error, NotOpened):
        return NOT_OPENED
    if isinstance(error, Retargeted):
        return RETARGETED
    return REPLAYED if isinstance(error, Replayed) else ENVELOPE
