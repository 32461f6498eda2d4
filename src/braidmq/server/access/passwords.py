"""Passwords: hashed with argon2id, and verified; slow on purpose, so only on threads.

argon2 is imported with the first password: most brokers know API keys only.
"""

import base64
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from argon2 import PasswordHasher

PASSWORD_CHARS_MAX: Final = 1024

HASH_MEMORY_KIB: Final = 19 * 1024
HASH_PASSES: Final = 2
HASH_LANES: Final = 1
"""OWASP's minimum for argon2id: 19 MiB, two passes, one lane. A check takes some tens of
milliseconds of one core, and concurrent checks stay below 40 MiB together."""

SALT_BYTES: Final = 16
HASH_BYTES: Final = 32

_log = structlog.get_logger(__name__)


def is_password(password: str) -> bool:
    """Return whether the password has an allowed length; its strength is not judged."""
    return 1 <= len(password) <= PASSWORD_CHARS_MAX


class Passwords:
    """Hashes and verifies passwords, on any thread."""

    def __init__(self, hasher: "PasswordHasher | None" = None) -> None:
        self._given = hasher
        if hasher is None:
            self.decoy = _decoy(HASH_MEMORY_KIB, HASH_PASSES, HASH_LANES)
        else:
            self.decoy = _decoy(hasher.memory_cost, hasher.time_cost, hasher.parallelism)

    @cached_property
    def _hasher(self) -> "PasswordHasher":
        from argon2 import PasswordHasher  # noqa: PLC0415 - with the first password

        return self._given or PasswordHasher(
            time_cost=HASH_PASSES,
            memory_cost=HASH_MEMORY_KIB,
            parallelism=HASH_LANES,
            hash_len=HASH_BYTES,
            salt_len=SALT_BYTES,
        )

    def verify(self, encoded: str, password: str) -> bool:
        """Return whether *encoded* is the hash of a password."""
        from argon2.exceptions import Argon2Error, VerifyMismatchError  # noqa: PLC0415 - as above

        try:
            return self._hasher.verify(encoded, _bytes(password))
        except VerifyMismatchError:
            return False
        except Argon2Error as error:
            _log.warning("a password could not be checked", reason=str(error))
            return False

    def hash(self, password: str) -> str | None:
        """Return the hash of a password, or None if there is no memory to hash in."""
        from argon2.exceptions import Argon2Error  # noqa: PLC0415 - with the first password

        try:
            return self._hasher.hash(_bytes(password))
        except Argon2Error as error:
            _log.warning("a password could not be hashed", reason=str(error))
            return None


def _bytes(password: str) -> bytes:
    # A peer's text may hold lone surrogates, which plain UTF-8 cannot encode.
    return password.encode("utf-8", "surrogatepass")


def _decoy(memory_kib: int, passes: int, lanes: int) -> str:
    """Return a hash that no password has, and that takes as long to check as any other.

    The passwords of unknown users are checked against it, so that the time of an answer does
    not tell which users exist. Its digest is random instead of computed: hashing would delay
    the start of every broker.
    """
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (SALT_BYTES, HASH_BYTES)
    )
    return f"$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${digest}"
