"""API keys."""

import hashlib
import hmac
import re

import pytest

from braidmq.server.access.keys import DEV_KEY, KeyRing, hash_key, new_key
from braidmq.server.config.config import KeyConfig, QuotaOverrides, QuotasConfig


def ring(*keys: str, dev: bool = False) -> KeyRing:
    configs = [
        KeyConfig(name=f"name-{key}", hash=hash_key(key), publish=["p"], subscribe=["s"])
        for key in keys
    ]
    return KeyRing(configs, dev)


def test_a_new_key_is_recognisable_and_has_256_random_bits() -> None:
    """43 characters of URL-safe base64 after the prefix, and never the same."""
    keys = {new_key() for _ in range(64)}

    assert 64 == len(keys)
    assert all(re.fullmatch(r"bk_[A-Za-z0-9_-]{43}", key) for key in keys)


def test_the_hash_is_plain_sha256() -> None:
    """Any tool that computes SHA-256 gets the hash that the broker compares."""
    assert "sha256:" + hashlib.sha256(b"abc").hexdigest() == hash_key("abc")


def test_each_key_finds_its_own_principal() -> None:
    """With its own permissions, wherever the key stands in the list."""
    keys = ring("a", "b", "c")

    assert ["name-a", "name-b", "name-c"] == [
        found.name for key in "abc" if (found := keys.find(key))
    ]
    principal = keys.find("a")
    assert principal is not None
    assert (["p"], ["s"], False) == (principal.publish, principal.subscribe, principal.admin)


@pytest.mark.parametrize(
    "key", ["", "d", "A", "a ", "name-a", hash_key("a"), "\ud800", DEV_KEY]
)
def test_anything_else_finds_no_principal(key: str) -> None:
    """Among them a hash, a name, text that UTF-8 cannot encode, and dev-key without --dev."""
    assert ring("a", "b").find(key) is None


def test_dev_key_may_do_everything_under_dev() -> None:
    """Besides the configured keys, not instead of them."""
    keys = ring("a", dev=True)
    principal = keys.find(DEV_KEY)

    assert principal is not None
    assert ("dev", ["*"], ["*"], True) == (
        principal.name,
        principal.publish,
        principal.subscribe,
        principal.admin,
    )
    assert keys.find("a") is not None


def test_every_entry_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early exit: the time taken reveals nothing about the keys."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    keys = ring("a", "b", "c")
    counts = []
    for key in ("a", "c", "x"):
        compared.clear()
        keys.find(key)
        counts.append(len(compared))

    assert [3, 3, 3] == counts


def test_the_text_of_a_key_ring_shows_no_hash() -> None:
    """Whichever form a log line would use."""
    keys = ring("abc")

    assert hash_key("abc")[7:] not in f"{keys!r}{keys}"


def test_a_name_proven_by_a_certificate_finds_the_same_principal() -> None:
    """An unknown name finds no principal."""
    keys = ring("a", "b", dev=True)

    assert keys.find("b") is keys.named("name-b")
    assert keys.find(DEV_KEY) is keys.named("dev")
    assert [None, None] == [keys.named("b"), keys.named("")]


def test_a_key_has_the_quotas_of_the_section_and_its_own_where_it_has_some() -> None:
    """The dev key and administrators have quotas too."""
    own = QuotaOverrides.model_validate({"topics": 5})
    section = QuotasConfig.model_validate({"topics": 7, "queues": 0})
    configs = [
        KeyConfig(name=key, hash=hash_key(key), admin=key == "b", quotas=quotas)
        for key, quotas in [("a", own), ("b", QuotaOverrides())]
    ]

    found = KeyRing(configs, True, section).principals()

    assert [("a", 5, 0), ("b", 7, 0), ("dev", 7, 0)] == [
        (who.name, who.quotas.limit("topics"), who.quotas.limit("queues")) for who in found
    ]
