"""Redelivery: the retry timer, attempts, the last delivery, dead letters and expiry."""

import hashlib
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import (
    Peer,
    ack,
    broker_at,
    connected,
    frame,
    not_found,
    poll,
    publish,
    until,
    until_committed,
)

pytestmark = pytest.mark.asyncio

BACKOFFS_S = (5, 10, 20, 40)
"""The default delays after deliveries 1 to 4; after the fifth it is 60 s."""


async def test_the_timer_doubles_with_each_delivery(broker: RunningBroker) -> None:
    """Ready again min(5 s * 2^(n-1), 60 s) after delivery n, with the same tag."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        tag, _ = await peer.take(subscription)
        for seconds in BACKOFFS_S:
            broker.clock.advance(seconds - 0.001)
            assert None is await peer.poll(subscription)
            broker.clock.advance(0.001)
            assert (tag, b"x") == await peer.take(subscription)
        broker.clock.advance(59.999)
        assert 0 == broker.daemon.status.metrics().messages_dead_lettered
        broker.clock.advance(0.001)
        assert 1 == broker.daemon.status.metrics().messages_dead_lettered


async def test_the_backoff_has_a_maximum() -> None:
    """`retry_backoff_max_ms` ends the doubling."""
    settings = {"retry_backoff_ms": 1000, "retry_backoff_max_ms": 3000, "max_retries": 50}
    async with broker_at(delivery=settings) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        await peer.take(subscription)
        for seconds in (1, 2, 3, 3, 3):
            broker.clock.advance(seconds - 0.001)
            assert None is await peer.poll(subscription)
            broker.clock.advance(0.001)
            await peer.take(subscription)


async def test_redelivered_messages_come_before_newer_ones(broker: RunningBroker) -> None:
    """Redeliveries go ahead of newer messages, oldest first."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b", b"c", b"d")
        tags = [(await peer.take(subscription))[0] for _ in range(3)]
        await peer.acknowledge(subscription, tags[1])
        broker.clock.advance(5)
        seen = [(await peer.take(subscription))[1] for _ in range(3)]

        assert [b"a", b"c", b"d"] == seen


async def test_an_ack_after_the_retry_timer_counts(broker: RunningBroker) -> None:
    """A tag stays open across the retry timer: a late ACK prevents the duplicate."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        tag, _ = await peer.take(subscription)
        broker.clock.advance(7)
        peer.send(ack(tag, subscription))
        await peer.expect_silence()

        assert None is await peer.poll(subscription)
        broker.clock.advance(100)
        assert None is await peer.poll(subscription)


async def test_the_first_consumer_can_still_acknowledge_after_redelivery(
    broker: RunningBroker,
) -> None:
    """A redelivery has the same tag, so the first ACK from either consumer settles it."""
    async with connected(broker) as slow, connected(broker) as quick:
        subscription = await slow.subscribe("t")
        await slow.publish("t", b"x")
        tag, _ = await slow.take(subscription)
        broker.clock.advance(5)
        assert (tag, b"x") == await quick.take(subscription)
        await slow.acknowledge(subscription, tag)
        quick.send(ack(tag, subscription))
        await quick.expect(not_found(tag))


async def test_a_disconnected_consumers_messages_are_ready_at_once(
    broker: RunningBroker,
) -> None:
    """A consumer that is gone cannot acknowledge, so the timer does not matter."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b", b"c")
        async with connected(broker) as lost:
            tag, _ = await lost.take(subscription)
            await lost.take(subscription)
        await until(lambda: broker.daemon.status.metrics().connections["blip"] == 1)

        assert (tag, b"a") == await peer.take(subscription)
        assert b"b" == (await peer.take(subscription))[1]
        assert b"c" == (await peer.take(subscription))[1]


async def test_a_message_that_fails_every_time_becomes_a_dead_letter(
    broker: RunningBroker,
) -> None:
    """After `max_retries` deliveries it moves to `dlq.<topic>`, and its tag is closed."""
    async with connected(broker) as peer:
        letters = await peer.subscribe("dlq.orders")
        subscription = await peer.subscribe("orders")
        await peer.publish("orders", b"poison", b"good")
        tag, _ = await peer.take(subscription)
        good, _ = await peer.take(subscription)
        await peer.acknowledge(subscription, good)
        for seconds in BACKOFFS_S:
            broker.clock.advance(seconds)
            assert (tag, b"poison") == await peer.take(subscription)
        broker.clock.advance(60)
        await until_committed(broker)

        assert None is await peer.poll(subscription)
        peer.send(ack(tag, subscription), poll(6, letters))
        await peer.expect(not_found(tag))
        answer = await peer.next()
        assert publish(answer.correlation_id, "dlq.orders", b"poison") == frame(*answer)
        assert tag < answer.correlation_id
        await peer.acknowledge(letters, answer.correlation_id)
        assert None is await peer.poll(letters)


async def _bury(peer: Peer, broker: RunningBroker, topic: str) -> int:
    """Make a message on *topic* a dead letter, with max_retries 1; return its tag."""
    subscription = await peer.subscribe(topic)
    await peer.publish(topic, b"dead")
    tag, _ = await peer.take(subscription)
    broker.clock.advance(5)
    await until_committed(broker)
    assert None is await peer.poll(subscription)
    return tag


async def test_max_retries_of_1_means_one_delivery() -> None:
    """`max_retries` is the total number of deliveries, the first included."""
    async with broker_at(delivery={"max_retries": 1}) as broker, connected(broker) as peer:
        letters = await peer.subscribe("dlq.t")
        await _bury(peer, broker, "t")

        assert b"dead" == (await peer.take(letters))[1]


async def test_a_dead_letter_is_never_dead_lettered_again() -> None:
    """`dlq.*` topics have no delivery limit: dead letters wait for a consumer."""
    async with broker_at(delivery={"max_retries": 1}) as broker, connected(broker) as peer:
        letters = await peer.subscribe("dlq.t")
        again = await peer.subscribe("dlq.dlq.t")
        await _bury(peer, broker, "t")
        for _ in range(8):
            assert b"dead" == (await peer.take(letters))[1]
            broker.clock.advance(60)

        assert None is await peer.poll(again)


@pytest.mark.parametrize("spare", [0, 1])
async def test_a_long_topic_has_a_hashed_dead_letter_name(spare: int) -> None:
    """`dlq.` just fits before a topic of 65,531 bytes; a longer one is named by its SHA-256."""
    topic = "é" + "x" * (65_529 + spare)
    digest = hashlib.sha256(topic.encode()).hexdigest()
    name = f"dlq.{digest}" if spare else f"dlq.{topic}"
    async with broker_at(delivery={"max_retries": 1}) as broker, connected(broker) as peer:
        letters = await peer.subscribe(name)
        await _bury(peer, broker, topic)

        assert b"dead" == (await peer.take(letters))[1]


async def test_a_dead_letter_survives_a_restart_exactly_once(tmp_path: Path) -> None:
    """After a restart the dead letter is in its topic and the message nowhere else."""
    clock = FakeClock()
    settings = {"max_retries": 1}
    async with (
        broker_at(tmp_path, clock, delivery=settings) as broker,
        connected(broker) as peer,
    ):
        letters = await peer.subscribe("dlq.t")
        tag = await _bury(peer, broker, "t")
    later = FakeClock(clock.now_us())
    async with (
        broker_at(tmp_path, later, delivery=settings) as broker,
        connected(broker) as peer,
    ):
        assert b"dead" == (await peer.take(letters))[1]
        assert None is await peer.poll(letters)
        peer.send(ack(tag, letters + 1))
        await peer.expect(not_found(tag))
        assert None is await peer.poll(letters + 1)


async def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    """The log records them: a restart does not give a poison message new attempts."""
    clock = FakeClock()
    settings = {"max_retries": 3}
    async with (
        broker_at(tmp_path, clock, delivery=settings) as broker,
        connected(broker) as peer,
    ):
        letters = await peer.subscribe("dlq.t")
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"poison")
        await peer.take(subscription)
        clock.advance(5)
        await peer.take(subscription)
    later = FakeClock(clock.now_us())
    async with (
        broker_at(tmp_path, later, delivery=settings) as broker,
        connected(broker) as peer,
    ):
        assert b"poison" == (await peer.take(subscription))[1]
        later.advance(20)
        await until_committed(broker)
        assert None is await peer.poll(subscription)
        assert b"poison" == (await peer.take(letters))[1]


async def test_the_last_delivery_goes_to_a_consumer_that_holds_nothing_else(
    broker: RunningBroker,
) -> None:
    """If it crashes that consumer, no other message loses a delivery attempt."""
    async with connected(broker) as busy, connected(broker) as idle:
        subscription = await busy.subscribe("t")
        await busy.publish("t", b"poison")
        tag, _ = await busy.take(subscription)
        for seconds in BACKOFFS_S[:-1]:
            broker.clock.advance(seconds)
            await busy.take(subscription)
        broker.clock.advance(39)
        await busy.publish("t", b"a", b"b")
        assert b"a" == (await busy.take(subscription))[1]
        broker.clock.advance(1)  # 40 s after the fourth delivery: the next is the last

        assert None is await busy.poll(subscription)
        assert (tag, b"poison") == await idle.take(subscription)
        assert None is await idle.poll(subscription)
        await idle.acknowledge(subscription, tag)
        assert b"b" == (await idle.take(subscription))[1]


async def test_an_expired_message_is_not_delivered() -> None:
    """The broker checks the TTL at the moment of delivery, and counts the drop."""
    async with (
        broker_at(delivery={"message_ttl_ms": 500}) as broker,
        connected(broker) as peer,
    ):
        durable = await peer.subscribe("t", 1)
        volatile = await peer.subscribe("t", 0)
        await peer.publish("t", b"1")
        broker.clock.advance(0.499)
        assert b"1" == (await peer.take(volatile))[1]
        await peer.publish("t", b"2")
        broker.clock.advance(0.001)  # less than any tick: only the delivery can notice

        assert b"2" == (await peer.take(durable))[1]
        assert b"2" == (await peer.take(volatile))[1]
        assert 1 == broker.daemon.status.metrics().messages_dropped["expired"]


async def test_an_expired_message_has_no_open_tag() -> None:
    """Expired in flight: no redelivery, no dead letter, and its ACK finds no tag."""
    async with (
        broker_at(delivery={"message_ttl_ms": 2000}) as broker,
        connected(broker) as peer,
    ):
        letters = await peer.subscribe("dlq.t")
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        tag, _ = await peer.take(subscription)
        broker.clock.advance(2)
        peer.send(ack(tag, subscription))
        await peer.expect(not_found(tag))
        broker.clock.advance(60)
        assert None is await peer.poll(subscription)
        assert None is await peer.poll(letters)


async def test_messages_have_no_ttl_by_default(broker: RunningBroker) -> None:
    """With `message_ttl_ms` 0 a message waits as long as it has to."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        broker.clock.advance(80_000)

        assert b"x" == (await peer.take(subscription))[1]


@pytest.mark.parametrize("max_retries", [0, -1])
async def test_fewer_than_one_delivery_is_refused(max_retries: int) -> None:
    """`max_retries` below 1 would mean that nothing is ever delivered."""
    with pytest.raises(ValueError, match="max_retries"):
        async with broker_at(delivery={"max_retries": max_retries}):
            pass
