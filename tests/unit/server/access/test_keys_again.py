"""API keys, read again while the broker runs."""

from braidmq.server.access.keys import DEV_KEY, KeyRing, Revision, hash_key
from braidmq.server.config.config import KeyConfig, QuotasConfig

FIVE = QuotasConfig.model_validate({"topics": 5})


def key(name: str, secret: str, **settings: object) -> KeyConfig:
    return KeyConfig.model_validate({"name": name, "hash": hash_key(secret), **settings})


def test_a_key_that_is_the_same_keeps_its_principal() -> None:
    """Its connections hold it; only what it may do is another."""
    ring = KeyRing([key("a", "1", publish=["x"]), key("b", "2")], dev=False)
    a, b = ring.find("1"), ring.find("2")
    assert a is not None
    assert b is not None
    changed = key("a", "1", publish=["y"], subscribe=["z"], admin=True)
    revision = ring.adopt([changed, key("b", "2")])

    assert Revision([], [a], []) == revision
    assert (["y"], ["z"], True, 1) == (a.publish, a.subscribe, a.admin, a.version)
    assert a is ring.find("1") is ring.named("a")
    assert (b, 0) == (ring.find("2"), b.version)


def test_a_removed_or_replaced_key_is_gone() -> None:
    """The name may go on with another key, and then has another principal."""
    ring = KeyRing([key("a", "1", publish=["*"]), key("b", "2")], dev=True)
    a, b, dev = ring.principals()
    revision = ring.adopt([key("a", "other", publish=["*"]), key("c", "3")])

    assert Revision(["a", "c"], [], [a, b]) == revision
    assert [None, None] == [ring.find(secret) for secret in ("1", "2")]
    assert a is not ring.find("other") is not None
    assert a.gone
    assert dev is ring.find(DEV_KEY)
    assert ["a", "c", "dev"] == [principal.name for principal in ring.principals()]


def test_quotas_count_as_a_change() -> None:
    """Those of the section as well as a key's own."""
    ring = KeyRing([key("a", "1"), key("b", "2")], dev=False)
    a, b = ring.principals()
    again = ring.adopt([key("a", "1", quotas={"topics": 3}), key("b", "2")])
    section = ring.adopt([key("a", "1", quotas={"topics": 3}), key("b", "2")], FIVE)

    assert ([a], [b]) == (again.changed, section.changed)
    assert [3, 5] == [one.quotas.limit("topics") for one in (a, b)]
    assert not again.is_empty
    assert ring.adopt([key("a", "1", quotas={"topics": 3}), key("b", "2")], FIVE).is_empty
