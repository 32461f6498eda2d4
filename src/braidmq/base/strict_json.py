r"""Strict JSON: whether bytes are RFC 8259 in UTF-8, how deep they nest, what value they hold.

Two decoders share the work. msgspec is fast and never accepts too much, but it refuses lone
surrogates in escapes (`"\ud800"`), which RFC 8259 allows. Python's own decoder reads those, but
it also accepts `NaN` and `Infinity`, which are not JSON. So msgspec decides first, and Python's
decoder, with its constants switched off, has the last word on what msgspec refuses.

Duplicate keys and the size of numbers are not judged here; a schema or the caller does that.
Error texts belong to the caller as well: each strand words its own refusal.
"""

import json
from itertools import accumulate
from typing import Final, NoReturn

import msgspec

_AS_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")  # one level down, one up
_PASSES_MAX: Final = 64
"""As deep as a payload of Vibe may nest; deeper than that is measured step by step."""

_NO_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"[]{}")))

# Decoding to Raw checks the syntax and builds no object.
_skim: Final = msgspec.json.Decoder(msgspec.Raw)
_values: Final = msgspec.json.Decoder()


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities; give this to `json.JSONDecoder` as `parse_constant`.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is not JSON")


# `len` instead of `int`: converting a number of a million digits takes quadratic time, and a
# yes or no does not need its value.
_exact_syntax: Final = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=refuse_constant
)
_exact_values: Final = json.JSONDecoder(parse_constant=refuse_constant)


def is_json(payload: bytes) -> bool:
    """Tell whether *payload* is exactly one JSON text in UTF-8.

    Text that nests deeper than the stack allows is not JSON to us.
    """
    try:
        _skim.decode(payload)
        # msgspec does not look into the strings it skips, so their UTF-8 is checked apart.
        if not payload.isascii():
            payload.decode()
    except RecursionError:
        return False  # the slower decoder would recurse as deeply
    except ValueError:
        return _is_exact(payload)
    return True


def is_deeper(payload: bytes, depth_max: int) -> bool:
    """Tell whether *payload* nests more than *depth_max* arrays and objects.

    The answer is only meaningful for bytes that are JSON: strings must end, brackets match.
    """
    # JSON is never deeper than its number of opening brackets, which settles nearly every
    # payload in two scans.
    if payload.count(b"[") + payload.count(b"{") <= depth_max:
        return False
    # A peer can send a mebibyte of brackets, so the slow answer must not loop in Python. What
    # is between quotation marks goes first; escaped ones are not among them. Then each pass
    # takes the innermost pairs away, which is one level.
    if b"\\" in payload:
        payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    pairs = b"".join(payload.split(b'"')[::2]).translate(_AS_BRACKETS, _NO_BRACKETS)
    passes = 0
    while pairs and passes < min(depth_max, _PASSES_MAX):
        pairs = pairs.replace(b"[]", b"")
        passes += 1
    if not pairs or passes == depth_max:
        return bool(pairs)
    steps = pairs.translate(_STEPS)
    return max(accumulate(memoryview(steps).cast("b"))) > depth_max - passes


def read_value(payload: bytes) -> object:
    """Return the value that *payload* holds.

    Raises:
        ValueError: It is not JSON in UTF-8, or an integer has more digits than Python converts.
        RecursionError: It nests deeper than the stack allows.
    """
    try:
        if not payload.isascii():
            payload.decode()
        return _values.decode(payload)
    except ValueError:
        return read_value_exactly(payload)


def read_value_exactly(payload: bytes) -> object:
    """Return the value of a *payload* that msgspec has refused already; it may be JSON still.

    Raises:
        ValueError: It is not JSON in UTF-8, or an integer has more digits than Python converts.
        RecursionError: It nests deeper than the stack allows.
    """
    return _exact_values.decode(payload.decode())


def _is_exact(payload: bytes) -> bool:
    try:
        _exact_syntax.decode(payload.decode())
    except (ValueError, RecursionError):
        return False
    return True
