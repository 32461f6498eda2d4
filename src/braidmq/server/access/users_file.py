"""The file of the users: its format, its checks and its checksum.

`users.json`, for its owner only:

    {"version": 1,
     "checksum": "sha256:...",                                of the users, as compact JSON
     "users": [{"name": "ada",
                "hash": "$argon2id$...",
                "created": 1700000000,                        unix seconds
                "grants": {"orders.*": ["publish"]}}]}        pattern: operations

A file without a checksum is one of an earlier version, or was changed by hand; it gets one with
the next change.

users.py changes it.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.broker.authorize import GRANTABLE, is_pattern
from braidmq.wal.disk import Files, read_all

USERS_FILE: Final = "users.json"
VERSION: Final = 1

NAME_CHARS_MAX: Final = 64

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}")
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=[1-9]\d{0,6},t=[1-9]\d{0,2},p=[1-9]\d?"
    r"\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}",
    re.ASCII,
)


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One user as the file holds it."""

    name: str
    hash: str
    created: int
    grants: dict[str, list[str]]

    def __repr__(self) -> str:
        return f"User({self.name!r})"  # without the hash: it may be printed


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    users: list[User]
    checksum: str = ""


def is_user_name(name: str) -> bool:
    """Return whether a user may have this name.

    Only ASCII letters are allowed: two users must not look alike on a screen.
    """
    return _NAME.fullmatch(name) is not None


def encoded_users(table: Mapping[str, User]) -> bytes:
    """Return the content of the file with these users."""
    users = [table[name] for name in sorted(table)]
    content = _Content(VERSION, users, _checksum(users))
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def load_users(files: Files, reserved: Collection[str]) -> dict[str, User]:
    """Return the users by name, none if there is no file; *reserved* are names of API keys.

    Raises:
        ConfigError: The file is there and cannot be used; it is left as it is.
    """
    if not files.exists(USERS_FILE):
        return {}
    try:
        file = files.open(USERS_FILE, write=False, create=False)
        data = read_all(file, file.size(), 0)
        file.close()
    except OSError as error:
        raise ConfigError(USERS_FILE, f"cannot be read: {error.strerror}") from None
    try:
        content = msgspec.json.decode(data, type=_Content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(USERS_FILE, f"does not hold users: {error}") from None
    if content.version != VERSION:
        problem = f"has version {content.version}; this program knows {VERSION}"
        raise ConfigError(USERS_FILE, problem)
    if content.checksum and content.checksum != _checksum(content.users):
        problem = "is damaged: it does not match its checksum; restore it from a backup"
        raise ConfigError(
            USERS_FILE, f"{problem}, or, after a change by hand, delete that line"
        )
    table: dict[str, User] = {}
    for user in content.users:
        problem = "is there twice" if user.name in table else _problem_of(user)
        if problem:
            raise ConfigError(USERS_FILE, f"user {user.name!r} {problem}")
        if user.name in reserved:
            problem = f"the name {user.name!r} is a user's, in {USERS_FILE}"
            raise ConfigError("auth.keys", problem)
        table[user.name] = user
    return table


def _checksum(users: list[User]) -> str:
    return "sha256:" + hashlib.sha256(msgspec.json.encode(users)).hexdigest()


def _problem_of(user: User) -> str:
    if not is_user_name(user.name):
        return "has a name that is not allowed"
    if not _HASH.fullmatch(user.hash):
        return "has a hash that is not argon2id"
    for pattern, operations in user.grants.items():
        if not is_pattern(pattern):
            return "has a grant whose pattern is empty or too long"
        if not operations or not set(operations) <= set(GRANTABLE):
            return "has a grant with unknown operations, or none"
    return ""
