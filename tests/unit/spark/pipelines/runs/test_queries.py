"""A query as its run sees it, over a fake Spark; tests/integration/spark has the real one."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs.failures import QueryFailedError
from braidmq.spark.pipelines.runs.queries import (
    COMPACT_BATCHES,
    RESTART_S_MAX,
    RESTARTS_MAX,
    Checkpoint,
    Query,
    StoppingError,
    Stream,
)
from braidmq.spark.pipelines.tables.batches import Batch
from braidmq.spark.pipelines.times import Trigger
from tests.unit.spark.pipelines.runs.test_progress import SOURCE, progress


class Spark:
    """A fake frame, writer and query in one, which records its settings."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.settings: dict[str, Any] = {}
        self.starts = 0
        self.isActive = False
        self.error: Exception | None = None
        self.recentProgress: list[Any] = []

    @property
    def writeStream(self) -> "Spark":  # noqa: N802 - Spark's name
        return self

    def foreachBatch(self, function: Callable[[Any, int], None]) -> "Spark":  # noqa: N802 - Spark's name
        self.write = function
        return self

    def option(self, name: str, value: str) -> "Spark":
        self.settings[name] = value
        return self

    def outputMode(self, mode: str) -> "Spark":  # noqa: N802 - Spark's name
        self.settings["mode"] = mode
        return self

    def trigger(self, **when: object) -> "Spark":
        self.settings["trigger"] = when
        return self

    def start(self) -> "Spark":
        self.starts += 1
        self.isActive = True
        return self

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def run_batch(self, number: int) -> None:
        """Plan a micro-batch, have it written, and commit it."""
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
        self.write(None, number)
        found = progress(SOURCE)
        self.recentProgress.append(SimpleNamespace(**{**vars_of(found), "batchId": number}))
        (self.checkpoint / "commits" / str(number)).touch()

    def fail(self, error: Exception) -> None:
        self.isActive, self.error = False, error


def vars_of(found: object) -> dict[str, Any]:
    names = ("numInputRows", "batchDuration", "sources")
    return {name: getattr(found, name) for name in names}


class Rig:
    """A query, its fake Spark, and the lines that it reported."""

    def __init__(self, path: Path, trigger: Trigger, *, compact: bool = False) -> None:
        self.spark = Spark(path)
        self.compacted: list[int] = []
        self.written: list[Batch] = []
        self.lines: list[str] = []
        self.stopping = Event()
        self.problem: Exception | None = None
        self.query = Query(
            "archive",
            Stream(self.frame, self.write, tables=[self]),  # type: ignore[arg-type, list-item]  # a fake Spark and a fake table
            checkpoint=path,
            trigger=trigger,
            stopping=self.stopping,
            tell=self.lines.append,
            compact=compact,
        )

    def frame(self) -> Spark:
        if self.problem is not None:
            raise self.problem
        return self.spark

    def compact(self) -> None:
        self.compacted.append(self.written[-1].batch_id)

    def write(self, _frame: object, batch: Batch) -> int:
        self.written.append(batch)
        if self.problem is not None:
            raise self.problem
        return 7


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, Trigger())


def test_a_query_is_started_and_ends_by_itself(rig: Rig) -> None:
    """Each batch is written with its end, and reported once with its rows."""
    assert rig.query.look(0.0)
    for number in range(2):
        rig.spark.run_batch(number)
        assert rig.query.look(0.0)
    rig.spark.isActive = False

    assert not rig.query.look(0.0)
    assert not rig.query.look(0.0)
    assert [Batch("query", 0, "0", ""), Batch("query", 1, "1", "0")] == rig.written
    assert ["archive: batch 0, 7 rows", "archive: batch 1, 7 rows"] == [
        line[:24] for line in rig.lines
    ]
    assert {"availableNow": True} == rig.spark.settings["trigger"]
    assert str(rig.spark.checkpoint) == rig.spark.settings["checkpointLocation"]


@pytest.mark.parametrize("compact", [True, False])
def test_tables_are_compacted_every_so_many_batches(tmp_path: Path, *, compact: bool) -> None:
    """If the run compacts at all, right after the batch that completes the number."""
    rig = Rig(tmp_path, Trigger(), compact=compact)
    rig.query.look(0.0)
    for number in range(2 * COMPACT_BATCHES + 1):
        rig.spark.run_batch(number)

    expected = [COMPACT_BATCHES - 1, 2 * COMPACT_BATCHES - 1]
    assert (expected if compact else []) == rig.compacted


def test_a_query_that_finds_nothing_says_so(rig: Rig) -> None:
    """Once, when it has ended."""
    assert rig.query.look(0.0)
    rig.spark.isActive = False

    assert [False, False] == [rig.query.look(0.0) for _ in range(2)]
    assert ["archive: nothing new, lag 0"] == rig.lines


def test_a_trigger_is_passed_on(tmp_path: Path) -> None:
    """As Spark spells it."""
    rig = Rig(tmp_path, Trigger(10_000))
    rig.query.look(0.0)

    assert {"processingTime": "10000 milliseconds"} == rig.spark.settings["trigger"]


def test_a_query_whose_source_died_is_restarted_but_not_for_ever(rig: Rig) -> None:
    """The wait doubles each time; in the end its error ends the run."""
    now, waits = 0.0, []
    rig.query.look(now)
    for number in range(RESTARTS_MAX):
        rig.spark.fail(PySparkException("(no cause message)"))
        assert rig.query.look(now)
        assert f"restart {number + 1} of {RESTARTS_MAX}" in rig.lines[-1]
        began = now
        while rig.spark.starts == number + 1:
            now += 0.5
            rig.query.look(now)
        waits.append(now - began)
    rig.spark.fail(PySparkException("(no cause message)"))

    assert [1, 2, 4, 8, 16] == waits
    assert max(waits) <= RESTART_S_MAX
    with pytest.raises(QueryFailedError, match=r"archive: \(no cause message\)"):
        rig.query.look(now)


def test_a_batch_between_failures_resets_the_count_of_restarts(rig: Rig) -> None:
    """Only failures in a row are counted."""
    now = 0.0
    rig.query.look(now)
    for number in range(2 * RESTARTS_MAX):
        rig.spark.run_batch(number)
        rig.spark.fail(PySparkException("died"))
        rig.query.look(now)
        now += 1.0
        rig.query.look(now)

    assert 2 * RESTARTS_MAX + 1 == rig.spark.starts


def test_an_error_that_would_recur_is_not_retried(rig: Rig) -> None:
    """Our own errors say what to do, wherever they were raised."""
    rig.query.look(0.0)
    rig.problem = ConfigError("--out", "is another query's")
    with pytest.raises(ConfigError):
        rig.spark.run_batch(0)
    rig.spark.fail(PySparkException("[STREAM_FAILED] ... long"))

    with pytest.raises(QueryFailedError, match="archive: --out: is another query's"):
        rig.query.look(0.0)


def test_a_query_that_cannot_begin_fails_at_once(rig: Rig) -> None:
    """The user has only just started it, and is waiting."""
    rig.problem = PySparkException(
        "x\nbraidmq.spark.options.OptionError: option path: is missing\n"
    )

    with pytest.raises(QueryFailedError, match="archive: option path: is missing"):
        rig.query.look(0.0)


def test_a_dead_jvm_is_not_a_failed_query(rig: Rig) -> None:
    """There is nothing left to restart it in."""
    rig.query.look(0.0)
    rig.spark.fail(Py4JNetworkError("Error while receiving"))

    with pytest.raises(Py4JNetworkError):
        rig.query.look(0.0)


def test_a_stop_waits_for_the_batch_that_is_being_written(rig: Rig) -> None:
    """And for Spark to commit it; a batch that begins after that is refused."""
    writing, go_on = Event(), Event()
    write = rig.write

    def slowly(frame: object, batch: Batch) -> int:
        writing.set()
        assert go_on.wait(10)
        return write(frame, batch)

    object.__setattr__(rig.query._stream, "write", slowly)  # noqa: SLF001 - to delay the batch
    rig.query.look(0.0)
    batch = Thread(target=rig.spark.run_batch, args=(0,))
    batch.start()
    assert writing.wait(10)
    rig.stopping.set()
    stop = Thread(target=rig.query.stop)
    stop.start()
    stop.join(0.3)
    assert (True, True) == (stop.is_alive(), rig.spark.isActive)
    go_on.set()
    stop.join(10)
    batch.join(10)

    assert not rig.spark.isActive
    assert (rig.spark.checkpoint / "commits" / "0").exists()
    assert ["archive: batch 0, 7 rows"] == [line[:24] for line in rig.lines]
    with pytest.raises(StoppingError):
        rig.spark.run_batch(1)
    rig.spark.fail(PySparkException("stopped"))
    assert rig.query.look(0.0)


def test_a_query_that_has_not_begun_can_be_stopped(rig: Rig) -> None:
    """There is nothing to stop."""
    rig.query.stop()

    assert 0 == rig.spark.starts


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "metadata").write_text('{"id":"3f0b34a7-7a1c"}')
    (tmp_path / "offsets" / "0").write_text(
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":17}\n{"offset": 101}\n{"offset": 7}'
    )
    (tmp_path / "commits" / "0").touch()
    return Checkpoint(tmp_path)


def test_the_end_of_a_batch_is_the_offsets_of_its_sources(checkpoint: Checkpoint) -> None:
    """Without the other things that Spark records there, such as the time of day."""
    assert '{"offset": 101} {"offset": 7}' == checkpoint.end(0)


def test_a_batch_begins_where_the_one_before_ends(checkpoint: Checkpoint) -> None:
    """The first one has no start."""
    assert "" == checkpoint.start(0)
    assert checkpoint.end(0) == checkpoint.start(1)


def test_a_batch_that_was_not_planned_has_no_end(checkpoint: Checkpoint) -> None:
    """So it cannot be written."""
    with pytest.raises(FileNotFoundError):
        checkpoint.end(1)


def test_the_checkpoint_holds_the_id_of_its_query(checkpoint: Checkpoint) -> None:
    """The id lasts as long as the checkpoint does."""
    assert "3f0b34a7-7a1c" == checkpoint.query_id()


def test_a_batch_is_committed_when_spark_says_so(checkpoint: Checkpoint) -> None:
    """Spark does not repeat it then."""
    assert (True, False) == (checkpoint.is_committed(0), checkpoint.is_committed(1))
