"""Progress in plain lines, made from what Spark reports."""

from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from braidmq.spark.pipelines.runs.progress import batch_line, lag, line

SOURCE = {
    "description": "braidmq",
    "startOffset": '{"offset": 1}',
    "endOffset": '{"offset": 101}',
    "latestOffset": '{"offset": 341}',
    "numInputRows": 200,
    "inputRowsPerSecond": 1.0,
    "processedRowsPerSecond": 1.0,
}


def progress(*sources: dict[str, Any], duration_ms: int = 2500) -> StreamingQueryProgress:
    return StreamingQueryProgress.fromJson(
        {
            "id": "3f0b34a7-7a1c-4a5e-9d0c-5d1f0f1f8d11",
            "runId": "3f0b34a7-7a1c-4a5e-9d0c-5d1f0f1f8d12",
            "name": None,
            "timestamp": "2026-11-16T00:00:00.000Z",
            "batchId": 12,
            "batchDuration": duration_ms,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": list(sources),
            "sink": {"description": "x", "numOutputRows": -1},
            "numInputRows": 200,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
        }
    )


def test_a_batch_becomes_one_line() -> None:
    """Rows, rate and lag; the pipeline's own count of rows wins over Spark's."""
    found = progress(SOURCE)

    assert "archive: batch 12, 200 rows in 2.5 s, 80 rows/s, lag 240" == line("archive", found)
    assert "archive: batch 12, 100 rows in 2.5 s, 40 rows/s, lag 240" == line(
        "archive", found, 100
    )
    assert "0 rows/s" in line("a", progress(SOURCE, duration_ms=0))


@pytest.mark.parametrize(
    ("rows", "seconds", "expected"),
    [
        (0, 2.0, "0 rows in 2.0 s, 0 rows/s"),
        (1, 15.8, "1 row in 15.8 s, below 0.1 rows/s"),
        (3, 15.8, "3 rows in 15.8 s, 0.2 rows/s"),
        (99, 10.0, "99 rows in 10.0 s, 9.9 rows/s"),
        (100, 10.0, "100 rows in 10.0 s, 10 rows/s"),
        (1_234_567, 1.0, "1,234,567 rows in 1.0 s, 1,234,567 rows/s"),
    ],
)
def test_numbers_are_written_for_people(rows: int, seconds: float, expected: str) -> None:
    """A slow batch has a rate too."""
    found = batch_line("a", 7, rows=rows, seconds=seconds, lag=1_000)

    assert f"a: batch 7, {expected}, lag 1,000" == found
    assert ("a", rows, 1_000) == (found.name, found.rows, found.lag)


@pytest.mark.parametrize(
    ("latest", "expected"),
    [('{"offset": 101}', 0), ('{"offset": 99}', 0), (None, 0), ("[]", 0), ('{"a": 1}', 0)],
)
def test_an_unknown_lag_is_zero(latest: str | None, expected: int) -> None:
    """So is that of a log that ends before the batch does."""
    assert expected == lag(progress({**SOURCE, "latestOffset": latest}))


def test_the_lags_of_several_sources_are_added() -> None:
    """Each source has its own offsets."""
    assert 480 == lag(progress(SOURCE, SOURCE))
