"""Simulated crashes of worlds with queues: at every disk operation, and by random seed.

BRAIDMQ_SIM_SEEDS sets the number of random worlds. A failure names its seed, which is enough
to reproduce it.
"""

import errno
import os
from random import Random
from typing import Final

import pytest

from braidmq.testing.disk import FakeDisk
from braidmq.testing.ledger import DELETED, PURGED, REPEATED, REPLAYING, RETURN, Violation
from braidmq.testing.queue_simulation import MISCOUNTED, QueueWorld
from braidmq.testing.vibe_clients import NEWS, VibeConsumer, VibePublisher
from braidmq.wire.vibe import messages
from tests.simulation.test_crash import Found, WatchedDisk, disturb, judge
from tests.simulation.test_faults import (
    after_full_disk,
    after_io_error,
    after_no_space,
    unlimited,
)

STEPS: Final = 400
EVENTFUL_STEPS: Final = 500
SHARES: Final = 4
"""Into how many tests the exhaustive run is split, to use several cores."""

SEEDS: Final = int(os.environ.get("BRAIDMQ_SIM_SEEDS", "96"))
BATCHES: Final = 8


def eventful_seed() -> int:
    """Return the first seed whose world has everything that can happen to a queue."""
    for seed in range(500):
        world = QueueWorld(seed)
        world.run(EVENTFUL_STEPS)
        stats = world.engine.broker.stats
        noted = {event.kind for event in world.scene.ledger.events}
        modes = {queue.policy.mode for queue in world.engine.broker.queues.by_name.values()}
        if (
            {DELETED, PURGED, REPEATED, REPLAYING, RETURN} <= noted
            and len(modes) == 3
            and min(stats.redelivered, stats.dead_lettered, stats.expired, stats.dropped.purged)
            and min(stats.duplicates, len(world.wal.segments()) - 1)
        ):
            return seed
    raise AssertionError("no world covers everything: has the workload changed?")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_a_crash_at_any_operation_keeps_the_queues(share: int) -> None:
    """Wherever the process dies or the power fails, queues keep their confirmed state."""
    seed = eventful_seed()
    disk = WatchedDisk()
    found: Found = []
    states = 0
    world: QueueWorld | None = None

    def observe() -> None:
        nonlocal states
        if world is None or disk.operations % SHARES != share:
            return
        states += 1
        left = disk.kill() if states % 2 else disk.crash(Random(states))
        judge(left, world, f"seed {seed}, operation {disk.operations}", found)

    disk.observe = observe
    world = QueueWorld(seed, disk=disk)
    world.run(EVENTFUL_STEPS)
    disk.observe = None

    assert [] == found
    assert states > 40


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_worlds_with_queues_keep_their_promises(batch: int) -> None:
    """Kills, power cuts, short writes, lost connections and time jumps, chosen by seed."""
    for seed in range(batch, SEEDS, BATCHES):
        assert (seed, []) == (seed, random_queue_world(seed))


def random_queue_world(seed: int) -> list[Violation]:
    """Return the violations of a world after several random kills and power cuts."""
    return disturb(QueueWorld(seed), Random(seed), crashes_max=5, steps_max=400)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(2))
def test_a_failing_disk_stops_the_broker_and_keeps_the_queues(share: int) -> None:
    """After an I/O error nothing is confirmed, and a restart has everything."""
    failed = 0
    for seed in range(share, 16, 2):
        verdict = io_error_world(seed)
        failed += verdict is not None
        assert (seed, []) == (seed, verdict or [])

    assert failed > 3


def io_error_world(seed: int) -> list[Violation] | None:
    """Return the violations of a world whose disk failed, or None if it did not fail."""
    world = QueueWorld(seed)
    world.disk.fail("*", errno.EIO, nth=Random(seed).randint(1, 200))
    world.run(STEPS)
    return None if world.failure is None else after_io_error(world, seed)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(2))
def test_queues_survive_a_full_disk(share: int) -> None:
    """Publishers get an Error, acknowledgements continue, and publishing resumes by itself."""
    refusals = 0
    for seed in range(share, 24, 2):
        world = full_queue_world(seed)
        refusals += world.scene.refusals
        assert (seed, []) == (seed, after_full_disk(world, seed))

    assert refusals > 0


def full_queue_world(seed: int) -> QueueWorld:
    """Run a world whose disk fills up on the way."""
    world = QueueWorld(seed)
    world.run(250)
    world.disk.capacity = world.disk.used_bytes + Random(seed).choice((0, 100, 600, 3000))
    world.run(300)
    assert (seed, None) == (seed, world.failure)
    return world


@pytest.mark.slow
def test_queues_survive_one_operation_without_space() -> None:
    """One operation finds no space; nothing is lost or duplicated."""
    for seed in range(12):
        assert (seed, []) == (seed, no_space_world(seed))


def no_space_world(seed: int) -> list[Violation]:
    """Return the violations of a world in which one operation found no space."""
    world = QueueWorld(seed)
    world.disk.fail("*", errno.ENOSPC, nth=Random(seed).randint(1, 200))
    world.run(STEPS)
    return after_no_space(world)


def test_one_seed_replays_a_world_with_queues() -> None:
    """The same seed gives the same ledger, event by event."""
    ledgers = []
    for _ in range(2):
        world = QueueWorld(3)
        world.run(300)
        world.restart(unlimited(world.disk.crash(Random(3))))
        world.run(100)
        ledgers.append(world.scene.ledger.events)

    assert ledgers[0] == ledgers[1]


def test_losing_the_disk_is_reported() -> None:
    """A world restarted on an empty disk has lost its queues."""
    world = QueueWorld(3)
    world.run(300)
    empty = FakeDisk()

    assert "lost queue" in {violation.kind for violation in world.heir(empty, 1).drain()}


def test_a_dead_letter_recorded_before_an_acknowledgement_counts_once() -> None:
    """One fan-out subscriber acknowledges a message that another rejects: it counts once."""
    world = QueueWorld(3)
    taker, refuser = (world.join_as(NEWS) for _ in range(2))
    publisher = world.join_as("publisher")
    assert isinstance(taker, VibeConsumer)
    assert isinstance(refuser, VibeConsumer)
    assert isinstance(publisher, VibePublisher)
    taker.care = 1.0
    world.settle()
    publisher.publish([NEWS, NEWS])
    world.settle()
    taker.acknowledge(1)
    world.settle()  # its record is not written yet
    refused = f"{publisher.name}-1"
    refuser.request(messages.ACK, refused, NEWS.name, headers={"result": "reject"})
    world.settle()
    world.restart(world.disk.kill())

    assert [] == [found for found in world.miscounts if found.kind == MISCOUNTED]
    assert 1 == world.engine.broker.queues.by_name[NEWS.name].unsettled()
