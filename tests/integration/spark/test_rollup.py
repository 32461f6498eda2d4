"""The rollup in a real session matches a plain count, whatever crashes.

Kills are in `tests/chaos/test_pipeline_kill.py`.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braidmq.columnar import TypedSchema
from braidmq.spark.pipelines.rollup.rollup import Rollup, RollupOptions, rollup
from braidmq.spark.pipelines.rollup.windows import (
    DAY_MS,
    SENSOR_CHARS_MAX,
    WINDOW_SCHEMA,
    as_messages,
    as_table,
    judged,
    merged,
    reading_of,
    windows_of,
)
from braidmq.spark.pipelines.runs import queries
from braidmq.spark.pipelines.runs.runs import Batch, Plan, Run, Stream
from tests.integration.spark.rolled import (
    NOON_MS,
    RULES,
    SCHEMA,
    body,
    check,
    events_of,
    table,
)
from tests.integration.spark.serving import Serving, serving
from tests.unit.columnar.logs import write_log
from tests.unit.spark.pipelines.minutes import Event, count
from tests.unit.spark.running import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def events() -> list[Event]:
    return events_of(1, 320)


@pytest.fixture
def broker(events: list[Event], tmp_path: Path) -> Iterator[Serving]:
    """A broker whose log starts with the events."""
    path = tmp_path / "broker" / "data"
    path.parent.mkdir()
    with serving(write_log(path, map(body, events), segment_bytes=1 << 20)) as found:
        yield found


class CrashError(PySparkException):
    """Raised by a test to crash a batch; like Spark's own errors, it is worth a retry."""


def crash_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool
) -> None:
    """Make the next call of a method crash, before or after its work."""
    method: Callable[..., object] = getattr(owner, name)

    def crashing(*args: object, **kwargs: object) -> None:
        monkeypatch.setattr(owner, name, method)
        if after:
            method(*args, **kwargs)
        raise CrashError(message=name)

    monkeypatch.setattr(owner, name, crashing)


def test_a_batch_that_crashes_at_any_step_is_repeated_identically(
    spark: SparkSession,
    broker: Serving,
    events: list[Event],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches crash once at every step, two steps each; then the last commit is lost.

    A run with `close` closes the minutes that are still open, once.
    """
    monkeypatch.setattr(queries, "RESTART_S_MIN", 0.01)
    out = tmp_path / "out"
    source = {"path": str(broker.path), "subscribe": "temp", "maxOffsetsPerTrigger": "90"}
    sink = {"path": str(broker.path), "apiKey": KEY}
    lines: list[str] = []
    plan = Plan(source, out)
    run = Run("rollup", plan, lines.append)
    reading = reading_of(TypedSchema.built_in(SCHEMA))
    writer = Rollup(run, reading, RollupOptions(SCHEMA, rules=RULES, sink=sink))
    states = writer._states  # noqa: SLF001 - the test makes it crash
    steps: list[tuple[object, str, bool]] = [
        (writer, "_set_aside", True),
        (states, "keep", False),
        (states, "keep", True),
        (writer._table, "write", True),  # noqa: SLF001 - as above
        (writer, "_publish", True),
        (states, "forget_before", True),
    ]

    def write(frame: DataFrame, batch: Batch) -> int:
        if steps and len(steps) > 4 - 2 * batch.batch_id:
            owner, name, after = steps.pop(0)
            crash_once(monkeypatch, owner, name, after=after)
        return writer.write(frame, batch)

    run.go(Stream(lambda: run.messages(schemaId=SCHEMA), write))
    assert [] == steps
    restarts = [line for line in lines if "; restart" in line]
    assert 6 <= len(restarts), restarts  # a slow machine may add one
    check(out, broker, count(events, RULES.watermark_ms))
    last = states.last()
    (run.checkpoint() / "commits" / str(last)).unlink()
    options = RollupOptions(SCHEMA, rules=RULES, close=True, sink=sink)
    for _ in range(2):
        rollup(plan, options, lines.append)
        check(out, broker, count(events, RULES.watermark_ms, close=True))
    newest = states.find(states.last() or 0)

    assert newest is not None
    assert 2 == len([p for p in states.directory.iterdir() if p.is_dir()])
    assert newest.closed + newest.open < 60 < len(table(out, SCHEMA))


NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)
TYPED = (
    "value binary, topic string, offset bigint, timestamp timestamp, celsius double, "
    "timestamp_ms bigint, sensor_id string, _error string"
)
JUDGED: list[tuple[float | None, int | None, str | None, str | None, str]] = [
    (1.0, NOON_MS, "s", None, ""),
    (1.0, NOON_MS + DAY_MS, "s", None, ""),
    (1.0, NOON_MS + DAY_MS + 1, "s", None, "ahead of its arrival"),
    (1.0, 2**63 - 1, "s", None, "between 1970 and 9999"),
    (1.0, -(2**63), "s", None, "between 1970 and 9999"),
    (1.0, 0, "s" * SENSOR_CHARS_MAX, None, ""),
    (1.0, 0, "s" * (SENSOR_CHARS_MAX + 1), None, "more than 1024 characters"),
    (None, 0, "s", None, "celsius is null"),
    (1.0, None, "s", None, "is null"),
    (1.0, 0, None, None, "is null"),
    (None, None, None, "not JSON", "not JSON"),
]


def test_an_invalid_reading_has_a_reason(spark: SparkSession) -> None:
    """No number in a payload stops the query."""
    rows = [
        (b"raw", "t", offset, NOON, *fields) for offset, (*fields, _) in enumerate(JUDGED, 1)
    ]
    reading = reading_of(TypedSchema.built_in(SCHEMA))
    rows_judged = judged(spark.createDataFrame(rows, TYPED), reading, RULES)
    reasons = [row.reason or "" for row in rows_judged.orderBy("offset").collect()]
    windows = merged(windows_of(rows_judged)).collect()

    for (*_, expected), reason in zip(JUDGED, reasons, strict=True):
        assert bool(expected) == bool(reason)
        assert expected in reason
    assert 3 == sum(window["count"] for window in windows)


def test_a_mean_stays_between_minimum_and_maximum(spark: SparkSession) -> None:
    """Even where the sum overflows, so that its JSON is always a number."""
    window = ("s", NOON_MS, 2, 1e308, 1.5e308, float("inf"), (NOON_MS, 1, 1e308))
    windows = spark.createDataFrame([window], WINDOW_SCHEMA)
    found = as_table(windows)
    (sent,) = as_messages(found).collect()

    assert 1.5e308 == found.collect()[0]["mean"] == json.loads(sent["value"])["mean"]
    assert "s" == sent["key"]
    assert {"sensor_id", "minute_ms", "count", "min", "max", "mean", "last"} == set(
        json.loads(sent["value"])
    )
