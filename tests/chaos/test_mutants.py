"""The rigs can fail: they catch planted bugs. BRAIDMQ_MUTANTS=all hunts every one."""

import os
from typing import Final

import pytest

from tests.chaos.hunt import RIGS_TIMEOUT_S, ROOT, catch, queue_verdicts, verdicts
from tests.chaos.mutants import ADMISSION, MUTANTS, QUEUES, QUICK, QUMBED, Mutant

HUNTED: Final = (
    list(MUTANTS)
    if os.environ.get("BRAIDMQ_MUTANTS") == "all"
    else [mutant for mutant in MUTANTS if mutant.name in QUICK]
)


@pytest.mark.slow
@pytest.mark.timeout(RIGS_TIMEOUT_S + 60)
@pytest.mark.parametrize("mutant", HUNTED, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    """The simulation or a rig finds it."""
    assert catch(mutant) != ""


@pytest.mark.slow
def test_unmodified_sources_pass() -> None:
    """The checks that catch mutants find nothing in the sources as they are."""
    found = [(seed, kind, v) for seed in range(12) for kind, v in verdicts(seed) if v]
    found += [(seed, kind, v) for seed in range(12) for kind, v in queue_verdicts(seed) if v]

    assert [] == found


def test_there_are_enough_mutants() -> None:
    """Every part has its share of them, and each has its own name."""
    assert len(MUTANTS) >= 12
    assert sum(mutant.where == QUEUES for mutant in MUTANTS) >= 12
    assert sum(mutant.where == QUMBED for mutant in MUTANTS) >= 6
    assert sum(mutant.where == ADMISSION for mutant in MUTANTS) >= 3
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS})
    assert set(QUICK) <= {mutant.name for mutant in MUTANTS}


def test_every_bug_can_still_be_planted() -> None:
    """A change of the sources that moves a safeguard must update its mutant."""
    lost = [
        (mutant.name, edit.path)
        for mutant in MUTANTS
        for edit in mutant.edits
        if (ROOT / "src" / "braidmq" / edit.path).read_text("utf-8").count(edit.old) != 1
    ]

    assert [] == lost
