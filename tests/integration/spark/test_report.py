"""The report in a real session: its numbers match a plain count."""

import json
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from braidmq.spark.pipelines.report.report import report
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.times import Trigger
from braidmq.spark.pipelines.typed import TypedTopics
from tests.unit.columnar.logs import (
    Row,
    dead_letter,
    log_of,
    message,
    plain_rows,
    write,
    write_log,
)
from tests.unit.spark.pipelines.report.test_page import HOSTILE, Seen
from tests.unit.spark.sources import varied

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

START: Final = datetime(2026, 11, 16, 22, tzinfo=UTC)
START_US: Final = int(START.timestamp() * 1_000_000)
NAMES: Final = [name for name in HOSTILE if "\ud800" not in name]
SCHEMA: Final = "sensor.Temperature"


def reading(number: int, delay_ms: int) -> bytes:
    event_ms = START_US // 1000 + number * 1000 - delay_ms
    return json.dumps({"celsius": 1, "timestamp_ms": event_ms, "sensor_id": "s"}).encode()


def bodies() -> list[bytes]:
    """Return all kinds of messages, names that look like HTML, and typed readings."""
    found = varied(200)
    for number in range(100):
        moment_us = START_US + number * 1_000_000
        name = NAMES[number % len(NAMES)]
        found.append(message(name, b"x" * number, moment_us))
        found.append(dead_letter("dlq." + name, b"", moment_us, {"deathReason": name}))
        payload = b"no" if number % 7 == 0 else reading(number, number * 10)
        kept = {"schemaId": SCHEMA} if number % 2 else {}
        found.append(message("schema in a header", payload, moment_us, kept=kept))
        found.append(message("named", payload, moment_us))
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log"), bodies(), segment_bytes=1 << 20)


def tables(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {file.stem: pq.read_table(file).to_pylist() for file in out.glob("*.parquet")}


def hour(row: Row) -> datetime:
    moment: datetime = row["timestamp"]
    return moment.replace(minute=0, second=0, microsecond=0)


def reason(row: Row) -> str:
    values = {header["key"]: header["value"].decode() for header in row["headers"] or ()}
    return str(values.get("deathReason", "(none)"))[:120]


def test_the_numbers_match_a_plain_count(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """By topic, by hour and by dead-letter reason; the page shows names as text."""
    rows = plain_rows(log)
    plan = Plan({"path": str(log)}, tmp_path)
    report(plan, [TypedTopics(SCHEMA, ("named",))], lambda _: None)
    found = tables(tmp_path)

    assert dict(Counter(row["topic"] for row in rows)) == {
        row["topic"]: row["messages"] for row in found["topics"]
    }
    for row in found["topics"]:
        own = [other for other in rows if other["topic"] == row["topic"]]
        assert sum(len(other["value"]) for other in own) == row["bytes"]
        assert (own[0]["timestamp"], own[-1]["timestamp"]) == (row["first"], row["last"])
    assert dict(Counter(map(hour, rows))) == {r["hour"]: r["messages"] for r in found["hours"]}
    dead = Counter((r["topic"], reason(r)) for r in rows if r["topic"].startswith("dlq."))
    assert dict(dead) == {
        (row["topic"], row["reason"]): row["messages"] for row in found["dead_letters"]
    }
    typed = {row["topic"]: row for row in found["typed"]}
    assert {"named", "schema in a header"} == typed.keys()
    assert (100, 15) == (typed["named"]["rows"], typed["named"]["invalid"])
    with_schema = [number for number in range(100) if number % 2]
    assert (50, sum(number % 7 == 0 for number in with_schema)) == (
        typed["schema in a header"]["rows"],
        typed["schema in a header"]["invalid"],
    )
    assert 990 == typed["named"]["max_delay_ms"]
    seen = Seen((tmp_path / "report.html").read_text("utf-8"))
    assert f"{len(rows):,}" in seen.text
    assert 6 == seen.tags.count("svg")
    assert not {"script", "img", "b"} & set(seen.tags)


def test_a_report_of_a_time_range_replaces_the_last_report(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """It counts only the selected topics in that range; in Delta format, too."""
    behind = START + timedelta(seconds=10)
    source = {
        "path": str(log),
        "subscribe": "named",
        "startingTimestamp": str(START_US // 1000),
        "endingTimestamp": str(int(behind.timestamp() * 1000)),
    }
    for _ in range(2):
        report(Plan(source, tmp_path, format="delta"), [], lambda _: None)
    found = DeltaTable(tmp_path / "topics").to_pyarrow_table().to_pylist()

    assert [("named", 10)] == [(row["topic"], row["messages"]) for row in found]
    assert 0 == len(DeltaTable(tmp_path / "typed").to_pyarrow_table())
    assert "No topic was read with a schema." in (tmp_path / "report.html").read_text("utf-8")


def test_a_signal_ends_a_report_and_the_last_one_stays(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """Between two jobs; a partial page would be wrong."""
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if "counted" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    report(Plan({"path": str(log)}, tmp_path), [], tell)

    assert "report: stopped; the previous report is unchanged" == lines[-1]
    assert not (tmp_path / "report.html").exists()
    assert {} == tables(tmp_path)


def test_a_report_is_recomputed_when_there_are_new_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Until a signal; a log without new messages is not counted again."""
    lines: list[str] = []
    with log_of(tmp_path / "log", [message("a", b"1", START_US)]) as wal:

        def tell(line: str) -> None:
            lines.append(line)
            written = sum("is written" in line for line in lines)
            if "is written" in line and written == 1:
                Timer(1.0, write, (wal, [message("b", b"2", START_US)])).start()
            elif "is written" in line:
                os.kill(os.getpid(), signal.SIGTERM)

        plan = Plan({"path": str(tmp_path / "log")}, tmp_path / "out", trigger=Trigger(100))
        report(plan, [], tell)

    counted = [line for line in lines if "counted" in line]
    assert ["1 message of 1 topic", "2 messages of 2 topics"] == [
        line.removeprefix("report: counted ") for line in counted
    ]
    assert "report: stopped; the previous report is unchanged" == lines[-1]
    assert ["a", "b"] == [row["topic"] for row in tables(tmp_path / "out")["topics"]]


def test_an_empty_log_is_reported_as_such(spark: SparkSession, tmp_path: Path) -> None:
    """It is not an error."""
    path = write_log(tmp_path / "log", [])
    report(Plan({"path": str(path)}, tmp_path / "out"), [], lambda _: None)

    assert {"topics": [], "hours": [], "dead_letters": [], "typed": []} == tables(
        tmp_path / "out"
    )
