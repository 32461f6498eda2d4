"""Staging as a task does it; tests/integration/spark has Spark's own tasks."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.headers import HEADERS_TYPE
from braidmq.spark.pipelines.tables import staging
from braidmq.spark.pipelines.tables.layouts import Layout
from braidmq.spark.pipelines.tables.staging import (
    PACKED,
    SUFFIX,
    StagingSink,
    StagingWriter,
    TaskReport,
    unpacked,
)
from tests.unit.spark.pipelines.written import LAYOUT, rows, seen_rows, stage_rows


def offsets_of(directory: Path, names: list[str]) -> list[int]:
    found: list[int] = []
    for name in names:
        found += pq.ParquetFile(directory / name).read().column("offset").to_pylist()
    return sorted(found)


def test_every_row_is_staged_once_and_counted(tmp_path: Path) -> None:
    """The report has what the tasks received and what they wrote."""
    staged = stage_rows(tmp_path, [rows(0, 10), rows(10, 7), rows(0, 0)])

    assert (17, 17) == (staged.received, staged.rows)
    assert list(range(17)) == offsets_of(tmp_path, [file.staged for file in staged.files])
    assert all(file.directory.startswith("date=2026-01-0") for file in staged.files)
    assert all((tmp_path / f.staged).stat().st_size == f.bytes for f in staged.files)


def test_no_reader_takes_a_staged_file_for_one_of_the_table(tmp_path: Path) -> None:
    """Not even one that searches every directory for *.parquet."""
    staged = stage_rows(tmp_path, [rows(0, 10)])

    assert all(file.staged.endswith(SUFFIX) for file in staged.files)
    assert [] == seen_rows(tmp_path)


def test_a_retried_task_stages_under_other_names(tmp_path: Path) -> None:
    """Only the files of the attempt that counts are reported."""
    writer = StagingWriter(str(tmp_path), LAYOUT)
    first = writer.write(iter(rows(0, 10).to_batches()))
    second = writer.write(iter(rows(0, 10).to_batches()))
    writer.commit([second])
    staged = staging.report_at(tmp_path)

    assert isinstance(first, TaskReport)
    assert 12 == len(list(tmp_path.glob(f"*{SUFFIX}")))
    assert list(range(10)) == offsets_of(tmp_path, [file.staged for file in staged.files])


def test_a_task_without_a_report_fails_the_batch(tmp_path: Path) -> None:
    """Its rows would silently be missing."""
    writer = StagingWriter(str(tmp_path), LAYOUT)
    report = writer.write(iter(rows(0, 10).to_batches()))

    with pytest.raises(AssertionError, match="a task has sent no report"):
        writer.commit([report, None])
    assert not (tmp_path / staging.REPORT).exists()


def test_a_task_holds_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes a file whenever its buffer is full; the names stay in order."""
    monkeypatch.setattr(staging, "BUFFER_BYTES_MAX", 1)
    batches = [batch for n in range(4) for batch in rows(n * 5, 5).to_batches()]
    writer = StagingWriter(str(tmp_path), Layout())
    writer.commit([writer.write(iter(batches))])
    staged = staging.report_at(tmp_path)

    assert [5, 5, 5, 5] == [file.rows for file in staged.files]
    firsts = [offsets_of(tmp_path, [file.staged])[0] for file in staged.files]
    assert [0, 5, 10, 15] == firsts


def test_all_columns_but_payloads_have_a_dictionary(tmp_path: Path) -> None:
    """Searching for equal payloads costs more than it saves."""
    stage_rows(tmp_path, [rows(0, 10)])
    group = pq.ParquetFile(next(tmp_path.glob(f"*{SUFFIX}"))).metadata.row_group(0)
    found = {
        group.column(n).path_in_schema: "RLE_DICTIONARY" in group.column(n).encodings
        for n in range(group.num_columns)
    }

    assert {"offset": True, "topic": True, "value": False} == found


def test_the_sink_is_built_from_options() -> None:
    """Spark passes them as strings."""
    sink = StagingSink({"directory": "/x", "layout": LAYOUT.to_json()})

    assert isinstance(sink.writer(None, overwrite=False), StagingWriter)  # type: ignore[arg-type]  # it is not used
    assert "braidmq-staging" == StagingSink.name()


def test_an_empty_frame_stages_nothing(tmp_path: Path) -> None:
    """The report says so."""
    staged = stage_rows(tmp_path, [pa.table({"offset": pa.array([], pa.int64())})], Layout())

    assert (0, []) == (staged.received, staged.files)


HEADERS = [
    None,
    [{"key": "ß", "value": b"\xff\x00"}, {"key": "key", "value": b""}],
    [],
]
TEXTS = [None, '[{"key":"ß","value":"/wA="},{"key":"key","value":""}]', "[]"]


def packed(texts: list[str | None]) -> pa.Table:
    count = len(texts)
    return pa.table(
        {
            "value": pa.array([b""] * count, pa.binary()),
            "offset": pa.array(range(count), pa.int64()),
            PACKED: pa.array(texts, pa.string()),
            "origin": ["blip"] * count,
            "date": ["today"] * count,
        }
    )


def test_unpacking_restores_headers_and_constant_columns() -> None:
    """In the source's order and types; other columns follow."""
    found = unpacked(packed(TEXTS))
    names = ["value", "partition", "offset", "timestampType", "headers", "origin", "date"]

    assert names == found.column_names
    assert HEADERS == found.column("headers").to_pylist()
    assert ([0, 0, 0], [1, 1, 1]) == (
        found.column("partition").to_pylist(),
        found.column("timestampType").to_pylist(),
    )
    for name in names[:-1]:
        assert TYPES[name] == found.schema.field(name).type


def test_messages_without_headers_have_the_column_too() -> None:
    """It has the same type in every file of a table."""
    found = unpacked(packed([None, None]))

    assert HEADERS_TYPE == found.schema.field("headers").type
    assert [None, None] == found.column("headers").to_pylist()


def test_other_tables_are_left_alone() -> None:
    """They have nothing to unpack."""
    table = pa.table({"a": [1]})

    assert unpacked(table) is table
