"""Delivery modes: which consumers get a message, and in which order."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import PUBLISH, Peer, connected, stats, until_subscribers

pytestmark = pytest.mark.asyncio

PRIORITIES = ["low", "normal", "high", "critical"]


@pytest_asyncio.fixture
async def one(broker: RunningBroker, dialect: str) -> AsyncIterator[Peer]:
    async with connected(broker, dialect) as peer:
        yield peer


@pytest_asyncio.fixture
async def two(broker: RunningBroker, dialect: str) -> AsyncIterator[Peer]:
    async with connected(broker, dialect) as peer:
        yield peer


@pytest_asyncio.fixture
async def source(broker: RunningBroker, dialect: str) -> AsyncIterator[Peer]:
    async with connected(broker, dialect) as peer:
        yield peer


async def publish(peer: Peer, *payloads: bytes, queue: str = "q") -> None:
    """Publish messages with the id "m" + payload."""
    for payload in payloads:
        await peer.publish(queue, payload, f"m{payload.decode()}")


async def test_round_robin_delivers_each_message_to_one_consumer_in_turn(
    one: Peer, two: Peer, source: Peer
) -> None:
    """Consumers that hold the same number of messages take turns."""
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, b"0", b"1", b"2", b"3")

    assert [b"0", b"2"] == await one.payloads(2)
    assert [b"1", b"3"] == await two.payloads(2)
    await one.expect_silence()
    await two.expect_silence()


async def test_round_robin_takes_turns_when_everything_is_acknowledged(
    one: Peer, two: Peer, source: Peer
) -> None:
    """Even though no consumer holds anything when the next message arrives."""
    await one.subscribe("q")
    await two.subscribe("q")
    for number, peer in enumerate([one, two] * 3):
        await publish(source, b"%d" % number)
        assert [b"%d" % number] == await peer.payloads(1)
        await peer.settle(f"m{number}")


async def test_round_robin_prefers_the_consumer_that_holds_the_fewest(
    one: Peer, two: Peer, source: Peer
) -> None:
    """That is, the one with the fewest unacknowledged deliveries."""
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, *(b"%d" % number for number in range(6)))
    assert [b"0", b"2", b"4"] == await one.payloads(3)
    assert [b"1", b"3", b"5"] == await two.payloads(3)
    for message_id in ("m0", "m2", "m4"):
        await one.settle(message_id)
    await publish(source, b"6", b"7", b"8")

    assert [b"6", b"7", b"8"] == await one.payloads(3)
    await two.expect_silence()


async def test_round_robin_skips_a_consumer_without_free_prefetch(
    one: Peer, two: Peer, source: Peer
) -> None:
    """If no consumer has any, the message waits."""
    await one.subscribe("q", 1)
    await two.subscribe("q", 3)
    await publish(source, *(b"%d" % number for number in range(5)))

    assert [b"0"] == await one.payloads(1)
    assert [b"1", b"2", b"3"] == await two.payloads(3)
    assert (1, 4) == await source.counts("q")


async def test_fan_out_with_ack_delivers_to_all(one: Peer, two: Peer, source: Peer) -> None:
    """Every current subscriber must acknowledge."""
    await source.create("q", deliveryMode="FanOutWithAck")
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, b"0", b"1")
    assert [b"0", b"1"] == await one.payloads(2)
    assert [b"0", b"1"] == await two.payloads(2)
    assert (0, 4) == await source.counts("q")
    await one.settle("m0")
    assert (0, 3) == await source.counts("q")
    await two.settle("m0")

    assert (0, 2) == await source.counts("q")


async def test_fan_out_with_ack_retries_each_subscriber_separately(
    broker: RunningBroker, one: Peer, two: Peer, source: Peer
) -> None:
    """A subscriber that has acknowledged gets no redelivery."""
    await source.create("q", deliveryMode="FanOutWithAck")
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, b"0")
    await one.delivered()
    await two.delivered()
    await one.settle("m0")
    broker.clock.advance(33)
    assert 2 == (await two.delivered()).attempts
    await one.expect_silence()
    await two.settle("m0")
    broker.clock.advance(100)

    await two.expect_silence()


async def test_fan_out_with_ack_waits_for_a_subscriber(
    one: Peer, two: Peer, source: Peer
) -> None:
    """Messages from before the first subscriber are for that one alone."""
    await source.create("q", deliveryMode="FanOutWithAck")
    await publish(source, b"0", b"1")
    assert (2, 0) == await source.counts("q")
    await one.subscribe("q")
    assert [b"0", b"1"] == await one.payloads(2)
    await two.subscribe("q")
    await two.expect_silence()
    await publish(source, b"2")

    assert [b"2"] == await one.payloads(1)
    assert [b"2"] == await two.payloads(1)


@pytest.mark.parametrize("politely", [True, False])
async def test_a_leaving_subscriber_no_longer_has_to_acknowledge(
    broker: RunningBroker, one: Peer, two: Peer, source: Peer, politely: bool
) -> None:
    """Once another has acknowledged the message, it is done."""
    await source.create("q", deliveryMode="FanOutWithAck")
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, b"0")
    await one.delivered()
    await two.delivered()
    await one.settle("m0")
    await leave(broker, two, left=1, politely=politely)
    assert (0, 0) == await source.counts("q")
    await source.subscribe("q")

    await source.expect_silence()


@pytest.mark.parametrize("politely", [True, False])
async def test_an_unacknowledged_fan_out_message_waits_for_the_next_subscriber(
    broker: RunningBroker, one: Peer, two: Peer, source: Peer, politely: bool
) -> None:
    """If every subscriber left before any of them acknowledged it."""
    await source.create("q", deliveryMode="FanOutWithAck")
    await one.subscribe("q")
    await two.subscribe("q")
    await publish(source, b"0")
    await one.delivered()
    await two.delivered()
    await leave(broker, one, left=1, politely=politely)
    await leave(broker, two, left=0, politely=politely)
    assert (1, 0) == await source.counts("q")
    await source.subscribe("q")
    got = await source.delivered()

    assert (b"0", 1 if politely else 2) == (got.payload, got.attempts)


async def leave(running: RunningBroker, peer: Peer, *, left: int, politely: bool) -> None:
    """Unsubscribe or break the connection, and wait until *left* subscribers remain."""
    if politely:
        await peer.unsubscribe("q")
    else:
        await peer.break_off()
    await until_subscribers(running, "q", left)


async def test_an_unacknowledged_fan_out_message_survives_a_restart(
    tmp_path: Path, dialect: str
) -> None:
    """One that a subscriber has acknowledged does not come back."""
    clock = FakeClock()
    async with (
        broker_at(tmp_path, clock) as broker,
        connected(broker, dialect) as one,
        connected(broker, dialect) as two,
        connected(broker, dialect) as source,
    ):
        await source.create("q", deliveryMode="FanOutWithAck")
        await one.subscribe("q")
        await two.subscribe("q")
        await publish(source, b"0", b"1")
        await one.payloads(2)
        await two.payloads(2)
        await one.settle("m0")
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        assert (1, 0) == await peer.counts("q")
        await peer.subscribe("q")

        assert [b"1"] == await peer.payloads(1)
        await peer.expect_silence()


async def test_fan_out_without_ack_delivers_once_to_current_subscribers(
    broker: RunningBroker, one: Peer, two: Peer, source: Peer
) -> None:
    """The broker does not wait for an Ack."""
    await source.create("q", deliveryMode="FanOutWithoutAck")
    await publish(source, b"0")
    await one.subscribe("q", 1)
    await two.subscribe("q", 1)
    await publish(source, b"1", b"2")
    assert [b"1", b"2"] == await one.payloads(2)
    assert [b"1", b"2"] == await two.payloads(2)
    assert (0, 0) == await source.counts("q")
    broker.clock.advance(1000)

    await one.expect_silence()
    assert 1 == stats(broker).dropped.unheard


async def test_fan_out_without_ack_drops_messages_for_a_slow_subscriber(dialect: str) -> None:
    """When its output buffer is full; the broker counts them, and others are unaffected."""
    async with (
        broker_at(limits={"output_buffer_bytes": 100_000}) as broker,
        connected(broker, dialect) as slow,
        connected(broker, dialect) as quick,
        connected(broker, dialect) as source,
    ):
        await source.create("q", deliveryMode="FanOutWithoutAck")
        await slow.subscribe("q")
        await quick.subscribe("q")
        slow.transport.pause_reading()
        large = b'"' + b"x" * 500_000 + b'"'
        count = 0
        while stats(broker).dropped.overflow == 0:
            await source.publish("q", large)
            assert large == (await quick.delivered()).payload
            count += 1
            assert count < 500
        slow.transport.resume_reading()
        await slow.payloads(count - 1)
        await slow.expect_silence()


async def test_the_highest_priority_is_delivered_first(
    broker: RunningBroker, dialect: str
) -> None:
    """Critical, high, normal, low; first in, first out within a priority."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", deliveryMode="PriorityBased")
        for turn in (b"1", b"2"):
            for rank, priority in enumerate(PRIORITIES):
                await peer.publish("q", b"%d%s" % (rank + 1, turn), priority=priority)
        await peer.subscribe("q")

        assert [b"41", b"42", b"31", b"32", b"21", b"22", b"11", b"12"] == await peer.payloads(
            8
        )


async def test_a_higher_priority_overtakes_waiting_messages(
    broker: RunningBroker, dialect: str
) -> None:
    """A later but more urgent message goes before those not yet delivered."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        await source.create("q", deliveryMode="PriorityBased")
        await peer.subscribe("q", 1)
        for number, priority in enumerate(["normal", "low", "normal", "CRITICAL"]):
            await source.publish("q", b"%d" % number, f"m{number}", priority=priority)
        order = []
        for _ in range(4):
            got = await peer.delivered()
            order.append(got.payload)
            peer.ack(got.id)

        assert [b"0", b"3", b"2", b"1"] == order


@pytest.mark.parametrize("priority", ["urgent", "", "99", "Normal", None])
async def test_an_unknown_priority_is_normal(
    broker: RunningBroker, dialect: str, priority: str | None
) -> None:
    """So is a missing one."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", deliveryMode="PriorityBased")
        await peer.publish("q", b"1", priority="low")
        await peer.ask(PUBLISH, "q", b"2", {} if priority is None else {"priority": priority})
        await peer.publish("q", b"3", priority="normal")
        await peer.publish("q", b"4", priority="High")
        await peer.subscribe("q")

        assert [b"4", b"2", b"3", b"1"] == await peer.payloads(4)


async def test_a_redelivery_goes_first_within_its_priority(
    broker: RunningBroker, dialect: str
) -> None:
    """Before messages of its priority that were never delivered."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", deliveryMode="PriorityBased")
        await publish(peer, b"0", b"1")
        await peer.subscribe("q", 1)
        await peer.delivered()
        peer.ack("m0", result="requeue")
        again = await peer.delivered()

        assert (b"0", 2) == (again.payload, again.attempts)


async def test_priorities_survive_a_restart(tmp_path: Path, dialect: str) -> None:
    """Each priority has its own cursor over the index, so the order is the same."""
    clock = FakeClock()
    async with (
        broker_at(tmp_path, clock) as broker,
        connected(broker, dialect) as peer,
        connected(broker, dialect) as source,
    ):
        await source.create("q", deliveryMode="PriorityBased")
        for number, priority in enumerate(["low", "critical", "normal", "critical", "high"]):
            await source.publish("q", b"%d" % number, f"m{number}", priority=priority)
        await peer.subscribe("q", 1)
        assert b"1" == (await peer.delivered()).payload
        peer.ack("m1")
        assert b"3" == (await peer.delivered()).payload
        await peer.unsubscribe("q")
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.subscribe("q")

        assert [b"3", b"4", b"2", b"0"] == await peer.payloads(4)
        await peer.expect_silence()
