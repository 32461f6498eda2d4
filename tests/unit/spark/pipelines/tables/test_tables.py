"""Tables, a batch at a time; tests/integration/spark has Spark's own tasks."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.tables import compaction, deltas
from braidmq.spark.pipelines.tables import tables as module
from braidmq.spark.pipelines.tables.batches import (
    STAGING,
    Batch,
    Batches,
    ForeignBatchError,
    Record,
)
from braidmq.spark.pipelines.tables.layouts import Layout
from braidmq.spark.pipelines.tables.staging import Staged
from braidmq.spark.pipelines.tables.tables import (
    DELTA,
    LostStageError,
    Table,
    UncountedRowsError,
    Written,
)
from tests.unit.spark.pipelines.written import KEYS, rows, seen, stage_rows


class Frame:
    """A fake frame, which counts how often it is read."""

    def __init__(self, *tasks: pa.Table) -> None:
        self.tasks = tasks
        self.schema = from_arrow_schema(tasks[0].schema)
        self.reads = 0


def _fake_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(frame: Frame, directory: Path, layout: Layout) -> Staged:
        frame.reads += 1
        return stage_rows(directory, frame.tasks, layout)

    monkeypatch.setattr(module, "stage", stage)


@pytest.fixture(autouse=True)
def _tasks_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_tasks(monkeypatch)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Any]:
    return Table(tmp_path, "parquet", KEYS).write


def test_a_batch_is_written_once_however_often_it_is_repeated(
    tmp_path: Path, write: Callable[..., Any]
) -> None:
    """A repeat is not even read, and reports how many rows there were."""
    again = Frame(rows(0, 4), rows(4, 6))

    assert (10, False) == write(Frame(rows(0, 10)), Batch("query", 0))
    assert (10, True) == write(again, Batch("query", 0))
    assert (5, False) == write(Frame(rows(10, 5)), Batch("query", 1))
    assert list(range(15)) == seen(tmp_path)
    assert 0 == again.reads


def test_an_empty_batch_is_recorded_too(tmp_path: Path, write: Callable[..., Any]) -> None:
    """A repeat of it is recognised like any other."""
    assert (0, False) == write(Frame(rows(0, 0)), Batch("query", 0))
    assert (0, True) == write(Frame(rows(0, 5)), Batch("query", 0))
    assert [] == seen(tmp_path)


def test_rows_that_are_in_no_file_fail_the_batch(
    tmp_path: Path, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of it is written, and it can be retried."""

    def stage(frame: Frame, directory: Path, layout: Layout) -> Staged:
        staged = stage_rows(directory, frame.tasks, layout)
        return msgspec.structs.replace(staged, files=staged.files[1:])

    monkeypatch.setattr(module, "stage", stage)
    with pytest.raises(
        UncountedRowsError, match=r"batch \d has 10 rows, but [1-9] would be written"
    ):
        write(Frame(rows(0, 10)), Batch("query", 0))
    monkeypatch.undo()

    assert [] == seen(tmp_path)
    assert [] == list(tmp_path.rglob("*.staged"))


COUNTS: dict[str, tuple[list[int | None], bool]] = {
    "a row was lost": ([11, 11], False),
    "a row was duplicated": ([9, 9], False),
    "retention removed a row before it was read": ([11, 9], True),
    "retention removed rows after they were read": ([10], True),
    "the count is unknown": ([None], True),
}


@pytest.mark.parametrize("form", ["parquet", "delta"])
@pytest.mark.parametrize("case", COUNTS)
def test_a_batch_must_have_as_many_rows_as_the_log(
    tmp_path: Path, case: str, form: str
) -> None:
    """Otherwise none of it is written, unless retention has shortened the log meanwhile."""
    counts, is_written = COUNTS[case]
    table, count = Table(tmp_path, form, KEYS), iter(counts)
    frame = Frame(rows(0, 10))

    def write() -> Written:
        return table.write(frame, Batch("query", 0), count=lambda: next(count))  # type: ignore[arg-type]  # no session

    if is_written:
        assert (10, False) == write()
    else:
        with pytest.raises(UncountedRowsError, match=f"has {counts[0]} rows, but 10 would be"):
            write()
        assert [] == list(tmp_path.rglob("*.parquet"))
    assert [] == list(count)


def test_an_attempt_that_fails_leaves_nothing(
    tmp_path: Path, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that fills the disk."""

    def fail(frame: Frame, directory: Path, layout: Layout) -> Staged:
        stage_rows(directory, frame.tasks, layout)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "stage", fail)
    with pytest.raises(OSError, match="No space left"):
        write(Frame(rows(0, 10)), Batch("query", 0))

    assert [] == list(tmp_path.rglob("*.staged"))


def test_a_batch_whose_files_are_deleted_is_not_taken_for_written(
    tmp_path: Path, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would continue after it, and its rows would be in no table."""
    decide = Batches.decide

    def cleaned_up(*args: Any) -> Record:  # noqa: ANN401 - passed on
        record = decide(*args)
        shutil.rmtree(tmp_path / STAGING)
        return record

    monkeypatch.setattr(Batches, "decide", cleaned_up)
    with pytest.raises(
        LostStageError, match=r"batch 0: its staged files in .*/staging were deleted"
    ):
        write(Frame(rows(0, 10)), Batch("query", 0))
    monkeypatch.undo()
    assert [] == seen(tmp_path)
    _fake_tasks(monkeypatch)

    assert (10, False) == write(Frame(rows(0, 10)), Batch("query", 0))
    assert list(range(10)) == seen(tmp_path)


def test_a_table_of_another_query_is_refused(write: Callable[..., Any]) -> None:
    """So is a batch of the same query with another end."""
    write(Frame(rows(0, 10)), Batch("query", 0, "10"))

    with pytest.raises(ForeignBatchError):
        write(Frame(rows(0, 10)), Batch("other", 0, "10"))
    with pytest.raises(ForeignBatchError):
        write(Frame(rows(0, 10)), Batch("query", 0, "11"))


def test_a_delta_table_has_each_batch_once(tmp_path: Path) -> None:
    """The library would append it twice, so the table checks its transaction first."""
    table = Table(tmp_path, DELTA, KEYS)
    again = Frame(rows(0, 10))

    assert (10, False) == table.write(Frame(rows(0, 10)), Batch("query", 0))  # type: ignore[arg-type]  # no session
    assert (None, True) == table.write(again, Batch("query", 0))  # type: ignore[arg-type]  # no session
    assert (5, False) == table.write(Frame(rows(10, 5)), Batch("query", 1))  # type: ignore[arg-type]  # no session
    found = DeltaTable(tmp_path).to_pyarrow_table()
    assert list(range(15)) == sorted(found.column("offset").to_pylist())
    assert 0 == again.reads
    assert [] == list(tmp_path.rglob("*.staged"))
    with pytest.raises(
        ForeignBatchError, match="batch 0 would follow batches of the query query"
    ):
        table.write(Frame(rows(0, 10)), Batch("other", 0))  # type: ignore[arg-type]  # no session


def test_the_branches_of_a_delta_table_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between two commits, the repeat writes only what is missing."""
    branches = {name: {"offset": "offset"} for name in ("a/0", "a/1", "a/2")}
    table = Table(tmp_path, DELTA, ("date",), branch_column="topic", branches=branches)
    append = deltas.append
    calls = []

    def die_at_the_second(root: Path, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - passed on
        calls.append(root.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        append(root, *arguments, **more)

    monkeypatch.setattr(deltas, "append", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        table.write(Frame(rows(0, 9)), Batch("query", 0))  # type: ignore[arg-type]  # no session
    assert (9, False) == table.write(Frame(rows(0, 9)), Batch("query", 0))  # type: ignore[arg-type]  # no session

    assert ["0", "1", "1", "2"] == calls
    for number in range(3):
        found = DeltaTable(tmp_path / "a" / str(number)).to_pyarrow_table()
        assert [number, number + 3, number + 6] == sorted(found.column("offset").to_pylist())


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_table_of_either_format_can_be_compacted(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows are in fewer files."""
    monkeypatch.setattr(compaction, "FILES_MIN", 3)
    table = Table(tmp_path / "out", form, KEYS)
    for number in range(3):
        table.write(Frame(rows(number * 12, 12)), Batch("query", number))  # type: ignore[arg-type]  # no session
    table.compact()

    if form == DELTA:
        delta = DeltaTable(tmp_path / "out")
        assert 2 == len(delta.file_uris())
        assert list(range(36)) == sorted(delta.to_pyarrow_table().column("offset").to_pylist())
    else:
        assert 6 == len(list((tmp_path / "out").rglob("*.parquet")))
        assert list(range(36)) == seen(tmp_path / "out")


@pytest.mark.parametrize(("form", "other"), [("parquet", "delta"), ("delta", "parquet")])
def test_a_table_keeps_its_format(tmp_path: Path, form: str, other: str) -> None:
    """Readers of either format would see only half of it."""
    Table(tmp_path, form, KEYS).write(Frame(rows(0, 5)), Batch("query", 0))  # type: ignore[arg-type]  # no session
    with pytest.raises(
        ConfigError, match=f"--format: .* is {form}: use --format {form}, or another"
    ):
        Table(tmp_path, other, KEYS).write(Frame(rows(5, 5)), Batch("query", 1))  # type: ignore[arg-type]  # no session


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    """The error lists the known ones."""
    with pytest.raises(ConfigError, match="--format: 'orc' is unknown: parquet or delta"):
        Table(tmp_path, "orc")
