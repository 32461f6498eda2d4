"""Histograms."""

import pytest

from braidmq.base.histogram import Histogram


def test_a_value_counts_in_the_first_bucket_that_fits() -> None:
    """A bound belongs to its bucket; one more bucket takes values above the last bound."""
    histogram = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 11):
        histogram.add(value)

    assert ([2, 2, 1], 23.5) == (histogram.counts, histogram.sum)
    assert [("1", 2), ("10", 4), ("+Inf", 5)] == histogram.cumulated()


def test_without_bounds_there_is_one_bucket() -> None:
    """Metrics without values yet use such a histogram."""
    histogram = Histogram(())
    histogram.add(3)

    assert [("+Inf", 1)] == histogram.cumulated()


@pytest.mark.parametrize("bounds", [(2, 1), (1, 1)])
def test_bounds_must_increase(bounds: tuple[float, ...]) -> None:
    """Otherwise values would count in the wrong bucket."""
    with pytest.raises(AssertionError):
        Histogram(bounds)
