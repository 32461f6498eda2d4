"""Text from a peer as one short, safe line without API keys: for log lines and error texts."""

import re
from typing import Final

from braidmq.base.printable import printable

TEXT_CHARS_MAX: Final = 256
"""Characters of a peer's string in a log line; the rest is cut."""

MASK: Final = "********"

_CUT: Final = "…"
_KEY_IN_TEXT = re.compile(r"bk_[A-Za-z0-9_-]{16,}")


def escaped(text: str, *, chars_max: int = TEXT_CHARS_MAX) -> str:
    r"""Return *text* without API keys, cut, and with what is not printable as `\x1b`."""
    # Mask before cutting: half a key would not be recognised.
    masked = _KEY_IN_TEXT.sub(MASK, text)
    cut = masked if len(masked) <= chars_max else masked[:chars_max] + _CUT
    return printable(cut)
