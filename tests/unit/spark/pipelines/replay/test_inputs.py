"""A replay's inputs: the same positions always give the same rows."""

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.replay import inputs as replay_inputs
from braidmq.spark.pipelines.replay.inputs import (
    ChangedTableError,
    LogInput,
    TableFile,
    TableInput,
    check_table,
    table_files,
)
from tests.unit.columnar.logs import message, write_log


class Frames:
    """A fake session, whose frames are the Arrow tables they were made from."""

    def createDataFrame(self, rows: pa.Table) -> pa.Table:  # noqa: N802 - Spark's name
        return rows


def values(found: TableInput, first: int, end: int) -> list[int]:
    table = cast("pa.Table", found.frame(cast("SparkSession", Frames()), first, end))
    return [int(value) for value in table.column("value").to_pylist()]


def write(path: Path, numbers: list[int], **columns: pa.Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {"value": pa.array([b"%d" % number for number in numbers], pa.binary())}
    pq.write_table(pa.table({**own, **columns}), path, row_group_size=3)


def offsets(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64())


def test_a_table_must_have_the_given_format(tmp_path: Path) -> None:
    """The files of a Delta table are not its rows: some may have been deleted."""
    plain, delta = tmp_path / "plain", tmp_path / "delta"
    write(plain / "a.parquet", [1])
    write_deltalake(delta, pq.read_table(plain))
    check_table(plain, "parquet")
    check_table(delta, "delta")

    with pytest.raises(ConfigError, match=r"--format: .*/plain is no Delta table"):
        check_table(plain, "delta")
    with pytest.raises(ConfigError, match=r"--format: .*/delta is a Delta table"):
        check_table(delta, "parquet")


def test_any_range_of_a_table_holds_its_rows_in_order(tmp_path: Path) -> None:
    """Across files and row groups, wherever the range begins and ends."""
    write(tmp_path / "a.parquet", list(range(7)))
    write(tmp_path / "b.parquet", [])
    write(tmp_path / "c" / "d.parquet", list(range(7, 12)))
    found = TableInput(tmp_path, table_files(tmp_path))

    assert (0, 12) == (found.first, found.end)
    for first in range(12):
        for end in range(first + 1, 13):
            assert list(range(first, end)) == values(found, first, end)
            assert end - first == found.count(first, end)


def test_files_are_read_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    """Not in that of their names; hidden files are skipped, as by other readers."""
    write(tmp_path / "date=2" / "b.parquet", [3, 4], offset=offsets(30, 40))
    write(tmp_path / "date=1" / "z.parquet", [5], offset=offsets(50))
    write(tmp_path / "date=3" / "a.parquet", [1, 2], offset=offsets(10, 20))
    write(tmp_path / "_table" / "staging" / "x.parquet", [9], offset=offsets(1))
    write(tmp_path / ".hidden.parquet", [9], offset=offsets(1))

    assert [1, 2, 3, 4, 5] == values(TableInput(tmp_path, table_files(tmp_path)), 0, 5)


def test_a_chunk_is_bounded_by_rows_and_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has at least one row, however large, and never passes the end of the table."""
    monkeypatch.setattr(replay_inputs, "CHUNK_BYTES", 1000)
    small = TableInput(tmp_path, [TableFile("a", 10, 1, 100), TableFile("b", 10, 1, 100)])
    large = TableInput(tmp_path, [TableFile("a", 10, 1, 4_000), TableFile("b", 5, 1, 10_000)])

    assert 15 == small.after(0, 15)
    assert 20 == small.after(15, 15)
    assert [2, 4, 11] == [large.after(0, 15), large.after(2, 15), large.after(10, 15)]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 500)), min_size=1), st.integers(1, 9)
)
def test_chunks_cover_every_position_once(files: list[tuple[int, int]], rows: int) -> None:
    """Each begins where the one before it ended and has no more rows than allowed."""
    found = TableInput(Path(), [TableFile("x", count, 1, size) for count, size in files])
    at = found.first
    while at < found.end:
        end = found.after(at, rows)
        assert at < end <= min(at + rows, found.end)
        at = end
    assert found.end == at


def test_a_table_that_changes_is_refused(tmp_path: Path) -> None:
    """Its positions would mean other rows; a missing file is a change too."""
    write(tmp_path / "a.parquet", [1, 2])
    found = TableInput(tmp_path, table_files(tmp_path))
    write(tmp_path / "a.parquet", list(range(2000)))
    with pytest.raises(
        ChangedTableError, match=r"a\.parquet is another file, or gone; replay it"
    ):
        values(found, 0, 2)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(ChangedTableError):
        values(found, 0, 2)


def test_a_table_that_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    """It may lack a directory, files, valid Parquet, payloads or topics."""
    other, empty = tmp_path / "other", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=f"--table: {other} is not a directory"):
        table_files(other)
    with pytest.raises(ConfigError, match="no Parquet files"):
        table_files(empty)
    (empty / "a.parquet").write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read"):
        table_files(empty)
    pq.write_table(pa.table({"payload": [b"x"]}), empty / "a.parquet")
    with pytest.raises(ConfigError, match="no column 'value', there are: payload"):
        table_files(empty)
    write(empty / "a.parquet", [1])
    with pytest.raises(ConfigError, match=r"no column 'topic', .*; give --to-topic"):
        values(TableInput(empty, table_files(empty), needs_topic=True), 0, 1)


def test_dictionary_columns_become_plain_strings(tmp_path: Path) -> None:
    """Spark accepts no dictionary arrays, but other writers produce them."""
    topics = pa.array(["t", "t"]).dictionary_encode()
    write(tmp_path / "a.parquet", [1, 2], topic=topics, other=offsets(1, 2))
    found = TableInput(tmp_path, table_files(tmp_path))
    table = cast("pa.Table", found.frame(cast("SparkSession", Frames()), 0, 2))

    assert [("value", pa.binary()), ("topic", pa.string())] == [
        (field.name, field.type) for field in table.schema
    ]


def test_a_log_is_read_by_ids(tmp_path: Path) -> None:
    """Only subscribed topics count; the range ends at the given timestamp."""
    bodies = [message("ab"[n % 2], b"%d" % n, n * 1000) for n in range(20)]
    path = str(write_log(tmp_path / "log", bodies))
    every = LogInput({"path": path})
    some = LogInput({"path": path, "subscribe": "b", "endingTimestamp": "10"})

    assert (1, 21) == (every.first, every.end)
    assert 8 == every.after(1, 7)
    assert 7 == every.count(1, 8)
    assert (1, 11) == (some.first, some.end)
    assert 8 == some.after(1, 3)
    assert 3 == some.count(1, 8)
    assert 11 == some.after(8, 100)
