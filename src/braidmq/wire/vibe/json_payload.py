"""JSON payloads of the Vibe strand: whether bytes are JSON, and how other bytes become it.

JSON is RFC 8259 in UTF-8, at most 64 arrays and objects deep. The size of numbers, duplicate
keys and lone surrogates in escapes are not judged. This module does not know what a payload
means.
"""

import base64
from typing import Final

from braidmq.base import strict_json

DEPTH_MAX: Final = 64
"""Arrays and objects around the innermost value."""


def is_json(payload: bytes) -> bool:
    """Tell whether *payload* is one JSON text within DEPTH_MAX; an empty payload is not."""
    return strict_json.is_json(payload) and not strict_json.is_deeper(payload, DEPTH_MAX)


def as_json(payload: bytes) -> tuple[bytes, bool]:
    """Return *payload* as a Vibe client can read it, and whether that took base64.

    JSON stays as it is, and an empty payload stays absent; other bytes become a JSON string.
    """
    if not payload or is_json(payload):
        return payload, False
    return b'"' + base64.b64encode(payload) + b'"', True
