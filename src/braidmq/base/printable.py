r"""Text of other users on its way to a terminal: what is not printable is escaped, as `\x1b`.

Topics, queues and cursors have any name that is UTF-8. In a terminal, control characters move
the cursor or change what was written before, and marks of direction reorder a line.
"""

import re
from typing import Final

_HIDDEN_IN_JSON: Final = re.compile(
    b"\x7f"  # DEL
    b"|\xc2[\x80-\x9f]"  # C1: U+009B begins a terminal's command, as ESC [ does
    b"|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"  # unseen marks
)


def printable(text: str) -> str:
    r"""Return *text* with what is not printable as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def printable_json(text: str) -> str:
    r"""Return a JSON text, on one line, with what is not printable as `\u001b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def visible_json(data: bytes) -> bytes:
    """Return a JSON document with control characters and unseen marks escaped: the same value.

    JSON itself escapes only those below U+0020.
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    return _HIDDEN_IN_JSON.sub(lambda found: _escaped(found[0].decode()).encode(), data)


def _escaped(character: str) -> str:
    # Beyond U+FFFF JSON takes two escapes, as UTF-16 has it.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
