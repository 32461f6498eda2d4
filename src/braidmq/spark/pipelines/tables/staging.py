"""Staging: each task writes its rows into files that no reader sees, and reports their names.

    frame.write.format("braidmq-staging")      options: directory, layout

Runs on executors, from Arrow batches straight to Parquet files, without Spark's own writer. A
retried task stages again under other names, and the report lists the files of the successful
attempts only. A staged file is complete and durable before the report names it.

Messages are packed for the way from Spark to the task. Every column costs time for every row,
and a list costs most: Spark asks for its size repeatedly, in time that grows with the rows
before it. So headers travel as text, and columns that are the same for every message do not
travel at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidmq.base.limits import MIB
from braidmq.columnar.decoding.columns import LOG_APPEND_TIME, TYPES
from braidmq.columnar.decoding.headers import HEADERS_TYPE
from braidmq.spark.pipelines.tables.layouts import Layout, TablePartition
from braidmq.wal.disk import Disk, replace_file

FORMAT: Final = "braidmq-staging"
BUFFER_BYTES_MAX: Final = 128 * MIB
"""What a task buffers before it writes a file for each directory that has rows."""

SUFFIX: Final = ".staged"
"""Not .parquet, because some readers search hidden directories too."""

REPORT: Final = "report.json"
HEADERS: Final = "headers"
PACKED: Final = "_headers"
"""The column that holds headers as JSON; its presence marks a packed table."""

SAME: Final = {"partition": 0, "timestampType": LOG_APPEND_TIME}
"""Columns with the same value in every message."""


class Header(msgspec.Struct):
    """One header; JSON has its value in base64."""

    key: str
    value: bytes


_decode: Final = msgspec.json.Decoder(list[Header]).decode


class StagedFile(msgspec.Struct, frozen=True):
    """A file that does not have its final name yet: its rows, and where they belong."""

    staged: str
    branch: str
    directory: str
    values: dict[str, str | None]
    rows: int
    bytes: int


class Staged(msgspec.Struct, frozen=True):
    """What tasks have staged, and how many rows they received."""

    received: int
    files: list[StagedFile]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)


@dataclass
class TaskReport(WriterCommitMessage):
    """What one task has staged, on its way to the driver."""

    staged: Staged


class StagingWriter(DataSourceArrowWriter):
    """Writes the rows of a frame into files below *directory*."""

    def __init__(self, directory: str, layout: Layout) -> None:
        self._directory = directory
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Write the rows of a task; on an executor."""
        context = TaskContext.get()
        task = f"{context.partitionId() if context else 0:06d}"
        files: list[StagedFile] = []
        waiting: list[pa.RecordBatch] = []
        received = size = 0
        for batch in iterator:
            waiting.append(batch)
            received += len(batch)
            size += batch.nbytes
            if size >= BUFFER_BYTES_MAX:
                files += self._flush(task, len(files), waiting)
                waiting, size = [], 0
        files += self._flush(task, len(files), waiting)
        return TaskReport(Staged(received, files))

    def _flush(self, task: str, count: int, batches: list[pa.RecordBatch]) -> list[StagedFile]:
        if not batches:
            return []
        partitions = self._layout.partitions(unpacked(pa.Table.from_batches(batches)))
        files = [
            # Names sort in the order of the rows, and differ between attempts.
            self._stage(f"{task}-{number:06d}-{uuid4().hex}{SUFFIX}", partition)
            for number, partition in enumerate(partitions, count)
        ]
        disk = Disk(Path(self._directory))
        for staged in files:  # after writing all of them: the disk can flush many at once
            file = disk.open(staged.staged, write=False, create=False)
            file.fsync()
            file.close()
        return files

    def _stage(self, name: str, partition: TablePartition) -> StagedFile:
        path = Path(self._directory, name)
        words = [f.name for f in partition.rows.schema if not pa.types.is_binary(f.type)]
        # Payloads seldom repeat, so a dictionary for them costs more than it saves.
        pq.write_table(partition.rows, path, use_dictionary=words)
        return StagedFile(
            name,
            partition.branch,
            partition.directory,
            partition.values,
            len(partition.rows),
            path.stat().st_size,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the report of the successful tasks; on the driver's machine."""
        parts = [message.staged for message in messages if isinstance(message, TaskReport)]
        # Spark commits once every task has succeeded; a missing report would be a silent loss.
        assert len(parts) == len(messages), "a task has sent no report"
        files = sorted((file for part in parts for file in part.files), key=lambda f: f.staged)
        whole = Staged(sum(part.received for part in parts), files)
        replace_file(Disk(Path(self._directory)), REPORT, msgspec.json.encode(whole))


class StagingSink(DataSource):
    """The internal format that stages rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001 - Spark's call
        """Return the writer of one attempt at a batch; on the driver."""
        layout = Layout.from_json(self.options["layout"])
        return StagingWriter(self.options["directory"], layout)


def stage(frame: DataFrame, directory: Path, layout: Layout) -> Staged:
    """Run *frame*, with its tasks writing their rows into files below *directory*."""
    frame.sparkSession.dataSource.register(StagingSink)
    writer = frame.write.format(FORMAT).mode("append")
    writer.options(directory=str(directory), layout=layout.to_json()).save()
    return report_at(directory)


def report_at(directory: Path) -> Staged:
    """Return what was staged in *directory*."""
    return msgspec.json.decode((directory / REPORT).read_bytes(), type=Staged)


def packed(messages: DataFrame) -> DataFrame:
    """Return *messages* without what `unpacked` can restore."""
    text = F.to_json(HEADERS).alias(PACKED)
    names = [name for name in messages.columns if name not in SAME]
    return messages.select([text if name == HEADERS else name for name in names])


def unpacked(rows: pa.Table) -> pa.Table:
    """Return the columns of packed messages as the source has them; other tables unchanged."""
    if PACKED not in rows.column_names:
        return rows
    columns = {name: rows.column(name) for name in rows.column_names if name != PACKED}
    columns[HEADERS] = _lists(rows.column(PACKED))
    for name, value in SAME.items():
        columns[name] = pa.array(np.full(len(rows), value, np.int32))
    known = [name for name in TYPES if name in columns]
    others = [name for name in columns if name not in TYPES]
    return pa.table({name: columns[name] for name in [*known, *others]})


def _lists(texts: pa.ChunkedArray) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), HEADERS_TYPE)
    return pa.array(map(_list, texts.to_pylist()), HEADERS_TYPE)


def _list(text: str | None) -> list[dict[str, str | bytes]] | None:
    if text is None:
        return None
    return [{"key": header.key, "value": header.value} for header in _decode(text)]
