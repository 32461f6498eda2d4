"""A histogram: how many values were how large."""

import pytest

from braidmq.base.histogram import Histogram


def test_a_value_is_in_the_first_bucket_that_holds_it() -> None:
    """A bound is part of its bucket; above the last there is one more."""
    histogram = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 11):
        histogram.add(value)

    assert ([2, 2, 1], 23.5) == (histogram.counts, histogram.sum)
    assert [("1", 2), ("10", 4), ("+Inf", 5)] == histogram.cumulated()


def test_without_bounds_everything_is_in_one() -> None:
    """What has not begun yet is shown like this."""
    histogram = Histogram(())
    histogram.add(3)

    assert [("+Inf", 1)] == histogram.cumulated()


@pytest.mark.parametrize("bounds", [(2, 1), (1, 1)])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    """Anything else would count in the wrong place."""
    with pytest.raises(AssertionError):
        Histogram(bounds)
