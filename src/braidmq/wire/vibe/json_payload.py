"""JSON payloads of the Vibe strand: whether bytes are JSON, and how other bytes become it.

JSON is RFC 8259 in UTF-8, at most 64 arrays and objects deep. The size of numbers, repeated
keys and lone surrogates in escapes are not judged. What a payload means is not known here.
"""

import base64
import json
from typing import Final, NoReturn

import msgspec

from braidmq.base.strict_json import is_deeper

DEPTH_MAX: Final = 64
"""Arrays and objects around the innermost value."""

# Raw: judged as it is passed over, and no object made of it.
_fast: Final = msgspec.json.Decoder(msgspec.Raw)


def is_json(payload: bytes) -> bool:
    """Tell whether *payload* is one JSON text; nothing at all is none."""
    try:
        _fast.decode(payload)
        if not payload.isascii():
            payload.decode()
    except (ValueError, RecursionError):
        # The fast decoder also refuses lone surrogates; it never accepts too much.
        if not _is_json_to_the_letter(payload):
            return False
    return not is_deeper(payload, DEPTH_MAX)


def as_json(payload: bytes) -> tuple[bytes, bool]:
    """Return *payload* as a Vibe client may have it, and whether that took base64.

    JSON stays as it is, and an empty payload stays absent; any other becomes a JSON string.
    """
    if not payload or is_json(payload):
        return payload, False
    return b'"' + base64.b64encode(payload) + b'"', True


def _is_json_to_the_letter(payload: bytes) -> bool:
    try:
        _exact.decode(payload.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers are measured, not converted: their size is not judged, and must not cost anything.
_exact: Final = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=_refuse_constant
)
