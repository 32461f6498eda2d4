"""Progress of a query as lines: the rows of each micro-batch, their rate, and the lag."""

import json
from typing import Any, Final, Self

from pyspark.sql.streaming.listener import StreamingQueryProgress

from braidmq.base.counts import counted
from braidmq.spark.reading.offsets import KEY

_RATE_OF_DIGITS: Final = 10
"""Rates from here on are shown without decimals."""

_RATE_MIN: Final = 0.1


class BatchLine(str):
    """A line about one batch, with the numbers that a progress bar needs."""

    __slots__ = ("lag", "name", "rows")

    def __new__(cls, text: str, *, name: str, rows: int, lag: int) -> Self:
        """Return the line *text*, of the pipeline *name*."""
        made = super().__new__(cls, text)
        made.name, made.rows, made.lag = name, rows, lag
        return made

    name: str
    rows: int
    lag: int


def line(name: str, progress: StreamingQueryProgress, rows: int | None = None) -> BatchLine:
    """Return the line of a micro-batch; *rows* are those of the log, if they are known."""
    count = progress.numInputRows if rows is None else rows
    seconds = progress.batchDuration / 1000
    return batch_line(name, progress.batchId, rows=count, seconds=seconds, lag=lag(progress))


def batch_line(name: str, number: int, *, rows: int, seconds: float, lag: int) -> BatchLine:
    """Return the line of a batch."""
    text = (
        f"{name}: batch {number}, {counted(rows, 'row')} in {seconds:.1f} s, "
        f"{_rate(rows, seconds)} rows/s, lag {lag:,}"
    )
    return BatchLine(text, name=name, rows=rows, lag=lag)


def _rate(rows: int, seconds: float) -> str:
    rate = rows / seconds if seconds else 0.0
    if rate >= _RATE_OF_DIGITS or not rate:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate >= _RATE_MIN else f"below {_RATE_MIN}"


def lag(progress: StreamingQueryProgress) -> int:
    """Return how many offsets of the durable log come after the batch, over all sources."""
    found = 0
    for source in progress.sources:
        latest, end = _offset(source.latestOffset), _offset(source.endOffset)
        if latest is not None and end is not None:
            found += max(0, latest - end)
    return found


def _offset(text: Any) -> int | None:  # noqa: ANN401 - JSON text, or None
    try:
        found = json.loads(text)[KEY]
    except (TypeError, ValueError, KeyError):
        return None
    return found if isinstance(found, int) else None
