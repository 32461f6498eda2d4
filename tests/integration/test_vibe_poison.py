"""A poison message crashes every consumer that gets it, without harm to other messages.

The consumers also hold innocent messages when they crash. In the end the poison is a dead
letter with its number of attempts, and every innocent message has been acknowledged.
"""

import asyncio
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, until, until_committed
from tests.integration.vibe.peer import Message, core
from tests.integration.vibe_peer import Peer, ack, connected, until_connected

pytestmark = pytest.mark.asyncio

POISON = "poison"
INNOCENT = [f"innocent-{number}" for number in range(99)]
EVERYTHING = [*INNOCENT[:40], POISON, *INNOCENT[40:]]


async def dead_letters(broker: RunningBroker, count: int) -> list[Message]:
    """Return the dead letters, of which there must be *count*."""
    async with connected(broker) as peer:
        await peer.subscribe("dlq.q")
        found = await peer.deliveries(count)
        await peer.expect_silence()
        await peer.acknowledge(*(each.id for each in found))
    await until_connected(broker, 0)
    return found


def death(letter: Message) -> tuple[str, str, str]:
    return (
        letter.headers["deathReason"],
        letter.headers["deathQueue"],
        letter.headers["deathAttempts"],
    )


async def crash(peer: Peer) -> int:
    """Take messages until the poison, acknowledge none, and crash; return its attempt."""
    while True:
        found = await peer.delivered()
        if found.id == POISON:
            await peer.leave()
            return found.attempts


async def work(peer: Peer, done: set[str], wanted: int) -> int | None:
    """Acknowledge until *wanted* are done; on the poison, crash and return its attempt."""
    while len(done) < wanted:
        found = await peer.delivered()
        if found.id == POISON:
            await peer.leave()
            return found.attempts
        peer.send(ack(found.id))
        done.add(found.id)
    await peer.fence()
    return None


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
async def test_only_the_poison_is_dead_lettered_across_broken_connections(
    attempts: int,
) -> None:
    """Its neighbours are redelivered after every crash, and none is lost."""
    async with broker_at() as broker:
        async with connected(broker) as publisher:
            await publisher.create("q", maxRetryAttempts=attempts)
            await publisher.publish_all("q", EVERYTHING)
        await until_connected(broker, 0)
        done: set[str] = set()
        seen: list[int | None] = []
        while len(seen) < attempts:
            async with connected(broker) as consumer:
                await consumer.subscribe("q")
                # All but the last consumer acknowledge nothing before they crash.
                seen.append(
                    await crash(consumer)
                    if len(seen) + 1 < attempts
                    else await work(consumer, done, 100)
                )
            await until_connected(broker, 0)
        async with connected(broker) as consumer:
            await consumer.subscribe("q")
            await work(consumer, done, 99)
            assert (0, 0) == await consumer.counts("q")

        assert list(range(1, attempts + 1)) == seen
        assert set(INNOCENT) == done
        (letter,) = await dead_letters(broker, 1)
        assert POISON == letter.id
        assert ("maxRetries", "q", str(attempts)) == death(letter)


@pytest.mark.parametrize("attempts", [2, 3])
async def test_only_the_poison_is_dead_lettered_across_restarts(
    tmp_path: Path, attempts: int
) -> None:
    """Attempts keep counting after a restart; innocent messages survive every one."""
    clock = FakeClock()
    done: set[str] = set()
    seen: list[int | None] = []
    async with broker_at(tmp_path, clock) as broker, connected(broker) as publisher:
        await publisher.create("q", maxRetryAttempts=attempts)
        await publisher.publish_all("q", EVERYTHING)
    while len(seen) < attempts:
        async with broker_at(tmp_path, clock, limits={"drain_s": 0.0}) as broker:
            async with connected(broker) as consumer:
                await consumer.subscribe("q")
                seen.append(await work(consumer, done, 100))
            await until_connected(broker, 0)
            # A restart may forget an attempt that is not in the log yet.
            clock.advance(0.02)
            await until_committed(broker)
    async with broker_at(tmp_path, clock) as broker:
        async with connected(broker) as consumer:
            await consumer.subscribe("q")
            await work(consumer, done, 99)
            assert (0, 0) == await consumer.counts("q")
        await until_connected(broker, 0)
        (letter,) = await dead_letters(broker, 1)

    assert list(range(1, attempts + 1)) == seen
    assert set(INNOCENT) == done
    assert POISON == letter.id
    assert ("maxRetries", "q", str(attempts)) == death(letter)


async def test_a_restart_does_not_count_as_an_attempt(tmp_path: Path) -> None:
    """A message does not lose an attempt when the broker stops during its delivery."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as publisher:
        await publisher.create("q", maxRetryAttempts=2)
        await publisher.publish_all("q", EVERYTHING)
    for _ in range(4):
        async with (
            broker_at(tmp_path, clock, limits={"drain_s": 0.0}) as broker,
            connected(broker) as consumer,
        ):
            await consumer.subscribe("q")
            found = await consumer.deliveries(100)
            await broker.daemon.stop()

            assert EVERYTHING == [each.id for each in found]
            assert {1} == {each.attempts for each in found}


async def test_a_poison_message_crashes_only_as_many_consumers_as_it_has_attempts() -> None:
    """Three of five crash; the other two finish everything else."""
    async with broker_at() as broker:
        async with connected(broker) as publisher:
            await publisher.publish_all("q", EVERYTHING)
        await until_connected(broker, 0)
        done: set[str] = set()
        crashes: list[int] = []

        async def consume() -> None:
            async with connected(broker) as consumer:
                await consumer.subscribe("q", 20)
                attempt = await work(consumer, done, 100)
                assert attempt is not None
                crashes.append(attempt)

        queue = core(broker).queues.by_name["q"]
        consumers = [asyncio.create_task(consume()) for _ in range(5)]
        await until(
            lambda: len(crashes) == 3 and queue.waiting() + queue.in_flight_count() == 0
        )
        for each in consumers:
            each.cancel()
        await asyncio.wait(consumers)
        await until_connected(broker, 0)

        assert [1, 2, 3] == crashes
        assert set(INNOCENT) == done
        (letter,) = await dead_letters(broker, 1)
        assert (POISON, ("maxRetries", "q", "3")) == (letter.id, death(letter))


async def test_the_last_delivery_waits_for_a_consumer_that_holds_nothing_else() -> None:
    """While that consumer holds it, the broker delivers nothing else to it."""
    async with broker_at() as broker, connected(broker) as consumer:
        await consumer.create("q", maxRetryAttempts=2)
        async with connected(broker) as lost:
            await lost.subscribe("q")
            await consumer.publish_all("q", [POISON])
            await lost.delivered()
            await consumer.subscribe("q")
            await consumer.publish_all("q", ["first"])
            assert "first" == (await consumer.delivered()).id
        await until_connected(broker, 1)
        await consumer.expect_silence()
        await consumer.acknowledge("first")
        found = await consumer.delivered()
        assert (POISON, 2) == (found.id, found.attempts)
        await consumer.publish_all("q", ["second"])
        await consumer.expect_silence()
        await consumer.acknowledge(POISON)

        assert "second" == (await consumer.delivered()).id
