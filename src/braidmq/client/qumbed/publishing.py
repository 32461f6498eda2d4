"""What a Qumbed publisher sends: a message checked, sealed and laid out, and many in flight."""

from collections.abc import Callable
from functools import partial
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.deliveries import Payload, Receipt
from braidmq.client.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PublishError,
)
from braidmq.client.publishing import (
    AnsweredFlight,
    Chunk,
    check_confirmed,
    payload_bytes,
    refused,
)
from braidmq.client.qumbed.connection import Answer, QumbedConnection, refusal_of
from braidmq.client.qumbed.schemas import Schemas, check_schema_id
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.boxes import KEY_BYTES, OVERHEAD_BYTES, key_id
from braidmq.wire.qumbed.messages import Ack
from braidmq.wire.qumbed.public_keys import KEY_ID_BYTES

STRAND: Final = "qumbed"

MESSAGE_ID_BYTES_MAX: Final = 64
"""What we call our messages is never longer."""

# A Publish's JSON but for topic, schema and payload, at its longest.
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


class Post:
    """A message laid out; sent again it has the same id, so that it is stored once.

    One that was refused was not stored: in an envelope it is *renewed*, or its number would
    come too late, behind those that were taken meanwhile.
    """

    __slots__ = ("frame", "id", "renewed")

    def __init__(
        self, message_id: str, frame: bytes, renewed: "Callable[[], Post] | None" = None
    ) -> None:
        self.id = message_id
        self.frame = frame
        self.renewed = renewed

    def __len__(self) -> int:
        return len(self.frame)


class Sealing:
    """For whom messages are sealed, by whom and how."""

    __slots__ = ("is_numbered", "recipient", "seal", "sender")

    def __init__(
        self,
        recipient: bytes,
        sender: bytes,
        seal: Callable[[bytes], bytes],
        *,
        is_numbered: bool = False,
    ) -> None:
        self.recipient = recipient
        self.sender = sender
        self.seal = seal
        self.is_numbered = is_numbered  # in envelopes


class Posting:
    """A topic, its schema and the sealing, checked once for any number of messages.

    Without a *sealing* messages go as they are, and without our public key: it would make the
    broker take them for sealed.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
        NotSupported: The qos is one that Qumbed lacks.
    """

    def __init__(
        self,
        topic: str,
        next_id: Callable[[], str],
        *,
        qos: int,
        schema: str,
        schemas: Schemas,
        sealing: Sealing | None,
    ) -> None:
        check_topic(topic)
        check_confirmed(STRAND, qos)
        check_schema_id(schema)
        self.topic = topic
        self._next_id = next_id
        self._schema = schema
        self._schemas = schemas
        self._sealing = sealing
        self._quoted_topic = messages.quote(topic)
        self._quoted_schema = messages.quote(schema)

    def post(self, payload: Payload) -> Post:
        """Check, seal and lay out a message, or raise InvalidArgument."""
        raw = payload_bytes(payload)
        if self._schema and (problem := self._schemas.problem(self._schema, raw)):
            raise InvalidArgument(f"schema {self._schema!r}: {problem}")
        self._check_size(len(raw) + OVERHEAD_BYTES)  # sealed by us, or by the gateway
        recipient_key_id = sender = b""
        renewed: Callable[[], Post] | None = None
        if self._sealing is not None:
            if self._sealing.is_numbered:
                renewed = partial(self.post, raw)
            raw = self._sealing.seal(raw)
            self._check_size(len(raw))  # an envelope takes more
            recipient_key_id, sender = key_id(self._sealing.recipient), self._sealing.sender
        message_id = self._next_id()
        frame = messages.publish(
            self.topic, raw, self._schema, recipient_key_id, sender, frame_id=message_id
        )
        return Post(message_id, frame, renewed)

    def receipt(self, answer: Ack, *, repeated: bool) -> Receipt:
        """Return the receipt of a message that went well."""
        return Receipt(
            self.topic,
            1,
            durable=True,
            id=answer.message_id,
            repeated=repeated,
            delivered=answer.delivered,
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


def check_topic(topic: str) -> None:
    """Raise InvalidArgument unless *topic* can be one."""
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= TOPIC_BYTES_MAX:
        form = f"1 to {TOPIC_BYTES_MAX} bytes of UTF-8"
        raise InvalidArgument(f"a topic has {form}")


class QumbedFlight(AnsweredFlight[Post, Answer]):
    """A chunk that was handed over to a connection, and the answers to it."""

    __slots__ = ("_posting",)

    def __init__(
        self, posting: Posting, chunk: Chunk[Post], connection: QumbedConnection
    ) -> None:
        posts = [one for one in chunk if isinstance(one, Post)]
        super().__init__(chunk, connection.publish(posts), connection.lost)
        self._posting = posting

    def judged(self, one: Post, answer: Answer, *, repeated: bool) -> Receipt | PublishError:
        """Return what an answer means for its message."""
        del one
        if (refusal := refusal_of(answer)) is not None:
            return refused(refusal, self._posting.topic)
        if isinstance(answer, Ack) and answer.ok:
            return self._posting.receipt(answer, repeated=repeated)
        return OutcomeUnknown("the broker's answer is no confirmation")
