"""Progress of a query in plain lines: what each micro-batch had, how fast, how far behind."""

import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from braidmq.spark.offsets import KEY


def line(name: str, progress: StreamingQueryProgress, rows: int | None = None) -> str:
    """Return one micro-batch as a line; *rows* are those of the log, where they are known."""
    count = progress.numInputRows if rows is None else rows
    seconds = progress.batchDuration / 1000
    rate = round(count / seconds) if seconds else 0
    return (
        f"{name}: batch {progress.batchId}, {count} rows in {seconds:.1f} s, "
        f"{rate} rows/s, lag {lag(progress)}"
    )


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
