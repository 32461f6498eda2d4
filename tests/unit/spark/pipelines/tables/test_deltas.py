"""Tables in Delta Lake's format, as its own library reads them."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from braidmq.spark.pipelines.tables import deltas
from braidmq.spark.pipelines.tables.layouts import Key, Layout
from tests.unit.spark.pipelines.written import rows, stage_rows

KEYS = (Key("date"),)
TYPES = {"date": pa.date32()}


def append(root: Path, batch_id: int, table: pa.Table, query_id: str = "query") -> None:
    stage = root.parent / f"stage-{batch_id}"
    stage.mkdir(exist_ok=True)
    files = stage_rows(stage, [table], Layout(KEYS)).files
    deltas.append(root, stage, files, keys=TYPES, query_id=query_id, batch_id=batch_id)


def offsets_of(root: Path) -> list[int]:
    return sorted(DeltaTable(root).to_pyarrow_table().column("offset").to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_each_batch_is_a_commit_with_its_transaction(root: Path) -> None:
    """Keys of directories are columns of the table; the log has the row counts."""
    root.mkdir()
    append(root, 0, rows(0, 10))
    append(root, 1, rows(10, 5))
    table = DeltaTable(root)

    assert list(range(15)) == offsets_of(root)
    assert ["date"] == table.metadata().partition_columns
    assert {"offset", "topic", "value", "date"} == set(table.to_pyarrow_table().column_names)
    assert rows(0, 15).column("date").to_pylist() == [
        row["date"]
        for row in sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])
    ]
    assert 1 == table.transaction_version("query")
    counts = table.get_add_actions(flatten=True)["num_records"].to_pylist()
    assert 15 == sum(counts)


def test_a_batch_is_recognised_by_query_and_number(root: Path) -> None:
    """Earlier batches count as written too: they come in order."""
    root.mkdir()
    assert not deltas.has_batch(root, "query", 0)
    append(root, 3, rows(0, 10))

    assert [True, True, False] == [deltas.has_batch(root, "query", n) for n in (2, 3, 4)]
    assert not deltas.has_batch(root, "other", 3)


def test_files_of_an_uncommitted_attempt_are_invisible(root: Path) -> None:
    """A repeat writes its own in their place."""
    root.mkdir()
    append(root, 0, rows(0, 10))
    stage = root.parent / "killed"
    stage.mkdir()
    files = stage_rows(stage, [rows(10, 7)], Layout(KEYS)).files
    deltas._placed(root, stage, files, 1, "")  # noqa: SLF001 - killed after its renames

    assert list(range(10)) == offsets_of(root)
    append(root, 1, rows(10, 5))
    assert list(range(15)) == offsets_of(root)


def test_an_empty_batch_makes_no_commit(root: Path) -> None:
    """There is no schema to create a table with."""
    root.mkdir()
    append(root, 0, rows(0, 0))

    assert not (root / deltas.LOG).exists()


def test_small_files_are_merged(root: Path) -> None:
    """By the library, in a commit of its own; a table that does not exist yet is left alone."""
    root.mkdir()
    deltas.compact(root)
    for number in range(3):
        append(root, number, rows(number * 10, 10))
    assert 6 == len(DeltaTable(root).file_uris())
    deltas.compact(root)

    assert 2 == len(DeltaTable(root).file_uris())
    assert list(range(30)) == offsets_of(root)
    assert deltas.has_batch(root, "query", 2)


def test_keys_have_the_types_of_the_rows() -> None:
    """Only keys that are not columns of the files are listed."""
    keys = (Key("date"), Key("topic", "topic_dir", kept=True))

    assert TYPES == deltas.key_types(keys, from_arrow_schema(rows(0, 1).schema))
