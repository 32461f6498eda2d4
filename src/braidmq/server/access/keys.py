"""API keys: how they are made and hashed, and which principal a key belongs to.

Only hashes are kept. A key has 256 random bits, so it cannot be found from its plain SHA-256,
which needs neither salt nor stretching. Passwords need both; users.py hashes them.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from braidmq.broker.authorize import Principal
from braidmq.server.config.config import DEV_PRINCIPAL, KeyConfig, QuotasConfig, quotas_for

KEY_PREFIX: Final = "bk_"
"""Lets people and secret scanners recognise our keys."""

KEY_RANDOM_BYTES: Final = 32

DEV_KEY: Final = "dev-key"
"""The key that --dev accepts besides the configured ones."""

_HASH_PREFIX: Final = "sha256:"

_Entry = tuple[bytes, Principal]


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits in URL-safe text."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def hash_key(key: str) -> str:
    """Return what the configuration holds of *key*: `sha256:` and hex digits."""
    return _HASH_PREFIX + _digest(key).hex()


class Revision(NamedTuple):
    """What became of the principals when their keys, or users, were read again."""

    added: list[str]
    changed: list[Principal]  # they are the same, with other permissions or quotas
    gone: list[Principal]  # their key or user was removed, or has another secret

    @property
    def is_empty(self) -> bool:
        """Whether nothing is different."""
        return not (self.added or self.changed or self.gone)


class KeyRing:
    """The principals that have an API key, by its digest; *quotas* are the section's."""

    def __init__(
        self,
        configs: Sequence[KeyConfig],
        dev: bool,  # noqa: FBT001 - whether there is a dev key is all it says
        quotas: QuotasConfig | None = None,
    ) -> None:
        self._is_dev = dev
        self._entries = _entries(configs, dev=dev, quotas=quotas)

    def adopt(
        self, configs: Sequence[KeyConfig], quotas: QuotasConfig | None = None
    ) -> Revision:
        """Replace the keys by those of a configuration that was read again.

        A principal whose key is the same stays the same object, so that its connections see
        its new permissions. One whose hash is another is gone, and a new one has its name: a
        key is replaced because others may know it.
        """
        before = {principal.name: (digest, principal) for digest, principal in self._entries}
        revision = Revision([], [], [])
        entries: list[_Entry] = []
        for digest, fresh in _entries(configs, dev=self._is_dev, quotas=quotas):
            known, principal = before.get(fresh.name, (b"", fresh))
            if principal is fresh or not hmac.compare_digest(known, digest):
                revision.added.append(fresh.name)
                entries.append((digest, fresh))
                continue
            del before[fresh.name]
            entries.append((digest, principal))
            if _facts(principal) != _facts(fresh):
                principal.publish = fresh.publish
                principal.subscribe = fresh.subscribe
                principal.admin = fresh.admin
                principal.quotas = fresh.quotas
                principal.version += 1
                revision.changed.append(principal)
        self._entries = entries  # at once: other threads look keys up
        for _, principal in before.values():
            principal.gone = True
            principal.version += 1
            revision.gone.append(principal)
        return revision

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


def _entries(
    configs: Sequence[KeyConfig], *, dev: bool, quotas: QuotasConfig | None
) -> list[_Entry]:
    common = QuotasConfig() if quotas is None else quotas
    entries = [
        (
            bytes.fromhex(config.hash.removeprefix(_HASH_PREFIX)),
            Principal(
                config.name,
                publish=list(config.publish),
                subscribe=list(config.subscribe),
                admin=config.admin,
                quotas=quotas_for(common, config),
            ),
        )
        for config in configs
    ]
    if dev:
        everything = Principal(
            DEV_PRINCIPAL,
            publish=["*"],
            subscribe=["*"],
            admin=True,
            quotas=quotas_for(common),
        )
        entries.append((_digest(DEV_KEY), everything))
    return entries


def _facts(principal: Principal) -> tuple[object, ...]:
    limits = principal.quotas.limits()
    return principal.publish, principal.subscribe, principal.admin, limits


def _digest(key: str) -> bytes:
    # A peer's text may hold lone surrogates, which plain UTF-8 cannot encode.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
