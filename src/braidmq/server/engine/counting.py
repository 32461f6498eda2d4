"""The log's part of a recount: one pass over its index for all channels, slice by slice."""

from typing import Final

from braidmq.broker.delivery.recounts import Recount
from braidmq.wal.counting import Count, Tally
from braidmq.wal.wal import Wal

SLICE_ROWS: Final = 8_192
"""Rows to look at before other reads have their turn: some milliseconds."""


class Counting:
    """How many messages the log holds for each of some channels."""

    def __init__(self, wal: Wal, wanted: list[Recount]) -> None:
        self._wal = wal
        self._wanted = wanted
        self._count: Count | None = None

    def go_on(self) -> bool:
        """Count some more rows of the log; return whether all are counted.

        Raises:
            LogError: The log cannot be read.
        """
        if self._count is None:
            # Here, on the log's thread: there may be very many of them.
            self._count = Count(
                [
                    Tally(each.topic, each.ranges, priority=each.priority)
                    for each in self._wanted
                ]
            )
        return self._wal.count(self._count, SLICE_ROWS)

    def counts(self) -> list[tuple[Recount, int]]:
        """Return each recount and what the log holds of it, when all are counted."""
        assert self._count is not None
        found = [tally.count for tally in self._count.tallies]
        return list(zip(self._wanted, found, strict=True))
