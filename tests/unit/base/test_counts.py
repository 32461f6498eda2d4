"""Numbers of things, in words."""

import pytest

from braidmq.base.counts import counted


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 letters"), (1, "1 letter"), (7_795, "7,795 letters")],
)
def test_one_is_not_many(count: int, said: str) -> None:
    """And thousands are readable."""
    assert said == counted(count, "letter")
