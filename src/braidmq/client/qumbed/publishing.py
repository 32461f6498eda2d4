"""What a Qumbed publisher sends: messages checked, sealed and laid out as Publish frames."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from braidmq.base.schemas import SCHEMA_ID_BYTES_MAX
from braidmq.client.answers import Receipt
from braidmq.client.connection import Post
from braidmq.client.deliveries import instant_of_ms
from braidmq.client.errors import InvalidArgument, OutcomeUnknown, PublishError
from braidmq.client.options import Payload
from braidmq.client.publishing import (
    AnsweredFlight,
    Chunk,
    Posting,
    check_topic,
    payload_bytes,
    refused,
    utf8,
)
from braidmq.client.qumbed.connection import Answer, QumbedConnection
from braidmq.client.qumbed.schemas import Schemas
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.boxes import KEY_BYTES, OVERHEAD_BYTES, key_id
from braidmq.wire.qumbed.messages import Ack
from braidmq.wire.qumbed.public_keys import KEY_ID_BYTES

MESSAGE_ID_BYTES_MAX: Final = 64
"""The ids that this client chooses are never longer."""

# The JSON of a Publish without topic, schema and payload, at its longest.
_PUBLISH_FIXED_BYTES: Final = len(
    messages.publish(
        "",
        b"",
        "",
        bytes(KEY_ID_BYTES),
        bytes(KEY_BYTES),
        frame_id=MESSAGE_ID_BYTES_MAX * "x",
    )
)


class Sealing(NamedTuple):
    """The recipient and the sender of sealed messages, and how to seal them."""

    recipient: bytes
    sender: bytes
    seal: Callable[[bytes], bytes]
    is_numbered: bool = False  # in envelopes


class QumbedPosting(Posting[QumbedConnection, Post]):
    """A topic, its schema and the sealing, checked once for any number of messages.

    Without *sealing*, messages are sent as they are, and without the client's public key:
    seeing one, the broker would assume that they are sealed.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
    """

    strand = "qumbed"

    def __init__(
        self,
        topic: str,
        next_id: Callable[[], str],
        *,
        schema: str,
        schemas: Schemas,
        sealing: Sealing | None,
    ) -> None:
        check_topic(topic)
        utf8("a schema id", schema, SCHEMA_ID_BYTES_MAX)
        self.topic = topic
        self._next_id = next_id
        self._schema = schema
        self._schemas = schemas
        self._sealing = sealing
        self._quoted_topic = messages.quote(topic)
        self._quoted_schema = messages.quote(schema)

    def lay_out(self, payload: Payload) -> Post:
        """Return *payload* checked, sealed and laid out, or raise InvalidArgument."""
        raw = payload_bytes(payload)
        if self._schema and (problem := self._schemas.problem(self._schema, raw)):
            raise InvalidArgument(f"schema {self._schema!r}: {problem}")
        self._check_size(len(raw) + OVERHEAD_BYTES)  # sealed by us, or by the gateway
        recipient_key_id = sender = b""
        renew: Callable[[], Post] | None = None
        if self._sealing is not None:
            if self._sealing.is_numbered:
                # Sent again much later, its sequence number would be behind the receiver's
                # replay window, which has moved on with the messages accepted meanwhile.
                renew = partial(self.lay_out, raw)
            raw = self._sealing.seal(raw)
            self._check_size(len(raw))  # an envelope takes more
            recipient_key_id, sender = key_id(self._sealing.recipient), self._sealing.sender
        message_id = self._next_id()
        frame = messages.publish(
            self.topic, raw, self._schema, recipient_key_id, sender, frame_id=message_id
        )
        return Post(message_id, frame, renew)

    def fly(self, chunk: Chunk[Post], connection: QumbedConnection) -> AnsweredFlight[Answer]:
        """Hand *chunk* over to *connection*."""
        return AnsweredFlight(chunk, connection, self.outcome)

    def outcome(self, _: Post, answer: Answer, repeated: bool) -> Receipt | PublishError:  # noqa: FBT001 - as a flight calls it
        """Return what an answer means for its message."""
        if (refusal := QumbedConnection.refusal_of(answer)) is not None:
            return refused(refusal, self.topic)
        if not isinstance(answer, Ack) or not answer.ok:
            return OutcomeUnknown("the broker's answer is not a confirmation")
        return Receipt(
            self.topic,
            1,
            durable=True,
            id=answer.message_id,
            repeated=repeated,
            delivered=answer.delivered,
            timestamp=instant_of_ms(answer.timestamp_ms),
        )

    def _check_size(self, payload_bytes: int) -> None:
        as_message = messages.message_bytes(
            self._quoted_topic, payload_bytes, self._quoted_schema
        )
        around = len(self._quoted_topic) + len(self._quoted_schema) + _PUBLISH_FIXED_BYTES
        as_publish = around + 4 * ((payload_bytes + 2) // 3)  # in base64
        size = max(as_message, as_publish)
        if size > frames.FRAME_MAX:
            told = f"{size} bytes as JSON, at most {frames.FRAME_MAX}"
            raise InvalidArgument(f"the message does not fit into a frame: {told}")
