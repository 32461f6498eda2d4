"""Quotas: one table, and the words of a refusal."""

import pytest

from braidmq.broker.authorize import Principal
from braidmq.broker.cursors import CURSORS_MAX
from braidmq.broker.delivery.queue import QUEUES_MAX
from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX
from braidmq.broker.quotas import (
    CURSORS,
    DEFAULTS,
    FLIGHT_STREAMS,
    QUEUES,
    SINK_QUERIES,
    SUBSCRIPTIONS,
    TOPIC_NAME_BYTES,
    TOPICS,
    UNFINISHED_BYTES,
    Quotas,
    refusal,
)
from braidmq.broker.sinks import QUERIES_MAX
from braidmq.broker.topics import TOPIC_NAMES_BYTES_MAX, TOPICS_MAX

BOUNDS = {
    TOPICS: TOPICS_MAX,
    TOPIC_NAME_BYTES: TOPIC_NAMES_BYTES_MAX,
    QUEUES: QUEUES_MAX,
    SUBSCRIPTIONS: SUBSCRIPTIONS_MAX,
    CURSORS: CURSORS_MAX,
    SINK_QUERIES: QUERIES_MAX,
}
SHARED_OTHERWISE = {UNFINISHED_BYTES, FLIGHT_STREAMS}
"""The greediest is refused for the first; of the second each key has places of its own."""


@pytest.mark.parametrize("quota", sorted(DEFAULTS.keys() - SHARED_OTHERWISE))
def test_ten_principals_that_use_up_a_quota_do_not_stop_the_eleventh(quota: str) -> None:
    """The broker has room for more than ten times each default."""
    assert 10 * DEFAULTS[quota] < BOUNDS[quota]


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
