"""How deep JSON is nested: what every strand that reads JSON bounds before it builds objects.

Whether bytes are JSON at all is not asked here; whoever asks for the depth knows that they are.
"""

import re
from itertools import accumulate
from typing import Final

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # one level down, one up
_NO_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"[]{}")))


def is_deeper(payload: bytes, depth_max: int) -> bool:
    """Tell whether JSON has more than *depth_max* arrays and objects within each other."""
    # No deeper than it has opening brackets: for nearly every payload that is an answer.
    if payload.count(b"[") + payload.count(b"{") <= depth_max:
        return False
    # Strings end and brackets match, for it is JSON. All of this runs in C, because it must be
    # quick with a payload of a mebibyte of brackets too.
    steps = _STRING.sub(b"", payload).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > depth_max
