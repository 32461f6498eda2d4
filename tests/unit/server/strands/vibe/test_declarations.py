"""Queue declarations of Vibe: from options to a policy, and from a queue to its facts."""

import json

import pytest

from braidmq.broker.authorize import Grant, Principal
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    FAN_OUT_WITH_ACK,
    Policy,
    for_dead_letters,
)
from braidmq.server.strands.vibe.queues import declared_policy, facts_of, names_payload
from braidmq.wire.vibe.queue_options import OptionError, read_options
from tests.integration.vibe_peer import create, publish, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand


def declared(name: str = "q", **headers: str) -> list[int | str | bool]:
    return declared_policy(name, read_options(headers, b""), Policy()).values()


def test_an_absent_option_keeps_its_default() -> None:
    """The defaults come from the configuration."""
    given = Policy()
    given.max_attempts = 7
    given.ttl_us = 5

    assert given.values() == declared_policy("q", read_options({}, b""), given).values()


@pytest.mark.parametrize(
    ("header", "text", "attribute", "value"),
    [
        ("deliveryMode", "fanoutwithack", "mode", FAN_OUT_WITH_ACK),
        ("maxQueueSize", "5", "max_size", 5),
        ("overflowStrategy", "BlockPublisher", "overflow", BLOCK_PUBLISHER),
        ("messageTtl", "1500", "ttl_us", 1_500_000),
        ("enableDeadLetterQueue", "false", "dead_letters", False),
        ("deadLetterQueueName", "graves", "dead_letter_name", "graves"),
        ("maxRetryAttempts", "9", "max_attempts", 9),
        ("durable", "FALSE", "durable", False),
    ],
)
def test_each_option_changes_one_thing(
    header: str, text: str, attribute: str, value: object
) -> None:
    """And nothing else."""
    policy = declared_policy("q", read_options({header: text}, b""), Policy())
    expected = Policy()
    setattr(expected, attribute, value)

    assert expected.values() == policy.values()
    assert Policy().values() != policy.values()


def test_a_queue_cannot_be_its_own_dead_letter_queue() -> None:
    """The error names the option, for the peer to read."""
    with pytest.raises(OptionError) as caught:
        declared(deadLetterQueueName="q")

    assert "deadLetterQueueName" in str(caught.value)


def test_a_dead_letter_queue_ignores_all_options() -> None:
    """Dead letters wait without limits."""
    options = read_options({"maxQueueSize": "1", "messageTtl": "1", "durable": "false"}, b"")
    policy = declared_policy("dlq.q", options, for_dead_letters())

    assert for_dead_letters().values() == policy.values()


def test_the_facts_of_a_queue_are_current() -> None:
    """Waiting and in-flight messages count apart; the dead-letter queue is always named."""
    hand = VibeHand()
    connection, _ = hand.vibe()
    connection.receive(create("1", "q", maxQueueSize="10", messageTtl="2000"))
    hand.settle()
    connection.receive(subscribe("2", "q", 1))
    hand.settle()
    connection.receive(publish("3", "q") + publish("4", "q") + publish("5", "q"))
    hand.settle()
    facts = facts_of(hand.engine.broker.queues.by_name["q"])

    assert ("q", 2, 1, 1) == (facts.name, facts.waiting, facts.in_flight, facts.subscribers)
    assert (10, 2000, "dlq.q") == (facts.max_size, facts.ttl_ms, facts.dead_letter_name)
    assert (0, 3, 3, True, True) == (
        facts.mode,
        facts.overflow,
        facts.max_attempts,
        facts.dead_letters,
        facts.durable,
    )
    assert hand.now_us == facts.created_us


def test_a_list_has_the_names_that_the_principal_may_see_in_order() -> None:
    """By code point, so that every peer sorts the same way."""
    hand = VibeHand()
    connection, _ = hand.vibe()
    for name in ("b", "a", "B", "ä", "dlq.a", "a.b"):
        connection.receive(subscribe(name, name))
        hand.settle()
    queues = hand.engine.broker.queues.by_name
    unrestricted = Principal("all", publish=["*"], subscribe=[])
    user = Principal("u", publish=[], subscribe=[], grants=[Grant("a*", {"subscribe"})])
    outsider = Principal("none", publish=[], subscribe=[])

    assert ["B", "a", "a.b", "b", "dlq.a", "ä"] == json.loads(
        names_payload(queues, unrestricted)
    )
    assert ["a", "a.b"] == json.loads(names_payload(queues, user))
    assert b"[]" == names_payload(queues, outsider)
