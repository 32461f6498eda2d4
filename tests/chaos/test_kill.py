"""`kill -9` of the real daemon under load, repeatedly, on one data directory.

BRAIDMQ_KILLS sets the number of kills, BRAIDMQ_CHAOS_SEED the seed.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing.ledger import Summary, Violation, summarize
from tests.chaos.rig import Rig

KILLS: Final = int(os.environ.get("BRAIDMQ_KILLS", "52"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
RIGS: Final = 4
LIFE_S: Final = (0.02, 0.3, 0.6)
"""A run lasts up to one of these: some end before the first publish."""

LONG_LIFE_S: Final = (1.1, 1.6)
"""Every fifth run is long enough for maintenance, snapshots and retention."""


async def kill_repeatedly(rig: Rig, kills: int) -> list[Violation]:
    for number in range(kills):
        rig.start()
        short_s = rig.rng.uniform(0.0, rig.rng.choice(LIFE_S))
        long_s = rig.rng.uniform(*LONG_LIFE_S)
        tasks = await rig.live(long_s if number % 5 == 2 else short_s)
        rig.daemon.kill()
        await rig.rest(tasks)
    return await rig.drain_and_judge()


@pytest.mark.slow
@pytest.mark.timeout(600 + KILLS * 5)
@pytest.mark.parametrize("number", range(RIGS))
def test_a_killed_broker_keeps_its_promises(number: int, tmp_path: Path) -> None:
    """Everything confirmed before a kill is there after it, and nothing else."""
    rig = Rig(tmp_path, seed=SEED * 1000 + number)
    try:
        violations = asyncio.run(kill_repeatedly(rig, -(-KILLS // RIGS)))
    finally:
        rig.close()
    summary = summarize(rig.ledger)
    sys.stderr.write(f"\n{-(-KILLS // RIGS)} kills: {summary}\n")

    assert [] == violations
    assert_load(summary)
    assert list((tmp_path / "data" / "snapshot").glob("*.snap"))
    # The log has rotated: the first segment is not the only one, or retention deleted it.
    assert [f"{1:020}.wal"] != [p.name for p in (tmp_path / "data" / "wal").glob("*.wal")]


def assert_load(summary: Summary) -> None:
    """Check that there was load: a run that hardly did anything proves nothing."""
    assert summary.confirmed > 200
    assert summary.settled > 200
    assert summary.duplicates > 0
