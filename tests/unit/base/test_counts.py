"""Counts with the right singular or plural."""

import pytest

from braidmq.base.counts import counted


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 letters"), (1, "1 letter"), (7_795, "7,795 letters")],
)
def test_one_is_singular_and_other_counts_are_plural(count: int, expected: str) -> None:
    """Thousands are separated by commas."""
    assert expected == counted(count, "letter")
