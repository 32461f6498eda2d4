"""Names of strangers as names of directories: escaped, bounded, and still told apart.

    sensors/temp   ->   sensors%2Ftemp~9f2c41d07a35be18     readable, then a hash of the whole

A name that is cut has lost its end, but not its hash. Readers that take `key=value` for a
column undo the escapes; so an escape is never cut in the middle of a character.
"""

import re
from hashlib import sha256
from typing import Final

READABLE_CHARS_MAX: Final = 120
HASH_CHARS: Final = 16
NAME_CHARS_MAX: Final = READABLE_CHARS_MAX + 1 + HASH_CHARS
FILE_NAME_BYTES_MAX: Final = 255
"""Of the file systems; names are ASCII, and there is room for `topic_dir=`, or `batch-…`."""

assert NAME_CHARS_MAX <= FILE_NAME_BYTES_MAX - 64

MARK: Final = "~"
"""Between name and hash. It is escaped in names, so a plain name is no other's hashed one."""

RESERVED: Final = frozenset({"quarantine"})
"""Directories that a table of a schema lies beside."""

_SAFE: Final = re.compile(r"[A-Za-z0-9._-]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def hashed_name(text: str) -> str:
    """Return a directory's name for *text* that no other text has."""
    data = text.encode("utf-8", "surrogatepass")
    return f"{_readable(text)}{MARK}{sha256(data).hexdigest()[:HASH_CHARS]}"


def plain_name(text: str) -> str:
    """Return *text* itself where that can be a directory's name, else a hashed one."""
    fits = len(text) <= READABLE_CHARS_MAX and text not in RESERVED
    return text if fits and _PLAIN.fullmatch(text) else hashed_name(text)


def _readable(text: str) -> str:
    found = ""
    for character in text[:READABLE_CHARS_MAX]:
        escaped = _escaped(character)
        if len(found) + len(escaped) > READABLE_CHARS_MAX:
            break
        found += escaped
    return found


def _escaped(character: str) -> str:
    if _SAFE.match(character):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
