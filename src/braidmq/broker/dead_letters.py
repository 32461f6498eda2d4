"""Dead letters: where a message that was given up on goes, and what it says about its end."""

import hashlib
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX

PREFIX: Final = "dlq."

MAX_RETRIES: Final = "maxRetries"
"""The reason of a message whose last allowed delivery was not acknowledged."""


def topic_for(topic: str) -> str:
    """Return the topic of *topic*'s dead letters."""
    name = PREFIX + topic
    if len(name.encode()) <= TOPIC_BYTES_MAX:
        return name
    return PREFIX + hashlib.sha256(topic.encode()).hexdigest()


def is_dead_letter_topic(topic: str) -> bool:
    """Say whether messages of *topic* are dead letters, which never die again."""
    return topic.startswith(PREFIX)


def headers_for(
    headers: dict[str, str], *, reason: str, topic: str, attempts: int
) -> dict[str, str]:
    """Return the headers of the dead letter of a message that had *headers*."""
    return {
        **headers,
        "deathReason": reason,
        "deathQueue": topic,
        "deathAttempts": str(attempts),
    }
