"""API keys: how they are made and hashed, and which principal a key belongs to.

Only hashes are kept. A key has 256 random bits, so it cannot be found from its plain SHA-256,
which needs neither salt nor stretching. Passwords need both; users.py hashes them.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from braidmq.broker.authorize import Principal
from braidmq.server.config.config import DEV_PRINCIPAL, KeyConfig

KEY_PREFIX: Final = "bk_"
"""Lets people and secret scanners recognise our keys."""

KEY_RANDOM_BYTES: Final = 32

DEV_KEY: Final = "dev-key"
"""The key that --dev accepts besides the configured ones."""

_HASH_PREFIX: Final = "sha256:"


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits in URL-safe text."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def hash_key(key: str) -> str:
    """Return what the configuration holds of *key*: `sha256:` and hex digits."""
    return _HASH_PREFIX + _digest(key).hex()


class KeyRing:
    """The principals that have an API key, by its digest."""

    def __init__(self, configs: Sequence[KeyConfig], dev: bool) -> None:  # noqa: FBT001 - the second of two arguments
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
        """Return the principal of this name, for a peer authenticated by certificate."""
        for _, principal in self._entries:
            if principal.name == name:
                return principal
        return None

    def principals(self) -> list[Principal]:
        """Return every principal that has a key, sorted by name."""
        return sorted((who for _, who in self._entries), key=lambda who: who.name)

    def find(self, key: str) -> Principal | None:
        """Return the principal of *key*, or None; the time it takes reveals nothing."""
        digest = _digest(key)
        found: Principal | None = None
        for known, principal in self._entries:
            # Compare with every entry, also after a match: the time must not depend on it.
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _digest(key: str) -> bytes:
    # A peer's text may hold lone surrogates, which plain UTF-8 cannot encode.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
