"""JSON payloads of the Vibe strand: whether bytes are JSON, and how other bytes become it.

JSON is RFC 8259 in UTF-8, at most 64 arrays and objects deep. The size of numbers, repeated
keys and lone surrogates in escapes are not judged. What a payload means is not known here.
"""

import base64
import json
import re
from itertools import accumulate
from typing import Final, NoReturn

import msgspec

DEPTH_MAX: Final = 64
"""Arrays and objects around the innermost value."""

# Raw: judged as it is passed over, and no object made of it.
_fast: Final = msgspec.json.Decoder(msgspec.Raw)

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # one level down, one up
_NO_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"[]{}")))


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
    # No deeper than it has opening brackets: for nearly every payload that is an answer.
    if payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX:
        return True
    return not _is_deep(payload)


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


def _is_deep(payload: bytes) -> bool:
    # Only for JSON: strings end and brackets match. All of it runs in C, for it must be quick
    # with a payload of a mebibyte of brackets too.
    steps = _STRING.sub(b"", payload).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_MAX


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers are measured, not converted: their size is not judged, and must not cost anything.
_exact: Final = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=_refuse_constant
)
