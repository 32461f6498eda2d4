"""A poison message: it kills every consumer that gets it, and takes nobody along.

Its consumers hold innocent messages as well when they die. In the end the poison is a dead
letter with the attempts it had, and every innocent one was delivered and acknowledged.
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


async def letters(broker: RunningBroker, count: int) -> list[Message]:
    """Return the dead letters, of which there must be so many."""
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


async def die_of_it(peer: Peer) -> int:
    """Take messages until the poison comes, acknowledge none, and die; return its attempt."""
    while True:
        found = await peer.delivered()
        if found.id == POISON:
            await peer.leave()
            return found.attempts


async def work(peer: Peer, done: set[str], wanted: int) -> int | None:
    """Acknowledge everything until *wanted* are done; die of the poison, and say when."""
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
async def test_a_poison_message_dies_alone_across_broken_connections(attempts: int) -> None:
    """Its neighbours come back with every crash, and none of them is given up on."""
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
                # All but the last consumer finish nothing before they die.
                seen.append(
                    await die_of_it(consumer)
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
        (letter,) = await letters(broker, 1)
        assert POISON == letter.id
        assert ("maxRetries", "q", str(attempts)) == death(letter)


@pytest.mark.parametrize("attempts", [2, 3])
async def test_a_poison_message_dies_alone_across_restarts(
    tmp_path: Path, attempts: int
) -> None:
    """Attempts are counted on after a restart; innocent messages survive all of them."""
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
            # An attempt that the log has not heard of may be forgotten by a restart.
            clock.advance(0.02)
            await until_committed(broker)
    async with broker_at(tmp_path, clock) as broker:
        async with connected(broker) as consumer:
            await consumer.subscribe("q")
            await work(consumer, done, 99)
            assert (0, 0) == await consumer.counts("q")
        await until_connected(broker, 0)
        (letter,) = await letters(broker, 1)

    assert list(range(1, attempts + 1)) == seen
    assert set(INNOCENT) == done
    assert POISON == letter.id
    assert ("maxRetries", "q", str(attempts)) == death(letter)


async def test_restarts_alone_are_no_attempts(tmp_path: Path) -> None:
    """A broker that ends while a consumer holds a message does not count against it."""
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


async def test_a_poison_message_among_several_consumers_kills_as_many_as_attempts() -> None:
    """Three of five die; the other two finish everything else."""
    async with broker_at() as broker:
        async with connected(broker) as publisher:
            await publisher.publish_all("q", EVERYTHING)
        await until_connected(broker, 0)
        done: set[str] = set()
        deaths: list[int] = []

        async def live() -> None:
            async with connected(broker) as consumer:
                await consumer.subscribe("q", 20)
                attempt = await work(consumer, done, 100)
                assert attempt is not None
                deaths.append(attempt)

        queue = core(broker).queues.by_name["q"]
        lives = [asyncio.create_task(live()) for _ in range(5)]
        await until(lambda: len(deaths) == 3 and queue.waiting() + queue.in_flight_count() == 0)
        for each in lives:
            each.cancel()
        await asyncio.wait(lives)
        await until_connected(broker, 0)

        assert [1, 2, 3] == deaths
        assert set(INNOCENT) == done
        (letter,) = await letters(broker, 1)
        assert (POISON, ("maxRetries", "q", "3")) == (letter.id, death(letter))


async def test_the_last_delivery_waits_for_a_consumer_that_holds_nothing_else() -> None:
    """And while that one holds it, nothing is given to it beside it."""
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
