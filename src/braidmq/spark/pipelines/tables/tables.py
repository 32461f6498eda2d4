"""Tables that pipelines write, a batch at a time, and that any reader reads meanwhile.

    table = Table(out, "parquet", partition_by=("date",))
    table.write(frame, query_id, batch_id)      inside foreachBatch

The same batch may be written any number of times: it is in the table once.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError, ConfigError
from braidmq.spark.pipelines.tables import compaction, deltas
from braidmq.spark.pipelines.tables.batches import STAGING, Batches, Record
from braidmq.spark.pipelines.tables.layouts import Key, Layout
from braidmq.spark.pipelines.tables.staging import Staged, stage

PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)


Count = Callable[[], int | None]
"""Asked how many rows a batch has; None: nobody knows."""


def check_format(format_: str) -> None:
    """See that there are tables of a format.

    Raises:
        ConfigError: There are none.
    """
    if format_ not in FORMATS:
        raise ConfigError("--format", f"{format_!r} is unknown: {' or '.join(FORMATS)}")


class UncountedRowsError(BraidError):
    """A batch has other rows than its files would have; nothing of it was written."""

    def __init__(self, batch_id: int, expected: int, written: int) -> None:
        super().__init__(
            f"batch {batch_id}: it has {expected} rows, {written} would be written; "
            "nothing of it was"
        )
        self.expected = expected
        self.written = written


class LostStageError(BraidError):
    """Staged files of a batch were gone before they had their names; it is not written."""

    def __init__(self, out: Path, batch_id: int) -> None:
        super().__init__(
            f"batch {batch_id}: its files were deleted from {out / STAGING} while it was "
            "written, and nothing of it was; leave them alone, and run it again"
        )
        self.batch_id = batch_id


class Written(NamedTuple):
    """What is written of a batch; repeated: it was there, and its rows may not be known."""

    rows: int | None
    repeated: bool


class Table:
    """A table below the directory *out*, which one process writes at a time.

    *partition_by* names columns, or keys; see `layouts`. With *branch_column*, that column says
    to which of *branches* a row belongs. Several tables of one *out* share a *lock*.

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
            # It finds rows by what its log says of files; a column needs no directory too.
            keys = tuple(key for key in keys if not key.kept)
        self.layout = Layout(keys, branch_column, dict(branches or {}))
        self._lock = lock or Lock()

    def write(
        self,
        frame: DataFrame,
        query_id: str,
        batch_id: int,
        name: str = "",
        place: str = "",
        *,
        count: Count | None = None,
    ) -> Written:
        """Write the rows of a batch, if they are not there yet; on the driver.

        *name* tells several writers of one table apart. *place* says where the batch ends: a
        repeat that says something else is refused. *count* is asked how many rows there are.

        Raises:
            ConfigError: The table is of the other format.
            ForeignBatchError: The table is another query's.
            UncountedRowsError: Rows were lost on the way; nothing was written.
            LostStageError: Somebody has deleted the files; nothing was written.
            OSError: A file cannot be written.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        batches = Batches(self.out, name)
        self._check_format(batches)
        if self.format == DELTA:
            return self._append(frame, batches, query_id, batch_id, count)
        record = batches.decided(query_id, batch_id, place)
        if record is not None and self._finish(batches, record):
            return Written(record.rows, repeated=True)
        directory = batches.new_stage()
        try:
            staged = self._staged(frame, directory, batch_id, count)
            record = batches.decide(query_id, batch_id, place, directory, staged.files)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if not self._finish(batches, record):
            raise LostStageError(self.out, batch_id)
        return Written(record.rows, repeated=False)

    def _check_format(self, batches: Batches) -> None:
        """Refuse to go on in another format than that of the batches before."""
        if self.format == DELTA:
            other = PARQUET if batches.has_records() else ""
        else:
            roots = [self.out / branch for branch in self._branches()]
            other = DELTA if any((root / deltas.LOG).exists() for root in roots) else ""
        if other:
            raise ConfigError(
                "--format", f"{self.out} is {other}: say so, or use another --out"
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
        # What retention takes meanwhile may be there or not, where a loss is no error.
        if not (count() or 0) <= staged.rows <= expected:
            raise UncountedRowsError(batch_id, expected, staged.rows)
        return staged

    def _finish(self, batches: Batches, record: Record) -> bool:
        with self._lock:
            return batches.finish(record)

    def _append(
        self,
        frame: DataFrame,
        batches: Batches,
        query_id: str,
        batch_id: int,
        count: Count | None,
    ) -> Written:
        batches.claim(query_id, batch_id)
        app_id = "/".join(filter(None, (query_id, batches.name)))
        missing = [
            branch
            for branch in self._branches()
            if not deltas.has_batch(self.out / branch, app_id, batch_id)
        ]
        if not missing:
            return Written(None, repeated=True)
        directory = batches.new_stage()
        try:
            staged = self._staged(frame, directory, batch_id, count)
            for branch in missing:
                with self._lock:
                    deltas.append(
                        self.out / branch,
                        directory,
                        [file for file in staged.files if file.branch == branch],
                        keys=deltas.key_types(self.layout.keys, frame.schema),
                        query_id=app_id,
                        batch_id=batch_id,
                        name=batches.name,
                    )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return Written(staged.rows, repeated=False)

    def compact(self) -> int:
        """Merge the small files of each directory that has many; return how many have.

        A reader sees every row once, before and after; one that is in the middle of it may find
        a file gone, and has to begin again.
        """
        with self._lock:
            if self.format == DELTA:
                for branch in self._branches():
                    deltas.compact(self.out / branch)
                return 0
            return compaction.compact(self.out)
