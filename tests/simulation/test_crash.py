"""Simulated crashes: at every disk operation, during recovery too, and by random seed.

BRAIDMQ_SIM_SEEDS sets the number of random worlds. A failure names its seed, which is enough
to reproduce it.
"""

import os
from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.testing.ledger import Violation
from braidmq.testing.simulation import World, survives

STEPS: Final = 450
OUTCOMES_PER_POINT: Final = 2
"""How many random outcomes of a power cut are tried at each operation."""

RECOVERY_STRIDE: Final = 97
"""After this many crash states, the recovery itself is crashed at each of its operations."""

SEEDS: Final = int(os.environ.get("BRAIDMQ_SIM_SEEDS", "96"))
BATCHES: Final = 8
WORLDS: Final = 2
"""How many worlds are crashed at every operation."""

SHARES: Final = 2
"""Into how many tests each exhaustive run is split, to use several cores."""

Found = list[tuple[str, Violation | BaseException]]


class WatchedDisk(FakeDisk):
    """Calls *observe* before each operation that changes or syncs something."""

    def __init__(self) -> None:
        super().__init__()
        self.observe: Callable[[], None] | None = None

    def operate(self, name: str, *, counted: bool = True) -> None:
        super().operate(name, counted=counted)
        if counted and self.observe is not None:
            self.observe()


def outcomes(disk: FakeDisk, seed: int) -> list[FakeDisk]:
    """Return what the disk may look like after a kill or a power cut at this point."""
    return [disk.kill(), *(disk.crash(Random(seed + n)) for n in range(OUTCOMES_PER_POINT))]


def judge(disk: FakeDisk, world: World, name: str, found: Found) -> None:
    try:
        found.extend((name, violation) for violation in survives(disk, world, seed=1))
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        found.append((name, error))


def eventful_seeds(count: int) -> list[int]:
    """Return the first seeds whose worlds have rotation, retention and dead letters."""
    found: list[int] = []
    for seed in range(500):
        world = World(seed)
        world.run(STEPS)
        broker = world.engine.broker.stats
        has_deleted = world.wal.first_id > 1  # a sealed segment, so the log has rotated too
        if has_deleted and broker.redelivered and broker.dead_lettered:
            found.append(seed)
        if len(found) == count:
            return found
    raise AssertionError("no world covers everything: has the workload changed?")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("number", range(WORLDS))
def test_a_crash_at_any_operation_loses_nothing(number: int, share: int) -> None:
    """Wherever the process dies or the power fails, everything confirmed is still there."""
    seed = eventful_seeds(WORLDS)[number]
    disk = WatchedDisk()
    found: Found = []
    states = 0
    world: World | None = None

    def observe() -> None:
        nonlocal states
        if world is None or disk.operations % SHARES != share:
            return
        for outcome, left in enumerate(outcomes(disk, disk.operations)):
            states += 1
            name = f"seed {seed}, operation {disk.operations}, outcome {outcome}"
            if states % RECOVERY_STRIDE == 0:
                crash_recovery(left.kill(), world, name, found)
            judge(left, world, name, found)

    disk.observe = observe
    world = World(seed, disk=disk)
    world.run(STEPS)
    disk.observe = None

    assert [] == found
    assert states > 300


def crash_recovery(disk: FakeDisk, world: World, name: str, found: Found) -> None:
    """Cut the power at each operation of the recovery of *disk* in turn."""
    for number in range(1, 100):
        again = disk.kill()
        again.cut_power_at(number)
        try:
            World(1, disk=again, clock=world.clock)
        except PowerCutError:
            judge(again.crash(Random(number)), world, f"{name}, recovery at {number}", found)
        except Exception as error:  # noqa: BLE001 - as above
            found.append((f"{name}, recovery at {number}", error))
        else:
            return


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_worlds_keep_their_promises(batch: int) -> None:
    """Kills, power cuts, short writes, lost connections and time jumps, chosen by seed."""
    for seed in range(batch, SEEDS, BATCHES):
        assert (seed, []) == (seed, random_world(seed))


def random_world(seed: int) -> list[Violation]:
    """Return the violations of a world after several random kills and power cuts."""
    return disturb(World(seed), Random(seed), crashes_max=6, steps_max=500)


def disturb(world: World, rng: Random, *, crashes_max: int, steps_max: int) -> list[Violation]:
    """Run a world with random kills and power cuts, drain it, and return the violations."""
    for _ in range(rng.randint(2, crashes_max)):
        ending = rng.choice(("kill", "cut", "cut inside", "cut inside"))
        world.disk.write_bytes_max = rng.choice((2**63, 1000, 37))
        if ending == "cut inside":
            world.disk.cut_power_at(world.disk.operations + rng.randint(1, 200))
        try:
            world.run(rng.randint(50, steps_max))
        except PowerCutError:
            ending = "cut"
        start(world, world.disk.kill() if ending == "kill" else world.disk.crash(rng), rng)
    return world.drain()


def start(world: World, disk: FakeDisk, rng: Random) -> None:
    """Start the broker on *disk*; now and then the power fails meanwhile."""
    while rng.random() < 0.3:
        disk.cut_power_at(rng.randint(1, 12))
        try:
            world.restart(disk)
        except PowerCutError:
            disk = disk.crash(rng)
        else:
            disk = disk.kill()
    world.restart(disk)


def test_one_seed_replays_the_world() -> None:
    """The same seed gives the same ledger and the same disk, to the byte."""
    worlds = []
    for _ in range(2):
        world = World(3)
        world.run(400)
        world.restart(world.disk.crash(Random(3)))
        world.run(400)
        worlds.append(world)

    assert worlds[0].scene.ledger.events == worlds[1].scene.ledger.events
    assert worlds[0].disk.paths() == worlds[1].disk.paths()
    for path in worlds[0].disk.paths():
        assert worlds[0].disk.content(path) == worlds[1].disk.content(path)
