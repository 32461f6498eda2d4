"""`kill -9` of the real daemon under load on three strands, repeatedly, on one data directory.

BRAIDMQ_KILLS sets the number of kills, BRAIDMQ_CHAOS_SEED the seed.
"""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing import ledger as kinds
from braidmq.testing.follower_books import summarize_followers
from braidmq.testing.ledger import Ledger, Violation, summarize
from tests.chaos.mixed_rig import QUMBED_PREFIX, MixedRig

KILLS: Final = int(os.environ.get("BRAIDMQ_KILLS", "12"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
RIGS: Final = 2
LIFE_S: Final = (0.05, 0.5, 0.8)
"""A run lasts up to one of these: some end before the first publish."""

LONG_LIFE_S: Final = (1.1, 1.6)
"""Every fourth run is long enough for maintenance, snapshots and retention."""


async def kill_repeatedly(rig: MixedRig, kills: int, *, drains: int = 2) -> list[Violation]:
    """Run and kill the broker *kills* times, then drain it; return the violations."""
    for number in range(kills):
        rig.start()
        short_s = rig.rng.uniform(0.0, rig.rng.choice(LIFE_S))
        long_s = rig.rng.uniform(*LONG_LIFE_S)
        tasks = await rig.live(long_s if number % 4 == 1 else short_s)
        rig.daemon.kill()
        await rig.rest(tasks)
    return await rig.drain_and_judge(drains)


def of_qumbed(ledger: Ledger) -> Counter[str]:
    """Count the messages published over Qumbed by what happened to them."""
    published = {
        event.digest
        for event in ledger.events
        if event.kind == kinds.ATTEMPT and event.who.startswith(QUMBED_PREFIX)
    }
    came = {(event.kind, event.digest) for event in ledger.events}
    ways = (kinds.ATTEMPT, kinds.DELIVER, kinds.PUSH, kinds.HANDED, kinds.REPEATED)
    return Counter(kind for kind, found in came if kind in ways and found in published)


@pytest.mark.slow
@pytest.mark.timeout(600 + KILLS * 5)
@pytest.mark.parametrize("number", range(RIGS))
def test_a_killed_broker_keeps_its_promises_on_three_strands(
    number: int, tmp_path: Path
) -> None:
    """Everything confirmed on any strand before a kill is there after it, on all strands."""
    rig = MixedRig(tmp_path, seed=SEED * 1000 + number)
    kills = -(-KILLS // RIGS)
    try:
        violations = asyncio.run(kill_repeatedly(rig, kills))
    finally:
        rig.close()
    summary = summarize(rig.ledger)
    followers = summarize_followers(rig.ledger)
    noted = Counter(event.kind for event in rig.ledger.events)
    ways = of_qumbed(rig.ledger)
    sys.stderr.write(f"\n{kills} kills: {summary}, {followers}, {dict(noted)}, {dict(ways)}\n")

    assert [] == violations
    assert min(summary.confirmed, summary.settled, noted[kinds.PUSH], noted[kinds.TAKEN]) > 10
    assert summary.duplicates > 0
    assert min(ways[kinds.DELIVER], ways[kinds.PUSH], followers.handed) > 10
    assert ways[kinds.REPEATED] > 0
    assert list((tmp_path / "data" / "snapshot").glob("*.snap"))
