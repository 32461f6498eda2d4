r"""JSON that survives a round trip: what a publisher sent is printed as it was.

A payload is printed as JSON if it is JSON, else as text, else in base64, as over HTTP. JSON may
hold numbers that no Python float can (1e999) and strings that UTF-8 cannot encode ("\ud800").
Both are legal and any publisher may send them, so they are printed as they were read. NaN and
Infinity are not JSON.
"""

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Final

from braidmq.base.printable import printable_json
from braidmq.base.strict_json import refuse_constant

DEEP_FRAMES_MAX: Final = 10_000
"""Recursion limit while a broker's answer is read or written. The broker reads with Python's
default of 1,000 frames; we need up to three per level, on top of a stack of our own."""


class UnheldNumber(float):
    """A number too large for a float or too long for an int; keeps its original text."""

    def __init__(self, written: str) -> None:
        self.written = written


def read_json(text: str) -> object:
    """Return the value of *text*.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply for the stack.
    """
    return _decoder.decode(text)


def payload_as_json(payload: bytes) -> dict[str, object]:
    """Return `payload`, as JSON when it is JSON and else as text, or `payload_base64`."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}
    try:
        return {"payload": read_json(text)}
    except (ValueError, RecursionError):
        return {"payload": text}


def json_text(value: object, *, encoding: str) -> str:
    """Return *value* as JSON on one line, escaping what cannot be encoded or printed."""
    with room_for_depth():
        text = _written(value, ascii_only=False)
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = _written(value, ascii_only=True)
    return printable_json(text)


@contextmanager
def room_for_depth() -> Iterator[None]:
    """Raise the recursion limit for the block to what a broker's answer may need."""
    frames_max = sys.getrecursionlimit()
    sys.setrecursionlimit(max(frames_max, DEEP_FRAMES_MAX))
    try:
        yield
    finally:
        sys.setrecursionlimit(frames_max)


def _written(value: object, *, ascii_only: bool) -> str:
    try:
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, default=str)
    except ValueError:  # it contains an infinite number
        return _written_by_parts(value, ascii_only=ascii_only)


def _written_by_parts(value: object, *, ascii_only: bool) -> str:
    if isinstance(value, UnheldNumber):
        return value.written
    if isinstance(value, dict):
        members = (
            f"{_written(str(name), ascii_only=ascii_only)}: "
            f"{_written_by_parts(member, ascii_only=ascii_only)}"
            for name, member in value.items()
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list | tuple):
        items = (_written_by_parts(item, ascii_only=ascii_only) for item in value)
        return "[" + ", ".join(items) + "]"
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(str(value))  # JSON has no number for it
    return _written(value, ascii_only=ascii_only)


def _float(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else UnheldNumber(text)


def _int(text: str) -> float:
    try:
        return int(text)
    except ValueError:  # Python limits the number of digits
        return UnheldNumber(text)


_decoder: Final = json.JSONDecoder(
    parse_float=_float, parse_int=_int, parse_constant=refuse_constant
)
