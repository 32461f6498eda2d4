"""Readings for the rollup, and its minutes in the table and on the topic."""

import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from braidmq.spark.pipelines.rollup.windows import LATE, Rules
from tests.integration.spark.serving import Serving
from tests.unit.columnar.logs import message
from tests.unit.spark.pipelines.minutes import MINUTE_MS, Event, Minutes

SCHEMA: Final = "sensor.Temperature"
TOPIC: Final = f"rollup.{SCHEMA}"
RULES: Final = Rules(watermark_ms=5 * MINUTE_MS)
NOON_MS: Final = 1_763_294_400_000
NUMBERS: Final = ("count", "min", "max", "last")


def events_of(seed: int, size: int, first: int = 1) -> list[Event]:
    """Return readings out of order, some too late and some invalid, with their offsets."""
    rng = random.Random(seed)
    found, now_ms = [], NOON_MS
    for offset in range(first, first + size):
        now_ms += rng.randint(0, 20_000)
        event_ms = now_ms - int(rng.expovariate(1 / 100_000))
        value = None if rng.random() < 0.05 else round(rng.uniform(-20, 50), 3)
        found.append(Event(offset, f"sensor {rng.randint(0, 3)}", event_ms, value))
    return found


def body(event: Event) -> bytes:
    reading = {"celsius": event.value, "timestamp_ms": event.event_ms}
    payload = json.dumps({**reading, "sensor_id": event.sensor}).encode()
    return message("temp", payload if event.value is not None else b"{", event.event_ms * 1000)


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """Return a table's rows as pyarrow sees them; one that was never written is empty."""
    found = [pq.ParquetFile(file).read() for file in (out / name).glob("date=*/*.parquet")]
    return [row for part in found for row in part.to_pylist()]


def check(out: Path, broker: Serving, expected: Minutes) -> None:
    """Assert that each minute is in table and topic once, and bad rows in quarantine."""
    rows = {(r["sensor_id"], ms(r["minute"])): r for r in table(out, SCHEMA)}
    sent = [json.loads(value) for value in broker.values(TOPIC)]
    apart = table(out, "quarantine")

    assert len(rows) == len(table(out, SCHEMA))
    assert expected.closed.keys() == rows.keys()
    for key, minute in expected.closed.items():
        assert {name: minute[name] for name in NUMBERS} == {n: rows[key][n] for n in NUMBERS}
        assert rows[key]["mean"] == pytest.approx(minute["mean"], rel=1e-12)
    assert sorted(rows) == sorted((m["sensor_id"], m["minute_ms"]) for m in sent)
    for published in sent:
        row = rows[published["sensor_id"], published["minute_ms"]]
        assert {n: row[n] for n in (*NUMBERS, "mean")} == {
            n: published[n] for n in (*NUMBERS, "mean")
        }
    late = [r["offset"] for r in apart if r["reason"] == LATE]
    assert sorted(expected.late) == sorted(late)
    assert sorted(expected.late + expected.invalid) == sorted(r["offset"] for r in apart)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
