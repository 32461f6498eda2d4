"""The hunt for planted bugs: proof that the simulation and the chaos rigs can fail.

Run with `python -m`, this module plants each bug of `mutants` in its own copy of the sources,
hunts it, and prints how many were caught; names on the command line select some. Each copy runs
this module with `--hunt`. Queue mutants are hunted in simulated worlds with queues; Qumbed
mutants by killing the real daemon, as no simulated world speaks QUIC; admission mutants by the
tests that compare all five ways to publish.
"""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from braidmq.testing.ledger import Violation
from braidmq.testing.simulation import World
from tests.chaos.mixed_rig import MixedRig
from tests.chaos.mutants import ADMISSION, MUTANTS, QUEUES, QUMBED, SIMULATED, Mutant
from tests.chaos.test_mixed_kill import kill_repeatedly
from tests.simulation.test_crash import random_world
from tests.simulation.test_faults import (
    after_full_disk,
    after_io_error,
    after_no_space,
    full_disk_world,
)
from tests.simulation.test_queue_crash import (
    full_queue_world,
    io_error_world,
    no_space_world,
    random_queue_world,
)

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = int(os.environ.get("BRAIDMQ_MUTANT_SEEDS", "150"))
STEPS: Final = 300
HUNT_TIMEOUT_S: Final = 110.0
RIGS: Final = 10
RIG_KILLS: Final = 8
RIGS_TIMEOUT_S: Final = 600.0
"""Killing a process at random moments takes more than one attempt to hit a bug."""

ROUNDS: Final = {QUMBED: RIGS, ADMISSION: 1}
"""How many rounds a hunt takes, where SEEDS does not apply."""

ADMISSION_TESTS: Final = "tests/integration/test_admission.py"


def plant(mutant: Mutant, into: Path) -> None:
    """Copy the package below *into*, without compiled modules, and patch it."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "braidmq", into / "braidmq", ignore=ignore)
    for edit in mutant.edits:
        file = into / "braidmq" / edit.path
        text = file.read_text(encoding="utf-8")
        assert 1 == text.count(edit.old), (
            f"{mutant.name}: does not match {edit.path} exactly once"
        )
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def catch(mutant: Mutant) -> str:
    """Hunt one mutant; return how it was caught, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="braidmq-mutant-") as directory:
        plant(mutant, Path(directory))
        path = os.pathsep.join([directory, str(ROOT)])
        hunted = subprocess.run(
            [sys.executable, "-m", "tests.chaos.hunt", HUNT, mutant.where],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=RIGS_TIMEOUT_S if mutant.where == QUMBED else HUNT_TIMEOUT_S,
        )
    assert hunted.returncode in {0, CAUGHT}, hunted.stderr
    return hunted.stdout.strip()


CAUGHT: Final = 3
HUNT: Final = "--hunt"


def hunt(where: str) -> str:
    """Run worlds until one breaks a promise; return which and how, or an empty string."""
    for seed in range(ROUNDS.get(where, SEEDS)):
        try:
            for kind, verdict in JUDGES[where](seed):
                if verdict:
                    return f"seed {seed}, {kind}: {verdict[0].kind}"
        except Exception as error:  # noqa: BLE001 - a crash of the broker counts as caught
            return f"seed {seed}: {type(error).__name__}: {error}"[:200]
    return ""


def verdicts(seed: int) -> Iterator[tuple[str, list[Violation]]]:
    """Put the world of one seed through every kind of failure."""
    yield "crashes", random_world(seed)
    for kind, error in (("EIO", errno.EIO), ("ENOSPC", errno.ENOSPC)):
        world = World(seed)
        before = world.disk.operations
        nth = Random(seed).randint(1, 200)
        world.disk.fail("*", error, nth=nth)
        world.run(STEPS)
        if error == errno.ENOSPC:
            yield kind, after_no_space(world)
        elif world.disk.operations - before >= nth:
            yield kind, after_io_error(world, seed)
    yield "full disk", after_full_disk(full_disk_world(seed), seed)


def queue_verdicts(seed: int) -> Iterator[tuple[str, list[Violation]]]:
    """Put the world with queues of one seed through every kind of failure."""
    yield "crashes", random_queue_world(seed)
    yield "EIO", io_error_world(seed) or []
    yield "ENOSPC", no_space_world(seed)
    yield "full disk", after_full_disk(full_queue_world(seed), seed)


def qumbed_verdicts(seed: int) -> Iterator[tuple[str, list[Violation]]]:
    """Kill the real daemon repeatedly under load on three strands."""
    with tempfile.TemporaryDirectory(prefix="braidmq-rig-") as directory:
        rig = MixedRig(Path(directory), seed=seed)
        try:
            yield "kills", asyncio.run(kill_repeatedly(rig, RIG_KILLS, drains=1))
        finally:
            rig.close()


def admission_verdicts(_: int) -> Iterator[tuple[str, list[Violation]]]:
    """Publish to full queues in every way there is."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    config = ["-c", str(ROOT / "pyproject.toml"), str(ROOT / ADMISSION_TESTS)]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *config],
        env={**os.environ, "BRAIDMQ_PURE": "1"},  # a copy has no compiled modules
        capture_output=True,
        text=True,
        check=False,
    )
    lines = tested.stdout.splitlines()
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if tested.returncode not in {0, 1} or bool(failed) != bool(tested.returncode):
        # The tests did not run, which says nothing about the mutant: the hunt itself failed.
        raise SystemExit(tested.stdout + tested.stderr)
    yield "admission", [Violation(line.partition(" - ")[0], line) for line in failed]


JUDGES: Final[dict[str, Callable[[int], Iterator[tuple[str, list[Violation]]]]]] = {
    SIMULATED: verdicts,
    QUEUES: queue_verdicts,
    QUMBED: qumbed_verdicts,
    ADMISSION: admission_verdicts,
}


def main(names: list[str]) -> int:
    """Hunt the mutants with these names, or all; return the exit code."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    caught = 0
    for mutant in chosen:
        how = catch(mutant)
        caught += bool(how)
        sys.stdout.write(f"{mutant.name}: {how or 'NOT CAUGHT'}\n")
    sys.stdout.write(f"{caught}/{len(chosen)} caught\n")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == [HUNT]:
        found = hunt(sys.argv[2])
        sys.stdout.write(found)
        sys.exit(CAUGHT if found else 0)
    sys.exit(main(sys.argv[1:]))
