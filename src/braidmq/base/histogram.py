"""A histogram with fixed bounds. No clock, no lock; one thread adds to it."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values by inclusive upper bounds; the last bucket has no bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulated(self) -> list[tuple[str, int]]:
        """Return how many values are at most each bound, as Prometheus expects them."""
        shown = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        total = 0
        rows: list[tuple[str, int]] = []
        for bound, count in zip(shown, self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows
