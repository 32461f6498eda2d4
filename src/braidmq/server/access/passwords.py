"""Passwords: hashed with argon2id, and verified; slow on purpose, so only on threads."""

import base64
import secrets
from typing import Final

import structlog
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, VerifyMismatchError

PASSWORD_CHARS_MAX: Final = 1024

HASH_MEMORY_KIB: Final = 19 * 1024
HASH_PASSES: Final = 2
HASH_LANES: Final = 1
"""OWASP's minimum for argon2id: 19 MiB, two passes, one lane. A check takes some tens of
milliseconds of one core, and concurrent checks stay below 40 MiB together."""

_log = structlog.get_logger(__name__)


def is_password(password: str) -> bool:
    """Return whether the password has an allowed length; its strength is not judged."""
    return 1 <= len(password) <= PASSWORD_CHARS_MAX


class Passwords:
    """Hashes and verifies passwords, on any thread."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher(
            time_cost=HASH_PASSES, memory_cost=HASH_MEMORY_KIB, parallelism=HASH_LANES
        )
        self.decoy = _decoy(self._hasher)

    def verify(self, encoded: str, password: str) -> bool:
        """Return whether *encoded* is the hash of a password."""
        try:
            return self._hasher.verify(encoded, _bytes(password))
        except VerifyMismatchError:
            return False
        except Argon2Error as error:
            _log.warning("a password could not be checked", reason=str(error))
            return False

    def hash(self, password: str) -> str | None:
        """Return the hash of a password, or None if there is no memory to hash in."""
        try:
            return self._hasher.hash(_bytes(password))
        except Argon2Error as error:
            _log.warning("a password could not be hashed", reason=str(error))
            return None


def _bytes(password: str) -> bytes:
    # A peer's text may hold lone surrogates, which plain UTF-8 cannot encode.
    return password.encode("utf-8", "surrogatepass")


def _decoy(hasher: PasswordHasher) -> str:
    """Return a hash that no password has, and that takes as long to check as any other.

    The passwords of unknown users are checked against it, so that the time of an answer does
    not tell which users exist. Its digest is random instead of computed: hashing would delay
    the start of every broker.
    """
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (hasher.salt_len, hasher.hash_len)
    )
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v=19${cost}${salt}${digest}"
