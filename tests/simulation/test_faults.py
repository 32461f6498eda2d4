"""Simulated I/O errors at every operation, once and for ever; and a full disk."""

import errno
import itertools
from random import Random
from typing import Final

import pytest

from braidmq.base.errors import (
    EXIT_IO_ERROR,
    LogFullError,
    LogPoisonedError,
    LogReadError,
)
from braidmq.testing.clients import Publisher
from braidmq.testing.disk import FakeDisk
from braidmq.testing.ledger import ATTEMPT, CONNECT, SETTLE, Books, Event, Violation
from braidmq.testing.simulation import World, survives

SEED: Final = 19
STEPS: Final = 250
"""Enough to publish, acknowledge, rotate and take snapshots: about 200 operations."""

SHARES: Final = 2
SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
OPERATIONS_MAX: Final = 2000
FULL: Final = Event(CONNECT, "the disk is full from here on")


def faulty_worlds(
    error: int, *, forever: bool, share: int, operation: str = "*"
) -> list[tuple[int, World]]:
    """Run the same world with its 1st, 2nd, 3rd ... operation failing, until none fails."""
    worlds = []
    for nth in itertools.count(1 + share, SHARES):
        assert nth < OPERATIONS_MAX
        world = World(SEED)
        world.disk.fail(operation, error, nth=nth, forever=forever)
        before = world.disk.counts.copy()
        world.run(STEPS)
        worlds.append((nth, world))
        done = world.disk.counts - before
        if (
            world.failure is None
            and (done.total() if operation == "*" else done[operation]) < nth
        ):
            return worlds
    raise AssertionError


def confirmed_after(world: World) -> int:
    """Publish to a world whose log has failed; return how many of these it confirms.

    Earlier commits may still be confirmed; a restart proves that they are durable.
    """
    at = len(world.scene.ledger.events)
    publisher = world.join(None)
    assert isinstance(publisher, Publisher)
    publisher.publish(["orders", "events"])
    for _ in range(100):
        world.step()
    since = {event.digest for event in world.scene.ledger.events[at:] if event.kind == ATTEMPT}
    assert since
    return len(since & Books(world.scene.ledger.events).confirmed)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_an_io_error_anywhere_stops_the_broker_and_loses_nothing(
    forever: bool, share: int
) -> None:
    """After the first error it confirms nothing and exits with 74; a restart has everything."""
    *failed, (_, unharmed) = faulty_worlds(errno.EIO, forever=forever, share=share)
    found = [(nth, after_io_error(world, nth)) for nth, world in failed]

    assert unharmed.failure is None
    assert len(failed) > 50
    assert [] == [(nth, verdict) for nth, verdict in found if verdict]


def ended_rightly(world: World) -> bool:
    """Say whether the log's failure is final, and a failed read only where one can fail."""
    reads = {"open", "pread", "size"}
    may_be = {LogPoisonedError, LogReadError if reads & set(world.disk.failed) else None}
    return type(world.failure) in may_be


def after_io_error(world: World, seed: int) -> list[Violation]:
    """Return the violations after a restart and a power cut of a world whose log failed."""
    assert (seed, True) == (seed, ended_rightly(world))
    assert EXIT_IO_ERROR == LogPoisonedError.exit_code == LogReadError.exit_code
    assert (seed, 0) == (seed, confirmed_after(world))
    left = (world.disk.kill(), world.disk.crash(Random(seed)))
    return [verdict for disk in left for verdict in survives(disk, world, seed)]


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_running_out_of_space_at_any_operation_loses_nothing(forever: bool, share: int) -> None:
    """The broker refuses publishes, or stops after a failed sync; it loses nothing."""
    survivors = 0
    operation = "pwrite" if forever else "*"
    worlds = faulty_worlds(errno.ENOSPC, forever=forever, share=share, operation=operation)
    for nth, world in worlds:
        survivors += world.failure is None
        assert (nth, []) == (nth, after_no_space(world))

    assert survivors > 5


def after_no_space(world: World) -> list[Violation]:
    """Free space again and return the violations; a failed sync needs a restart first."""
    world.disk.heal()
    if world.failure is None:
        have_room(world)
    else:
        assert ended_rightly(world)
        assert confirmed_after(world) == 0
        world.restart(world.disk.kill())
    return world.drain()


@pytest.mark.slow
@pytest.mark.parametrize("error", SCARCE, ids=errno.errorcode.get)
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_a_lack_of_descriptors_or_memory_ends_nothing(error: int, forever: bool) -> None:
    """At any operation the broker waits and goes on; only a failed sync is final."""
    found = []
    for nth in range(1, OPERATIONS_MAX, 7 if forever else 3):
        world = World(SEED)
        world.disk.fail("*", error, nth=nth, forever=forever)
        world.run(STEPS)
        failed = world.disk.failed
        world.disk.heal()
        if {"fsync", "fdatasync", "sync_dir"} & set(failed):
            found += after_io_error(world, nth)
            continue
        assert (nth, None) == (nth, world.failure)
        have_room(world)
        assert (nth, False) == (nth, world.engine.log_is_full)
        found += world.drain()
        if not failed:
            break

    assert nth > 50
    assert [] == found


def have_room(world: World) -> None:
    """Run maintenance a few times, so that the broker notices that there is room."""
    for _ in range(3):
        world.engine.look_for_room()
        world.settle()


@pytest.mark.slow
@pytest.mark.parametrize("share", range(8))
def test_a_full_disk_refuses_publishes_and_takes_acknowledgements(share: int) -> None:
    """Publishers get NACK 500, acknowledgements continue, and publishing resumes by itself."""
    refusals = settled = 0
    for seed in range(share, 48, 8):
        world = full_disk_world(seed)
        refusals += world.scene.refusals
        if world.engine.log_is_full:
            settled += sum(event.kind == SETTLE for event in world.scene.ledger.events)
            before = world.scene.ledger.events[: world.scene.ledger.events.index(FULL)]
            settled -= sum(event.kind == SETTLE for event in before)
        assert (seed, []) == (seed, after_full_disk(world, seed))

    assert refusals > 0
    assert settled > 0


def full_disk_world(seed: int) -> World:
    """Run a world whose disk fills up on the way."""
    world = World(seed)
    world.run(150)
    room = Random(seed).choice((0, 100, 600, 3000))
    world.disk.capacity = world.disk.used_bytes + room
    world.scene.ledger.record(FULL)
    world.run(300)
    assert (seed, None) == (seed, world.failure)
    return world


def after_full_disk(world: World, seed: int) -> list[Violation]:
    """Free space, perhaps after a crash, and return the violations."""
    if seed % 3 == 0:
        world.restart(unlimited(world.disk.crash(Random(seed))))
    elif seed % 3 == 1:
        world.restart(unlimited(world.disk.kill()))
    world.disk.capacity = None
    have_room(world)
    assert not world.engine.log_is_full
    return world.drain()


def unlimited(disk: FakeDisk) -> FakeDisk:
    disk.capacity = None
    return disk


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_an_error_during_startup_is_reported_and_harms_nothing(error: int) -> None:
    """A failed recovery exits with 74; once the disk works again, everything is there."""
    assert EXIT_IO_ERROR == LogFullError.exit_code == LogPoisonedError.exit_code
    world = World(SEED)
    world.run(STEPS)
    left = [world.disk.kill(), *(world.disk.crash(Random(n)) for n in range(3))]
    for disk in left:
        for nth in range(1, 200):
            again = disk.kill()
            again.fail("*", error, nth=nth)
            if starts(again, world) and again.operations < nth:
                break
            assert (nth, []) == (nth, survives(again.kill(), world, seed=1))


def starts(disk: FakeDisk, world: World) -> bool:
    try:
        World(1, disk=disk, clock=world.clock)
    except (LogPoisonedError, LogReadError, LogFullError):
        return False
    return True
