"""The numbers of a report, in a real session, compared with a plain count in Python."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from braidmq.spark.pipelines.report import counts
from tests.integration.spark.conftest import spark  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

START = datetime(2026, 11, 16, 22, 30, tzinfo=UTC)
RAW = (
    "value binary, topic string, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
TOPICS = ("a", "b", "dlq.a", "<b>")
REASONS = (None, "expired", "maxRetries", "x" * 500)


def messages(seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for number in range(400):
        topic, reason = rng.choice(TOPICS), rng.choice(REASONS)
        headers = [] if reason is None else [{"key": "deathReason", "value": reason.encode()}]
        if topic == "a" and number % 2:
            headers.append({"key": "schemaId", "value": rng.choice([b"sensor.Humidity", b"?"])})
        yield {
            "value": b"x" * rng.randint(0, 50),
            "topic": topic,
            "timestamp": START + timedelta(minutes=number),
            "headers": headers or None,
        }


def test_volumes_hours_and_deaths_match_a_plain_count(spark: SparkSession) -> None:  # noqa: F811 - the fixture
    """Percentiles match numpy's, long reasons are cut, unknown schema ids are dropped."""
    rows = list(messages(seed=1))
    counted = counts.counted(spark.createDataFrame(rows, RAW)).cache()
    sizes = {t: [len(r["value"]) for r in rows if r["topic"] == t] for t in TOPICS}
    times = {t: [r["timestamp"] for r in rows if r["topic"] == t] for t in TOPICS}
    found = {row["topic"]: row for row in counts.volumes(counted).toArrow().to_pylist()}

    for topic in TOPICS:
        assert found[topic] == {
            "topic": topic,
            "messages": len(sizes[topic]),
            "bytes": sum(sizes[topic]),
            "mean_bytes": sum(sizes[topic]) / len(sizes[topic]),
            "p50_bytes": pytest.approx(np.percentile(sizes[topic], 50)),
            "p99_bytes": pytest.approx(np.percentile(sizes[topic], 99)),
            "first": min(times[topic]),
            "last": max(times[topic]),
        }
    hours = Counter(r["timestamp"].replace(minute=0) for r in rows)
    assert dict(hours) == {
        row["hour"]: row["messages"] for row in counts.hours(counted).toArrow().to_pylist()
    }
    dead = Counter(reason_of(r) for r in rows if r["topic"] == "dlq.a")
    assert dict(dead) == {
        row["reason"]: row["messages"] for row in counts.deaths(counted).toArrow().to_pylist()
    }
    assert [{"schema_id": "sensor.Humidity", "topic": "a"}] == (
        counts.claims(counted).toArrow().to_pylist()
    )


def reason_of(row: dict[str, Any]) -> str:
    headers = {header["key"]: header["value"].decode() for header in row["headers"] or ()}
    return str(headers.get("deathReason", "(none)"))[: counts.REASON_CHARS_MAX]


def test_fits_and_delays_match_a_plain_count(spark: SparkSession) -> None:  # noqa: F811 - the fixture
    """Invalid rows are counted; impossible and missing times have no delay."""
    delays_ms = [-5, 0, 99, 100, 5_000, 59_999, 3_599_999, 3_600_000, 10**9]
    event_ms = [round(START.timestamp() * 1000) - delay_ms for delay_ms in delays_ms]
    rows: list[Any] = [("a", START, moment, None) for moment in event_ms]
    rows += [("a", START, None, "not JSON"), ("b", START, -(2**63), None)]
    rows += [("b", START, 2**63 - 1, None), ("b", START, None, "no")]
    schema = "topic string, timestamp timestamp, timestamp_ms bigint, _error string"
    typed = spark.createDataFrame(rows, schema)
    found = {row["topic"]: row for row in counts.fits(typed).toArrow().to_pylist()}
    buckets = {r["bucket"]: r["rows"] for r in counts.delays(typed).toArrow().to_pylist()}
    timeless = counts.fits(typed.drop("timestamp_ms")).toArrow().to_pylist()

    assert found["a"] == {
        "topic": "a",
        "rows": 10,
        "invalid": 1,
        "p50_delay_ms": np.percentile(delays_ms, 50),
        "p99_delay_ms": pytest.approx(np.percentile(delays_ms, 99)),
        "max_delay_ms": 10**9,
    }
    assert (3, 1, None, None) == (
        found["b"]["rows"],
        found["b"]["invalid"],
        found["b"]["p50_delay_ms"],
        found["b"]["max_delay_ms"],
    )
    assert {0: 1, 1: 2, 2: 1, 3: 1, 4: 1, 6: 1, 7: 2} == buckets
    assert {None} == {row["p99_delay_ms"] for row in timeless}
