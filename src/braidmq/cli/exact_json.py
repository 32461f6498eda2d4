r"""JSON as commands read it and write it again: what strangers sent stays what it was.

A payload goes out as JSON when it is JSON, else as text, else in base64, as over HTTP. JSON can
say what Python has no number for (1e999) and UTF-8 no bytes ("\ud800"): both are legal, any
publisher may send them, and they are written as they were read. NaN and Infinity are no JSON.
"""

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Final

from braidmq.base.strict_json import refuse_constant

DEEP_FRAMES_MAX: Final = 10_000
"""Three frames for each level of JSON that is as deep as the broker could read: its stack had
Python's own 1,000 frames, and ours may be higher by then."""


class UnheldNumber(float):
    """A number that is too large for a float or too long for an int, as it was written."""

    def __init__(self, written: str) -> None:
        self.written = written


def read_json(text: str) -> object:
    """Return the value that *text* says.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is deeper than the stack has room for.
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
    """Return *value* as JSON on one line, with escapes for what *encoding* cannot say."""
    with room_for_depth():
        text = _written(value, ascii_only=False)
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = _written(value, ascii_only=True)
    return text


@contextmanager
def room_for_depth() -> Iterator[None]:
    """Let the block go as deep as an answer of the broker can be."""
    frames_max = sys.getrecursionlimit()
    sys.setrecursionlimit(max(frames_max, DEEP_FRAMES_MAX))
    try:
        yield
    finally:
        sys.setrecursionlimit(frames_max)


def _written(value: object, *, ascii_only: bool) -> str:
    try:
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, default=str)
    except ValueError:  # there is an infinite number somewhere in it
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
    except ValueError:  # Python reads some thousands of digits and no more
        return UnheldNumber(text)


_decoder: Final = json.JSONDecoder(
    parse_float=_float, parse_int=_int, parse_constant=refuse_constant
)
