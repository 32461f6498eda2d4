"""API keys: making them, hashing them, and finding out whose one is.

Only hashes are kept. A key has 256 random bits, so a plain SHA-256 of it cannot be
guessed backwards and needs neither salt nor stretching; passwords are another matter and
do not come here.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from braidmq.broker.authorize import Principal
from braidmq.server.config.config import DEV_PRINCIPAL, KeyConfig

KEY_PREFIX: Final = "bk_"
"""Lets people and secret scanners recognise one of our keys."""

KEY_RANDOM_BYTES: Final = 32

DEV_KEY: Final = "dev-key"
"""What --dev accepts besides the configured keys."""

_HASH_PREFIX: Final = "sha256:"


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits in URL-safe text."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def hash_key(key: str) -> str:
    """Return what the configuration holds of *key*: `sha256:` and hex digits."""
    return _HASH_PREFIX + _digest(key).hex()


class KeyRing:
    """The principals that may come in, by the digests of their keys."""

    def __init__(self, configs: Sequence[KeyConfig], dev: bool) -> None:  # noqa: FBT001 - one of two
        self._entries = [
            (
                bytes.fromhex(config.hash.removeprefix(_HASH_PREFIX)),
                Principal(
                    config.name,
                    publish=list(config.publish),
                    subscribe=list(config.subscribe),
                    admin=config.admin,
                ),
            )
            for config in configs
        ]
        if dev:
            everything = Principal(DEV_PRINCIPAL, publish=["*"], subscribe=["*"], admin=True)
            self._entries.append((_digest(DEV_KEY), everything))

    def named(self, name: str) -> Principal | None:
        """Return the principal of that name, who has proven it in another way than by a key."""
        for _, principal in self._entries:
            if principal.name == name:
                return principal
        return None

    def principals(self) -> list[Principal]:
        """Return whose keys there are, by name."""
        return sorted((who for _, who in self._entries), key=lambda who: who.name)

    def find(self, key: str) -> Principal | None:
        """Return whose *key* is, or None; the time taken tells nothing about the keys."""
        digest = _digest(key)
        found: Principal | None = None
        for known, principal in self._entries:
            # Every entry is compared, also behind the right one.
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _digest(key: str) -> bytes:
    # A peer's text may hold lone surrogates; they hash like anything else.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
