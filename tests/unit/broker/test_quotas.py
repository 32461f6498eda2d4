"""Quotas: one table, and the words of a refusal."""

from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import DEFAULTS, TOPICS, Quotas, refusal


def test_a_principal_has_the_defaults_unless_it_is_told_otherwise() -> None:
    """Tests and tools make principals without a configuration."""
    plain = Principal("ada", publish=[], subscribe=[])
    special = Principal("bob", publish=[], subscribe=[], quotas=Quotas({TOPICS: 3}))

    assert DEFAULTS == plain.quotas.limits()
    assert {**DEFAULTS, TOPICS: 3} == special.quotas.limits()
    assert 3 == special.quotas.limit(TOPICS)


def test_a_refusal_names_the_quota_its_value_the_principal_and_who_may_raise_it() -> None:
    """The same words on every way in; a name cannot break the line."""
    assert (
        "quota topics = 3 of 'a\\nb' is used up; "
        "whoever runs the broker may raise quotas.topics"
    ) == refusal(TOPICS, 3, "a\nb")
