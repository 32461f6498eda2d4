"""The settings models, each on its own."""

import pytest
from pydantic import ValidationError

from braidmq.server.config.config import (
    AuthConfig,
    BlipConfig,
    DeliveryConfig,
    DeliveryOverrides,
    KeyConfig,
    ListenerConfig,
    WalConfig,
)

HASHES = ["sha256:" + 64 * digit for digit in "01"]

LOOPBACK = {
    "127.0.0.1": True,
    "127.8.9.10": True,
    "::1": True,
    "[::1]": True,
    "localhost": True,
    "0.0.0.0": False,  # noqa: S104 - never bound
    "::": False,
    "10.0.0.1": False,
    "localhost.example.com": False,
    "0": False,
}


@pytest.mark.parametrize(("host", "loopback"), LOOPBACK.items())
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    """A host that its text does not prove to be local counts as reachable from outside."""
    assert loopback == ListenerConfig(host=host).loopback


@pytest.mark.parametrize(
    "host", ["", "a:5555", "127.0.0.1:1", "[]", "a b", "x@y", "a/b", "a\n"]
)
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    """A port, a user or a path in it is refused, and so is an empty host."""
    with pytest.raises(ValidationError):
        ListenerConfig(host=host)


@pytest.mark.parametrize("policy", ["always", "none", "every_n:1", "interval_ms:1000"])
def test_the_four_fsync_policies_are_accepted(policy: str) -> None:
    """Two are plain names, two take a number."""
    assert policy == WalConfig(fsync=policy).fsync


@pytest.mark.parametrize(
    "policy",
    [
        *("", "Always", "always ", "none:1", "every_n", "every_n:", "every_n:0", "every_n:-1"),
        *("every_n:1.5", "every_n:1\n", "every_n:\u0661", "interval_ms:0", "interval_ms:x"),
    ],
)
def test_any_other_fsync_policy_is_refused(policy: str) -> None:
    """A typo must not quietly mean less durability."""
    with pytest.raises(ValidationError, match="must be always, none, every_n"):
        WalConfig(fsync=policy)


@pytest.mark.parametrize(
    "text", ["", "x", HASHES[0][:-1], HASHES[0] + "0", HASHES[0].upper(), "sha512:" + 64 * "0"]
)
def test_a_hash_is_sha256_in_hex(text: str) -> None:
    """Anything else could never match a key."""
    with pytest.raises(ValidationError, match="as 'braidmq keys new' prints it"):
        KeyConfig(name="a", hash=text)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", 129 * "a"])
def test_a_principal_has_a_short_printable_name(name: str) -> None:
    """It appears in records and log lines."""
    with pytest.raises(ValidationError):
        KeyConfig(name=name, hash=HASHES[0])


def test_permissions_may_be_comma_separated() -> None:
    """For sources that have no lists, such as the environment."""
    key = KeyConfig.model_validate({"name": "a", "hash": HASHES[0], "publish": "a.*, b,"})

    assert ["a.*", "b"] == key.publish
    assert ([], False) == (key.subscribe, key.admin)


def test_names_and_hashes_of_keys_are_unique() -> None:
    """One key is one principal, and one principal one key."""
    one, other = (KeyConfig(name=name, hash=HASHES[0]) for name in "ab")
    with pytest.raises(ValidationError, match="'b' has the hash of another key"):
        AuthConfig(keys=[one, other])
    with pytest.raises(ValidationError, match="two keys have the name 'a'"):
        AuthConfig(keys=[one, KeyConfig(name="a", hash=HASHES[1])])


def test_a_hash_is_not_in_the_text_of_a_model() -> None:
    """A configuration that ends up in a log line reveals no key's hash."""
    assert HASHES[0] not in repr(AuthConfig(keys=[KeyConfig(name="a", hash=HASHES[0])]))


def test_every_key_of_delivery_can_be_overridden_by_a_strand() -> None:
    """The two models have the same keys."""
    assert set(DeliveryConfig.model_fields) == set(DeliveryOverrides.model_fields)
    assert set(DeliveryConfig.model_fields) < set(BlipConfig.model_fields)
