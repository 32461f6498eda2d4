"""The subscriptions of a Qumbed stream: when they begin, end and are refused."""

from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX, TOO_MANY_SUBSCRIPTIONS
from braidmq.broker.settings import US_PER_S, Settings
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    ack,
    public,
    publish,
    subscribe,
    unsubscribe,
)
from tests.unit.server.strands.qumbed.qumbed_by_hand import QumbedHand


def test_a_subscribe_waits_for_earlier_answers() -> None:
    """Otherwise its effects would be visible before those answers."""
    hand = QumbedHand()
    stream, wire = hand.stream()
    stream.receive(publish("t", b"1") + subscribe("t", public(ALICE)))
    assert 0 == hand.engine.broker.subscription_count()
    hand.settle()

    assert [ack("1", 0), ack()] == wire.frames()
    assert 1 == hand.engine.broker.subscription_count()


def test_an_unsubscribe_is_answered_when_its_record_is_durable() -> None:
    """Otherwise a restart would restore the subscription."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    stream, wire = hand.subscribed_stream()
    stream.receive(unsubscribe("t"))
    assert [] == wire.frames()
    hand.settle()

    assert [ack()] == wire.frames()


def test_a_memory_only_publish_does_not_overtake_a_subscribe() -> None:
    """It waits for the record of the subscription before it."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S), is_durable=False)
    stream, wire = hand.stream()
    stream.receive(subscribe("t", public(ALICE)) + publish("t", b"1"))
    assert [] == wire.frames()
    hand.settle()

    assert [ack(), ack("", 1)] == wire.frames()[:2]


def test_too_many_subscriptions_are_refused() -> None:
    """SERVER_ERROR: the subscriptions of all strands count together."""
    hand = QumbedHand()
    stream, wire = hand.stream()
    subscriptions = hand.engine.broker.subscriptions.by_id
    blip, _ = hand.connect()
    topic = hand.engine.broker.topics.get("t")
    assert topic is not None
    hand.engine.broker.subscribe(blip, topic, 1, 0)
    hand.engine.end_turn()
    hand.settle()
    (one,) = subscriptions.values()
    subscriptions.update(dict.fromkeys(range(2, SUBSCRIPTIONS_MAX + 1), one))
    stream.receive(subscribe("t", public(BOB)))

    assert [("SERVER_ERROR", TOO_MANY_SUBSCRIPTIONS)] == [
        (found["e"]["code"], found["e"]["message"]) for found in wire.frames()
    ]
