"""The rigs can fail: planted durability bugs are caught. BRAIDMQ_MUTANTS=all hunts them all."""

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
    """The simulation, or the rig, finds every bug that was planted."""
    assert catch(mutant) != ""


@pytest.mark.slow
def test_the_healthy_tree_is_not_accused() -> None:
    """What catches mutants finds nothing in the sources as they are."""
    found = [(seed, kind, v) for seed in range(12) for kind, v in verdicts(seed) if v]
    found += [(seed, kind, v) for seed in range(12) for kind, v in queue_verdicts(seed) if v]

    assert [] == found


def test_there_are_enough_mutants() -> None:
    """Each way of losing a promise that the design names is planted once."""
    assert len(MUTANTS) >= 12
    assert sum(mutant.where == QUEUES for mutant in MUTANTS) >= 12
    assert sum(mutant.where == QUMBED for mutant in MUTANTS) >= 6
    assert sum(mutant.where == ADMISSION for mutant in MUTANTS) >= 3
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS})
    assert set(QUICK) <= {mutant.name for mutant in MUTANTS}


def test_every_bug_can_still_be_planted() -> None:
    """An edit of the sources that moves a safeguard must move its mutant along."""
    lost = [
        (mutant.name, edit.path)
        for mutant in MUTANTS
        for edit in mutant.edits
        if (ROOT / "src" / "braidmq" / edit.path).read_text("utf-8").count(edit.old) != 1
    ]

    assert [] == lost
