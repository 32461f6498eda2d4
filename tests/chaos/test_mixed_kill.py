"""`kill -9` of the real daemon under load on three strands, again and again, on one directory.

BRAIDMQ_KILLS asks for more kills than the suite has time for; BRAIDMQ_CHAOS_SEED for others.
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

KILLS: Final = int(os.environ.get("BRAIDMQ_KILLS", "16"))
SEED: Final = int(os.environ.get("BRAIDMQ_CHAOS_SEED", "1"))
RIGS: Final = 2
LIFE_S: Final = (0.05, 0.5, 0.8)
"""A life lasts up to one of these: some end before the first publish."""

LONG_LIFE_S: Final = (1.1, 1.6)
"""Every fourth life meets the chores that come once a second, snapshots and retention."""


async def kill_again_and_again(
    rig: MixedRig, kills: int, *, drains: int = 2
) -> list[Violation]:
    """Live and be killed so often, then drain; return what the ledger shows."""
    for number in range(kills):
        rig.start()
        short_s = rig.rng.uniform(0.0, rig.rng.choice(LIFE_S))
        long_s = rig.rng.uniform(*LONG_LIFE_S)
        tasks = await rig.live(long_s if number % 4 == 1 else short_s)
        rig.daemon.kill()
        await rig.rest(tasks)
    for _ in range(drains):  # what was taken in the first does not come back in the second
        rig.start()
        await rig.drain()
        rig.daemon.kill()
    return rig.verdict()


def of_qumbed(ledger: Ledger) -> Counter[str]:
    """Count what was published over Qumbed by how it came to whom."""
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
    """Whatever was confirmed to any strand before a kill is there after it, for all."""
    rig = MixedRig(tmp_path, seed=SEED * 1000 + number)
    kills = -(-KILLS // RIGS)
    try:
        violations = asyncio.run(kill_again_and_again(rig, kills))
    finally:
        rig.close()
    told = summarize(rig.ledger)
    followers = summarize_followers(rig.ledger)
    noted = Counter(event.kind for event in rig.ledger.events)
    ways = of_qumbed(rig.ledger)
    sys.stderr.write(f"\n{kills} kills: {told}, {followers}, {dict(noted)}, {dict(ways)}\n")

    assert [] == violations
    assert min(told.confirmed, told.settled, noted[kinds.PUSH], noted[kinds.TAKEN]) > 10
    assert told.duplicates > 0
    assert min(ways[kinds.DELIVER], ways[kinds.PUSH], followers.handed) > 10
    assert ways[kinds.REPEATED] > 0
    assert list((tmp_path / "data" / "snapshot").glob("*.snap"))
