"""Dead letters: where a message goes that was given up on, and the headers that say why."""

import hashlib
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker.topics import (
    MESSAGE_ID_HEADER,
    Message,
    Topic,
    body_of,
    decode_headers,
    encode_headers,
)

PREFIX: Final = "dlq."

MAX_RETRIES: Final = "maxRetries"
"""The last allowed delivery was not acknowledged."""
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"
REJECTED: Final = "rejected"
TOO_LARGE: Final = "tooLarge"
"""No frame of the consumer's strand can carry the message."""

REASON_HEADER: Final = "deathReason"
QUEUE_HEADER: Final = "deathQueue"
ATTEMPTS_HEADER: Final = "deathAttempts"

QUEUE_NAME_CHARACTERS_MAX: Final = 256
"""A queue's name; that of its dead letters is a queue's name as well."""


def topic_for(topic: str) -> str:
    """Return the topic of *topic*'s dead letters."""
    name = PREFIX + topic
    if len(name.encode()) <= TOPIC_BYTES_MAX:
        return name
    return _hashed(topic)


def queue_for(queue: str) -> str:
    """Return the queue of *queue*'s dead letters."""
    name = PREFIX + queue
    return name if len(name) <= QUEUE_NAME_CHARACTERS_MAX else _hashed(queue)


def may_come_from(letters: str, home: str, declared: str) -> bool:
    """Say whether dead letters of *home* go to *letters*; *declared* is the name it declared.

    Publishers set headers too: without this check, one that may publish to a queue of dead
    letters could have an operator's replay send its message where it must not publish.
    """
    return letters in {declared, topic_for(home), queue_for(home)}


def _hashed(name: str) -> str:
    return PREFIX + hashlib.sha256(name.encode()).hexdigest()


def is_dead_letter_topic(topic: str) -> bool:
    """Say whether messages of *topic* are dead letters, which are never given up on again."""
    return topic.startswith(PREFIX)


def moved(message: Message, topic: Topic, block: bytes, now_us: int) -> Message:
    """Return a copy of *message* for another topic, with other headers and no expiry."""
    # QoS 1 whatever it was: a dead letter is always durable.
    letter = Message(topic, 1, body_of(topic, message.payload))
    letter.priority = message.priority
    letter.origin = message.origin
    letter.timestamp_us = now_us
    letter.headers = block
    letter.recipient_key_id = message.recipient_key_id
    return letter


def letter_of(
    message: Message,
    topic: Topic,
    reason: str,
    *,
    now_us: int,
    attempts: int = 0,
    keep_id: bool = False,
) -> Message:
    """Return the dead letter of *message* on *topic*; *keep_id* keeps its id as a header."""
    kept = decode_headers(message.headers)
    if keep_id:
        # The id by which consumers have known it: the publisher's own, else the broker's.
        kept.setdefault(MESSAGE_ID_HEADER, str(message.id))
    kept[REASON_HEADER] = reason
    kept[QUEUE_HEADER] = message.topic.name
    kept[ATTEMPTS_HEADER] = str(attempts)
    return moved(message, topic, encode_headers(kept), now_us)


def headers_sent_back(block: bytes) -> bytes:
    """Return the headers of a dead letter that is sent back, without the `death` headers."""
    kept = decode_headers(block)
    for name in (REASON_HEADER, QUEUE_HEADER, ATTEMPTS_HEADER):
        kept.pop(name, None)
    return encode_headers(kept)
