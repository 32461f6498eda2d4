"""Tables as tests write them without a JVM, and as a plain reader sees them."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.spark.pipelines.tables.batches import Batch, Batches, Record
from braidmq.spark.pipelines.tables.layouts import Key, Layout
from braidmq.spark.pipelines.tables.staging import REPORT, Staged, StagingWriter, report_at

KEYS = (Key("date"), Key("topic", "topic_dir", kept=True))
LAYOUT = Layout(KEYS)


def rows(first: int, count: int, topics: int = 3) -> pa.Table:
    """Rows with offsets from *first* on, in several topics and on two days."""
    offsets = range(first, first + count)
    return pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "topic": [f"a/{n % topics}" for n in offsets],
            "value": pa.array([b"%d" % n for n in offsets], pa.binary()),
            "date": [date(2026, 1, 1 + n % 2) for n in offsets],
        }
    )


def stage_rows(directory: Path, tables: Sequence[pa.Table], layout: Layout = LAYOUT) -> Staged:
    """Stage rows as Spark's tasks would, with one table for each task."""
    writer = StagingWriter(str(directory), layout)
    writer.commit([writer.write(iter(table.to_batches())) for table in tables])
    assert (directory / REPORT).exists()
    return report_at(directory)


def decide(
    batches: Batches, batch_id: int, tables: Sequence[pa.Table], end: str = ""
) -> Record:
    """Stage a batch and record it as decided; its files are not renamed yet."""
    stage = batches.new_stage()
    staged = stage_rows(stage, tables)
    return batches.decide(Batch("query", batch_id, end), stage, staged.files)


def seen(out: Path) -> list[int]:
    """The offsets that a plain reader of the whole directory sees, in order."""
    if not any(out.glob("date=*/**/*.parquet")):
        return []
    return sorted(pq.read_table(out).column("offset").to_pylist())


def seen_rows(out: Path) -> list[dict[str, Any]]:
    """The rows of every ``*.parquet`` file, wherever it is."""
    found = [row for file in sorted(out.rglob("*.parquet")) for row in rows_of(file)]
    return sorted(found, key=lambda row: int(row["offset"]))


def rows_of(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
    return found
