"""Messages as Qumbed has them: what a Publish says, and any strand's message as a Message."""

import hashlib
from typing import Final, final

from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.marks import Marks, mark, marks_of
from braidmq.broker.topics import Message, Topic, body_of, encode_headers
from braidmq.server.strands.qumbed.gateway import GatewayKey
from braidmq.server.strands.qumbed.link import QumbedOptions
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.session import SEAL_BYTES

KEYLESS_ID_CHARACTERS_MIN: Final = 16
"""From here on an id is taken for one that no two clients choose, as random ones are."""

DEDUP_DIGITS: Final = 48
"""Of the hash; 192 bits are enough that no two ids ever meet."""

_US_PER_MS: Final = 1_000


def dedup_id_of(publish: messages.Publish, principal: str, connection: str) -> str:
    """Return what a repeat is recognised by, which is the sender's own; "" when it has none.

    Who gives no key cannot be told from others that give none: unless the id is long enough to
    not be another's, it is valid on its *connection* only.
    """
    if not publish.id:
        return ""
    sender = publish.sender_public_key.hex()
    if not sender and len(publish.id) < KEYLESS_ID_CHARACTERS_MIN:
        sender = connection
    # By its hash: it is stored with the message, and consumers of other strands see it.
    whole = f"{len(principal)}:{principal}:{sender}:{publish.id}"
    return "qumbed:" + hashlib.sha256(whole.encode()).hexdigest()[:DEDUP_DIGITS]


def message_of(
    publish: messages.Publish,
    topic: Topic,
    options: QumbedOptions,
    now_us: int,
    *,
    sealed: bool,
    dedup_id: str,
) -> Message:
    """Return what a Publish asks to be stored."""
    message = Message(topic, 1 if options.is_durable else 0, body_of(topic, publish.payload))
    mark(
        message,
        schema_id=publish.schema_id,
        recipient_key_id=publish.recipient_key_id,
        sender_public_key=publish.sender_public_key,
    )
    message.marks = Marks(publish.schema_id, publish.sender_public_key, sealed=sealed)
    if dedup_id:
        message.headers += encode_headers({DEDUP_HEADER: dedup_id})
    if options.ttl_us and topic.queue is None:
        message.set_ttl(options.ttl_us, now_us)
    return message


@final
class Delivering:
    """Makes the Message frames of one stream."""

    def __init__(self, gateway: GatewayKey) -> None:
        self._gateway: GatewayKey = gateway
        self._gateway_key: bytes = gateway.public_key
        self._quoted: dict[str, bytes] = {}  # topics as JSON
        self._schema_id: str = ""  # the last one, and as JSON
        self._quoted_schema_id: bytes = b'""'

    def frame(self, message: Message, public_key: bytes, now_us: int) -> bytes | None:
        """Return the frame for a subscriber's key, or None when it would be too long."""
        topic = message.topic.name
        quoted = self._quoted.get(topic)
        if quoted is None:
            quoted = messages.quote(topic)
            self._quoted[topic] = quoted
        marks = marks_of(message)
        if marks.schema_id != self._schema_id:
            self._schema_id = marks.schema_id
            self._quoted_schema_id = messages.quote(marks.schema_id)
        payload = message.payload
        size = len(payload) if marks.sealed else len(payload) + SEAL_BYTES
        if messages.message_bytes(quoted, size, self._quoted_schema_id) > frames.FRAME_MAX:
            return None
        sender = marks.sender_public_key
        if not marks.sealed:
            payload = self._gateway.seal_for(public_key, payload)
            sender = self._gateway_key
        return messages.message(
            quoted,
            payload,
            sender,
            message_id=str(message.id) if message.id else "",
            schema_id=self._quoted_schema_id,
            timestamp_ms=(message.timestamp_us or now_us) // _US_PER_MS,
        )

    def forget(self, topic: str) -> None:
        """Keep nothing of a topic that is not subscribed to any more."""
        self._quoted.pop(topic, None)
