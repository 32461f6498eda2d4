"""Marks: what the publisher of a Qumbed message said about it, kept as headers.

    schemaId | recipientKeyId | senderPublicKey     in this order, each only when it is there

Keys are base64. Headers of these names on a message of another strand mean nothing.
"""

import base64
from typing import Final, final

from braidmq.base.strict_json import is_json
from braidmq.broker.schemas import SEALED_BYTES_MIN, SENDER_KEY_BYTES
from braidmq.broker.topics import ORIGIN_QUMBED, Message, decode_headers, encode_headers

SCHEMA_ID: Final = "schemaId"
RECIPIENT_KEY_ID: Final = "recipientKeyId"
SENDER_PUBLIC_KEY: Final = "senderPublicKey"

_RECIPIENT: Final = RECIPIENT_KEY_ID.encode()


@final
class Marks:
    """What a Qumbed publisher said of a message, besides its recipient."""

    def __init__(self, schema_id: str, sender_public_key: bytes, *, sealed: bool) -> None:
        self.schema_id: str = schema_id
        self.sender_public_key: bytes = sender_public_key
        self.sealed: bool = sealed  # a box between two keys, delivered unopened


def mark(
    message: Message, *, schema_id: str, recipient_key_id: bytes, sender_public_key: bytes
) -> None:
    """Set origin, headers and recipient of *message*, as a Qumbed publisher gave them."""
    said: dict[str, str] = {}
    if schema_id:
        said[SCHEMA_ID] = schema_id
    if recipient_key_id:
        said[RECIPIENT_KEY_ID] = base64.b64encode(recipient_key_id).decode()
    if sender_public_key:
        said[SENDER_PUBLIC_KEY] = base64.b64encode(sender_public_key).decode()
    message.origin = ORIGIN_QUMBED
    message.headers = encode_headers(said)
    message.recipient_key_id = recipient_key_id


def recipient_of(block: bytes) -> bytes:
    """Return the id of the key that a Qumbed message with these headers is for, if any."""
    # A cheap test, which spares most messages the decoding.
    if _RECIPIENT not in block:
        return b""
    return base64.b64decode(decode_headers(block).get(RECIPIENT_KEY_ID, ""))


def marks_of(message: Message) -> Marks:
    """Return the marks of a message of any strand; they are read once and kept."""
    marks = message.marks
    if marks is None:
        marks = _read_marks(message)
        message.marks = marks
    return marks


def _read_marks(message: Message) -> Marks:
    if message.origin != ORIGIN_QUMBED or not message.headers:
        return Marks("", b"", sealed=False)
    said = decode_headers(message.headers)
    sender_public_key = base64.b64decode(said.get(SENDER_PUBLIC_KEY, ""))
    payload = message.payload
    sealed = (
        len(payload) >= SEALED_BYTES_MIN
        and len(sender_public_key) == SENDER_KEY_BYTES
        and not is_json(payload)
    )
    return Marks(said.get(SCHEMA_ID, ""), sender_public_key, sealed=sealed)
