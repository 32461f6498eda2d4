"""The archive in a real session matches the log, as plain pyarrow reads it."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.archive import archive, with_day
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.tables import compaction
from braidmq.spark.pipelines.tables.staging import PACKED, packed, unpacked
from braidmq.spark.pipelines.times import Trigger
from braidmq.wal.wal import Wal
from tests.integration.spark.outputs import (
    archived,
    forget_newest_commit,
    in_delta,
    readings,
    rows_of,
)
from tests.unit.columnar.logs import log_of, plain_rows, retain_from, write, write_log
from tests.unit.columnar.strangers import OF_FILES
from tests.unit.spark.running import KEY, running
from tests.unit.spark.sources import varied

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("spark"),
]


def plan_of(log: Path, out: Path, limit: int = 150) -> Plan:
    source = {"path": str(log), "maxOffsetsPerTrigger": str(limit)}
    return Plan(source, out, master="local[2,4]")


def kill(part: str) -> None:
    """Kill the processes of this session whose command line contains *part*."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may have exited already
            if part in " ".join(child.cmdline()):
                child.kill()


class Archived:
    """A growing log and its archive."""

    def __init__(self, root: Path, wal: Wal) -> None:
        self.log, self.out, self.wal = root / "log", root / "out", wal
        self.lines: list[str] = []

    def run(self, *, checkpoint: Path | None = None, compact: bool = False) -> None:
        plan = plan_of(self.log, self.out)
        archive(replace(plan, checkpoint=checkpoint, compact=compact), self.lines.append)

    def files(self) -> list[Path]:
        return sorted(self.out.rglob("*.parquet"))


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    """A complete archive; every test must leave it complete."""
    root = tmp_path_factory.mktemp("archive")
    with log_of(root / "log", [*varied(100), *readings(100)]) as wal:
        found = Archived(root, wal)
        found.run()
        yield found


def test_an_archive_matches_the_log(spark: SparkSession, done: Archived) -> None:
    """All rows and columns; Spark sees the same topics as pyarrow."""
    expected = plain_rows(done.log)
    assert expected == archived(done.out)
    topics = spark.read.parquet(str(done.out)).select("topic").distinct().toArrow()

    assert {row["topic"] for row in expected} == set(topics.column("topic").to_pylist())
    assert re.fullmatch(r"archive: batch 0, 150 rows in .* rows/s, lag [1-9]\d*", done.lines[0])
    assert re.fullmatch(r"archive: batch 1, \d+ rows in .* rows/s, lag 0", done.lines[1])


def test_files_are_partitioned_by_day_and_topic(done: Archived) -> None:
    """Days are in UTC; the directories hold no other files."""
    for row in pq.read_table(done.out).to_pylist():
        assert row["timestamp"].date().isoformat() == row["date"]
        assert row["topic_dir"].startswith(f"{row['topic']}~")
    assert all(re.fullmatch(r"batch-\d{10}-\d{4}\.parquet", f.name) for f in done.files())


@pytest.mark.parametrize("reader", OF_FILES)
def test_other_readers_see_the_same_rows_as_pyarrow(done: Archived, reader: str) -> None:
    """Each row once, with all columns and partitions, by the documented file pattern."""
    assert rows_of(done.out) == OF_FILES[reader](done.out)


def test_the_files_alone_match_the_log(done: Archived) -> None:
    """Read one by one, by a reader that ignores the partition directories."""
    tables = [pq.ParquetFile(file).read() for file in done.files()]
    rows = [row for table in tables for row in table.to_pylist()]

    assert plain_rows(done.log) == sorted(rows, key=lambda row: int(row["offset"]))


def test_a_directory_with_a_columns_name_would_hide_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Which is why a topic's directory has another name."""
    place = tmp_path / "topic=escaped"
    place.mkdir()
    pq.write_table(pa.table({"topic": ["as it is"]}), place / "a.parquet")

    with pytest.raises(pa.ArrowException, match="topic"):
        pq.read_table(tmp_path)
    assert [("escaped",)] == spark.read.parquet(str(tmp_path)).collect()


def test_a_lost_commit_changes_nothing(done: Archived) -> None:
    """Spark repeats the batch, which is already there."""
    before = done.files()
    forget_newest_commit(done.out / "_checkpoint")
    done.run()

    assert before == done.files()
    assert plain_rows(done.log) == archived(done.out)


def test_another_checkpoint_is_refused(done: Archived, tmp_path: Path) -> None:
    """It would write everything twice; the error says so, and the archive is unchanged."""
    with pytest.raises(
        BraidError, match=r"archive: .*batch \d belongs to the query .*empty --out"
    ):
        done.run(checkpoint=tmp_path / "other")

    assert plain_rows(done.log) == archived(done.out)


def test_a_run_adds_new_messages_and_compacts(
    done: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards each directory has one file, and the table the same rows."""
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    write(done.wal, readings(50, 100))
    done.run(compact=True)

    assert plain_rows(done.log) == archived(done.out)
    assert len(done.files()) == len({file.parent for file in done.files()})
    assert any(file.name.startswith("merged-") for file in done.files())


def test_killed_processes_are_replaced(tmp_path: Path) -> None:
    """Those of the source and of tasks: the run continues, and no row is there twice."""
    log = write_log(tmp_path / "log", readings(120))
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if "batch 0," in line:
            kill("pyspark.worker")
        if "batch 1," in line:
            kill("python_streaming_source_runner")

    archive(plan_of(log, tmp_path / "out", 20), tell)

    assert any("; restart 1 of 5 in 1 s" in line for line in lines)
    assert plain_rows(log) == archived(tmp_path / "out")


def test_a_signal_ends_a_run_after_its_batch(tmp_path: Path) -> None:
    """What it has written is complete; the next run continues from there."""
    log = write_log(tmp_path / "log", readings(90))
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if "batch 0," in line:
            os.kill(os.getpid(), signal.SIGTERM)

    every_second = Trigger(1_000)
    archive(replace(plan_of(log, tmp_path / "out", 30), trigger=every_second), tell)
    seen = archived(tmp_path / "out")

    assert "archive: stopped; the next run resumes here" == lines[-1]
    assert plain_rows(log)[: len(seen)] == seen
    assert [] == list((tmp_path / "out").rglob("*.intent"))
    archive(plan_of(log, tmp_path / "out"), tell)
    assert plain_rows(log) == archived(tmp_path / "out")


def test_an_archive_that_fell_behind_retention_can_continue(tmp_path: Path) -> None:
    """The error names the option for it, which archives what is left."""
    plan = plan_of(tmp_path / "log", tmp_path / "out")
    with log_of(tmp_path / "log", readings(60)) as wal:
        archive(plan, print)
        before = plain_rows(tmp_path / "log")
        write(wal, readings(140, 60))
        retain_from(wal, 150)
        left = [row for row in plain_rows(tmp_path / "log") if row not in before]
        with pytest.raises(
            BraidError, match=r"are lost: .*; use --no-fail-on-data-loss to continue"
        ):
            archive(plan, print)
        assert before == archived(tmp_path / "out")
        archive(replace(plan, source={**plan.source, "failOnDataLoss": "false"}), print)

    assert 0 < len(left) < 140
    assert before + left == archived(tmp_path / "out")


def test_delta_has_each_batch_once(tmp_path: Path) -> None:
    """Even when the last commit was lost; Delta's library would add the batch twice."""
    log = write_log(tmp_path / "log", readings(60))
    plan = replace(plan_of(log, tmp_path / "out", 40), format="delta")
    run = partial(archive, plan, print)
    run()
    forget_newest_commit(tmp_path / "out" / "_checkpoint")
    run()

    assert plain_rows(log) == in_delta(tmp_path / "out")


def test_an_endpoint_works_like_a_path(tmp_path: Path) -> None:
    """It needs a running broker and a key."""
    with running(write_log(tmp_path / "log", varied(60))) as broker:
        source = {"endpoint": broker.address, "apiKey": KEY}
        archive(Plan(source, tmp_path / "out"), lambda _line: None)

        assert plain_rows(broker.path) == archived(tmp_path / "out")


def test_days_are_in_utc(spark: SparkSession) -> None:
    """Whatever the session's time zone, half an hour before and after midnight."""
    frame = spark.sql(
        "SELECT timestamp_micros(id * 1800000000 - 1) AS timestamp FROM range(47, 50)"
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = [row["date"] for row in with_day(frame).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert [date(1970, 1, 1), date(1970, 1, 1), date(1970, 1, 2)] == found


def test_packed_messages_are_unpacked_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    """Every column, with every kind of header."""
    log = write_log(tmp_path / "log", varied(100))
    reader = spark.read.format("braidmq").option("includeHeaders", "true")
    frame = packed(reader.load(str(log)))

    assert PACKED in frame.columns
    assert plain_rows(log) == unpacked(frame.toArrow()).to_pylist()
