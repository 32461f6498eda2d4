"""Redelivery: when a message is delivered again, and what counts as an attempt."""

from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import DELETE_QUEUE, Peer, connected, until_subscribers

pytestmark = pytest.mark.asyncio


async def publish(peer: Peer, count: int) -> None:
    for number in range(count):
        await peer.publish("q", b"%d" % number, f"m{number}")


@pytest.mark.parametrize("mode", ["RoundRobin", "FanOutWithAck", "PriorityBased"])
async def test_the_backoff_doubles_with_each_delivery(
    broker: RunningBroker, dialect: str, mode: str
) -> None:
    """Redelivery comes 30 s + 2 s * 2^(n-1) after delivery n; the backoff stops at 2 min."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", deliveryMode=mode, maxRetryAttempts=10)
        await peer.subscribe("q")
        await publish(peer, 1)
        for attempt, delay_s in enumerate((2, 4, 8, 16, 32, 64, 120, 120), 1):
            assert attempt == (await peer.delivered()).attempts
            broker.clock.advance(30 + delay_s - 0.001)
            await peer.expect_silence()
            broker.clock.advance(0.001)

        assert 9 == (await peer.delivered()).attempts


async def test_the_ack_timeout_is_configurable(dialect: str) -> None:
    """By `vibe.ack_timeout_ms`."""
    async with (
        broker_at(vibe={"ack_timeout_ms": 1000}) as broker,
        connected(broker, dialect) as peer,
    ):
        await peer.subscribe("q")
        await publish(peer, 1)
        await peer.delivered()
        broker.clock.advance(2.999)
        await peer.expect_silence()
        broker.clock.advance(0.001)

        assert 2 == (await peer.delivered()).attempts


async def test_an_acknowledged_message_is_not_redelivered(
    broker: RunningBroker, dialect: str
) -> None:
    """However much time passes."""
    async with connected(broker, dialect) as peer:
        await peer.subscribe("q")
        await publish(peer, 1)
        await peer.delivered()
        await peer.settle("m0")
        broker.clock.advance(10_000)

        await peer.expect_silence()


async def test_a_redelivery_goes_before_newer_messages(
    broker: RunningBroker, dialect: str
) -> None:
    """Oldest first, whichever consumer gets it."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await publish(peer, 3)
        await peer.subscribe("q", 1)
        await peer.delivered()
        await peer.unsubscribe("q")
        await other.subscribe("q")

        assert [b"0", b"1", b"2"] == await other.payloads(3)


ENDS = {"disconnect": 1, "unsubscribe": 1, "broken": 2, "half-closed": 2}


@pytest.mark.parametrize("mode", ["RoundRobin", "FanOutWithAck", "PriorityBased"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_leaving_consumers_messages_are_redelivered_at_once(
    broker: RunningBroker, dialect: str, mode: str, end: str
) -> None:
    """A broken connection counts as an attempt; Disconnect and Unsubscribe do not."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await other.create("q", deliveryMode=mode)
        await publish(other, 1)
        await peer.subscribe("q")
        assert 1 == (await peer.delivered()).attempts
        if end == "disconnect":
            peer.send(peer.frame(2, "d"))
            await peer.expect_close()
        elif end == "unsubscribe":
            await peer.unsubscribe("q")
        elif end == "broken":
            await peer.break_off()
        else:
            peer.transport.write_eof()
            await peer.expect_close()
        await until_subscribers(broker, "q", 0)
        await other.subscribe("q")

        assert ENDS[end] == (await other.delivered()).attempts


async def test_attempts_survive_a_restart(tmp_path: Path, dialect: str) -> None:
    """Redeliveries and broken connections count after a restart too."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await publish(peer, 1)
        await peer.subscribe("q")
        await peer.delivered()
        clock.advance(32)
        assert 2 == (await peer.delivered()).attempts
        await peer.break_off()
        await until_subscribers(broker, "q", 0)
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.subscribe("q")

        assert 3 == (await peer.delivered()).attempts


async def test_the_last_delivery_goes_to_a_consumer_that_holds_nothing_else(
    broker: RunningBroker, dialect: str
) -> None:
    """So a poison message does not harm its neighbours."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await other.create("q", maxRetryAttempts=2)
        await publish(other, 3)
        await peer.subscribe("q")
        await peer.payloads(3)
        await peer.break_off()
        await until_subscribers(broker, "q", 0)
        await other.subscribe("q")
        for number in range(3):
            got = await other.delivered()
            assert (f"m{number}", 2) == (got.id, got.attempts)
            await other.expect_silence()
            other.ack(got.id)
        await other.expect_silence()

        assert (0, 0) == await other.counts("q")


async def test_a_queue_with_one_attempt_delivers_one_message_at_a_time(
    broker: RunningBroker, dialect: str
) -> None:
    """There each delivery is the last one."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxRetryAttempts=1)
        await publish(peer, 2)
        await peer.subscribe("q")
        assert b"0" == (await peer.delivered()).payload
        await peer.expect_silence()
        peer.ack("m0")

        assert b"1" == (await peer.delivered()).payload


@pytest.mark.parametrize("mode", ["RoundRobin", "PriorityBased", "FanOutWithAck"])
async def test_queues_and_their_messages_survive_a_restart(
    tmp_path: Path, dialect: str, mode: str
) -> None:
    """With their options, waiting messages and acknowledgements."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.create("q", deliveryMode=mode, maxRetryAttempts=7)
        await publish(peer, 4)
        declared = await peer.info("q")
        await peer.subscribe("q", 2)
        await peer.payloads(2)
        peer.ack("m0")
        await peer.payloads(1)
        await peer.expect_silence()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        assert {**declared, "messageCount": 3} == await peer.info("q")
        await peer.subscribe("q")

        assert [b"1", b"2", b"3"] == await peer.payloads(3)
        await peer.expect_silence()
        assert DELETE_QUEUE == (await peer.ask(DELETE_QUEUE, "q")).kind
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        assert [] == await peer.names()
