"""Progress of a query in plain lines: what each micro-batch had, how fast, how far behind."""

import json
from typing import Any, Self

from pyspark.sql.streaming.listener import StreamingQueryProgress

from braidmq.spark.offsets import KEY


class BatchLine(str):
    """A line about one batch that also says, for a bar, how much was done and is left."""

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
    """Return one micro-batch as a line; *rows* are those of the log, where they are known."""
    count = progress.numInputRows if rows is None else rows
    seconds = progress.batchDuration / 1000
    rate = round(count / seconds) if seconds else 0
    behind = lag(progress)
    text = (
        f"{name}: batch {progress.batchId}, {count} rows in {seconds:.1f} s, "
        f"{rate} rows/s, lag {behind}"
    )
    return BatchLine(text, name=name, rows=count, lag=behind)


def lag(progress: StreamingQueryProgress) -> int:
    """Return how many offsets of the durable log are behind the batch, over all sources."""
    behind = 0
    for source in progress.sources:
        latest, end = _offset(source.latestOffset), _offset(source.endOffset)
        if latest is not None and end is not None:
            behind += max(0, latest - end)
    return behind


def _offset(text: Any) -> int | None:  # noqa: ANN401 - text or nothing, as Spark likes
    try:
        found = json.loads(text)[KEY]
    except (TypeError, ValueError, KeyError):
        return None
    return found if isinstance(found, int) else None
