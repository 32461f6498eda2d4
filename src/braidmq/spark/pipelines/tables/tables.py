"""Tables that pipelines write batch by batch, while any reader reads them.

    table = Table(out, "parquet", partition_by=("date",))
    table.write(frame, Batch(query_id, batch_id))      inside foreachBatch

A batch may be written any number of times; the table has it once.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError, ConfigError
from braidmq.spark.pipelines.tables import compaction, deltas
from braidmq.spark.pipelines.tables.batches import STAGING, Batch, Batches, Record
from braidmq.spark.pipelines.tables.layouts import Key, Layout
from braidmq.spark.pipelines.tables.staging import Staged, stage

PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)


Count = Callable[[], int | None]
"""Returns how many rows a batch has; None if that is unknown."""


def check_format(format_: str) -> None:
    """Check that *format_* is a known table format.

    Raises:
        ConfigError: It is not.
    """
    if format_ not in FORMATS:
        raise ConfigError("--format", f"{format_!r} is unknown: {' or '.join(FORMATS)}")


class UncountedRowsError(BraidError):
    """The rows of a batch and of its files do not add up; nothing of it was written."""

    def __init__(self, batch_id: int, expected: int, written: int) -> None:
        super().__init__(
            f"batch {batch_id} has {expected} rows, but {written} would be written; "
            "nothing was written"
        )
        self.expected = expected
        self.written = written


class LostStageError(BraidError):
    """Staged files of a batch disappeared before they were renamed; it is not written."""

    def __init__(self, out: Path, batch_id: int) -> None:
        super().__init__(
            f"batch {batch_id}: its staged files in {out / STAGING} were deleted while it was "
            "being written; nothing was written: leave them alone, and run it again"
        )
        self.batch_id = batch_id


class Written(NamedTuple):
    """What was written; if *repeated*, the table had the batch, and *rows* may be unknown."""

    rows: int | None
    repeated: bool


class Table:
    """A table below the directory *out*, which one process writes at a time.

    *partition_by* names columns or keys; see `layouts`. With *branch_column*, that column names
    the one of *branches* that a row belongs to. Several tables in one *out* share a *lock*.

    Raises:
        ConfigError: The format is unknown.
    """

    def __init__(
        self,
        out: Path,
        format: str = PARQUET,  # noqa: A002 - as the option of the command line
        partition_by: Sequence[str | Key] = (),
        *,
        branch_column: str = "",
        branches: Mapping[str, Mapping[str, str]] | None = None,
        lock: "Lock | None" = None,
    ) -> None:
        check_format(format)
        self.out = out
        self.format = format
        keys = tuple(key if isinstance(key, Key) else Key(key) for key in partition_by)
        if format == DELTA:
            # Delta finds rows by the statistics in its log, so a column that the files have
            # needs no directory.
            keys = tuple(key for key in keys if not key.kept)
        self.layout = Layout(keys, branch_column, dict(branches or {}))
        self._lock = lock or Lock()

    def write(
        self,
        frame: DataFrame,
        batch: Batch,
        name: str = "",
        *,
        count: Count | None = None,
    ) -> Written:
        """Write the rows of a batch, unless the table has them; on the driver.

        A repeat of the batch with another end is refused. *name* distinguishes several writers
        of one table. *count* returns the number of rows to expect.

        Raises:
            ConfigError: The table has the other format.
            ForeignBatchError: The table belongs to another query.
            UncountedRowsError: Rows are missing; nothing was written.
            LostStageError: The staged files were deleted; nothing was written.
            OSError: A file cannot be written.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        batches = Batches(self.out, name)
        self._check_format(batches)
        if self.format == DELTA:
            return self._append(frame, batches, batch, count)
        # A repeat finishes what the record says instead of staging again: some of its files
        # may be in the table already.
        record = batches.decided(batch)
        if record is not None and self._finish(batches, record):
            return Written(record.rows, repeated=True)
        directory = batches.new_stage()
        try:
            staged = self._staged(frame, directory, batch.batch_id, count)
            record = batches.decide(batch, directory, staged.files)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if not self._finish(batches, record):
            raise LostStageError(self.out, batch.batch_id)
        return Written(record.rows, repeated=False)

    def _check_format(self, batches: Batches) -> None:
        """Refuse to continue a table in another format than that of its batches."""
        if self.format == DELTA:
            other = PARQUET if batches.has_records() else ""
        else:
            roots = [self.out / branch for branch in self._branches()]
            other = DELTA if any((root / deltas.LOG).exists() for root in roots) else ""
        if other:
            raise ConfigError(
                "--format", f"{self.out} is {other}: use --format {other}, or another --out"
            )

    def _branches(self) -> list[str]:
        return list(self.layout.branches) or [""]

    def _staged(
        self, frame: DataFrame, directory: Path, batch_id: int, count: Count | None
    ) -> Staged:
        expected = None if count is None else count()
        staged = stage(frame, directory, self.layout)
        if staged.received != staged.rows:
            raise UncountedRowsError(batch_id, staged.received, staged.rows)
        if count is None or expected is None or staged.rows == expected:
            return staged
        # With failOnDataLoss=false, retention may delete messages while the batch is read, so
        # any number between the counts before and after is right.
        if not (count() or 0) <= staged.rows <= expected:
            raise UncountedRowsError(batch_id, expected, staged.rows)
        return staged

    def _finish(self, batches: Batches, record: Record) -> bool:
        with self._lock:
            return batches.finish(record)

    def _append(
        self, frame: DataFrame, batches: Batches, batch: Batch, count: Count | None
    ) -> Written:
        # Each branch has a Delta log of its own, so a killed batch may be in some and not in
        # others: only those without it get its rows.
        batches.claim(batch)
        app_id = "/".join(filter(None, (batch.query_id, batches.name)))
        missing = [
            branch
            for branch in self._branches()
            if not deltas.has_batch(self.out / branch, app_id, batch.batch_id)
        ]
        if not missing:
            return Written(None, repeated=True)
        directory = batches.new_stage()
        try:
            staged = self._staged(frame, directory, batch.batch_id, count)
            for branch in missing:
                with self._lock:
                    deltas.append(
                        self.out / branch,
                        directory,
                        [file for file in staged.files if file.branch == branch],
                        keys=deltas.key_types(self.layout.keys, frame.schema),
                        query_id=app_id,
                        batch_id=batch.batch_id,
                        name=batches.name,
                    )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return Written(staged.rows, repeated=False)

    def compact(self) -> int:
        """Merge the small files of each directory that has many; return how many it merged.

        A reader sees every row once, before and after. One that is reading at that moment may
        find a file gone, and has to start over.
        """
        with self._lock:
            if self.format == DELTA:
                for branch in self._branches():
                    deltas.compact(self.out / branch)
                return 0
            return compaction.compact(self.out)
