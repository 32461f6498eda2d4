"""Turn arbitrary names into directory names: escaped, bounded, and still distinct.

    sensors/temp   ->   sensors%2Ftemp~9f2c41d07a35be18     readable, then a hash of the whole

A long name is cut, but its hash still covers the whole. Readers that take `key=value` for a
column undo the escapes, so a name is never cut in the middle of an escaped character.
"""

import re
from hashlib import sha256
from typing import Final

READABLE_CHARS_MAX: Final = 120
HASH_CHARS: Final = 16
NAME_CHARS_MAX: Final = READABLE_CHARS_MAX + 1 + HASH_CHARS
FILE_NAME_BYTES_MAX: Final = 255
"""The limit of common file systems; ours leave room for `topic_dir=` or `batch-…`."""

assert NAME_CHARS_MAX <= FILE_NAME_BYTES_MAX - 64

MARK: Final = "~"
"""Separates name and hash. Names escape it, so no plain name equals a hashed one."""

RESERVED: Final = frozenset({"quarantine"})
"""Names of directories beside the tables of schemas."""

_SAFE: Final = re.compile(r"[A-Za-z0-9._-]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def hashed_name(text: str) -> str:
    """Return a directory name for *text* that no other text has."""
    data = text.encode("utf-8", "surrogatepass")
    return f"{_readable(text)}{MARK}{sha256(data).hexdigest()[:HASH_CHARS]}"


def plain_name(text: str) -> str:
    """Return *text* itself if it can be a directory name, else a hashed one."""
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
