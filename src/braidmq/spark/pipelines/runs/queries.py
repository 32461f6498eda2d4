"""A query of a run: start it, watch it, restart it, and stop it between two batches.

The main thread watches it; a thread of Spark writes its batches. If the process of the source
dies, Spark fails the query; it is restarted and resumes from its checkpoint.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` after it, but never
syncs them. After a power cut, a table could hold a batch whose end the checkpoint has lost; the
batch would then be planned again with another end. So the checkpoint is synced first.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.spark.pipelines.runs.failures import (
    QueryFailedError,
    is_final,
    is_java_gone,
    one_line,
)
from braidmq.spark.pipelines.runs.progress import line
from braidmq.spark.pipelines.tables.batches import Batch
from braidmq.spark.pipelines.tables.tables import Table
from braidmq.spark.pipelines.times import Trigger
from braidmq.wal.disk import Disk

RESTARTS_MAX: Final = 5
"""Restarts of one query in a row, without a finished micro-batch in between."""

RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 30.0
"""Delay before a restart; it doubles each time, up to the maximum."""

LOOK_S: Final = 0.2
"""How often a query is polled."""

COMPACT_BATCHES: Final = 50
"""Batches between two compactions of a run that does not end."""

COMMIT_S_MAX: Final = 10.0
"""How long a run that stops waits for Spark to commit the batch it has just written."""

assert LOOK_S < RESTART_S_MIN < RESTART_S_MAX

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
METADATA: Final = "metadata"
_LINES_BEFORE_OFFSETS: Final = 2
"""The version of the format, and the metadata that Spark keeps about the batch."""

Tell = Callable[[str], None]
"""Where a line for the user goes."""


class StoppingError(Exception):
    """A batch was not started because the run is stopping; the next run repeats it."""


@dataclass(frozen=True)
class Stream:
    """What a query runs: a frame, made again at each start, and how its batches are written.

    `write` returns the number of rows of the batch, or None to use Spark's count. If a run has
    several streams, each has a *name* and a checkpoint of its own. *tables* can be compacted.
    """

    frame: Callable[[], DataFrame]
    write: Callable[[DataFrame, Batch], int | None]
    name: str = ""
    tables: Sequence[Table] = ()

    def compact(self) -> None:
        """Merge the small files of the tables."""
        for table in self.tables:
            table.compact()


class Checkpoint:
    """A checkpoint in a directory that the driver can reach.

    Its methods raise OSError if Spark has not written the file yet, or has deleted it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._disk = Disk(path)

    def end(self, batch_id: int) -> str:
        """Return where a batch ends, as its sources wrote it, once that is durable."""
        for name in (METADATA, f"{OFFSETS}/{batch_id}"):
            file = self._disk.open(name, write=False, create=False)
            file.fsync()
            file.close()
        self._disk.sync_dir(OFFSETS)
        self._disk.sync_dir("")
        return self._end(batch_id)

    def start(self, batch_id: int) -> str:
        """Return where the batch before it ends; empty if there is none."""
        return self._end(batch_id - 1) if batch_id else ""

    def _end(self, batch_id: int) -> str:
        lines = (self.path / OFFSETS / str(batch_id)).read_text("utf-8").splitlines()
        return " ".join(lines[_LINES_BEFORE_OFFSETS:])

    def query_id(self) -> str:
        """Return the id of the query; another checkpoint has another one."""
        return str(json.loads((self.path / METADATA).read_bytes())["id"])

    def is_committed(self, batch_id: int) -> bool:
        """Return whether Spark will not run the batch again."""
        return self._disk.exists(f"{COMMITS}/{batch_id}")


class Query:
    """A stream that runs, until *stopping* is set."""

    def __init__(
        self,
        label: str,
        stream: Stream,
        *,
        checkpoint: Path,
        trigger: Trigger,
        stopping: Event,
        tell: Tell,
        compact: bool = False,
    ) -> None:
        self._label = label
        self._stream = stream
        self._checkpoint = Checkpoint(checkpoint)
        self._trigger = trigger
        self._stopping = stopping
        self._tell = tell
        self._compact = compact
        self._writing = Lock()
        self._query: StreamingQuery | None = None
        self._has_run = False
        self._ended = False
        self._error: BaseException | None = None
        self._failures = 0
        self._start_at = 0.0
        self._told = -1  # the last batch that was reported
        self._written: dict[int, int | None] = {}

    def look(self, now: float) -> bool:
        """Start the query when it is due, and report its progress; return whether it goes on.

        Raises:
            QueryFailedError: It has failed for good.
        """
        if self._ended:
            return False
        if self._query is None:
            if now >= self._start_at:
                self._start(now)
            return True
        active = self._query.isActive  # asked before its progress, so that nothing is missed
        self._tell_progress()
        if not active:
            error = self._error or self._query.exception()
            self._query = None
            if error is not None:
                self._fail(error, now)
            else:
                self._end()
        return not self._ended

    def _end(self) -> None:
        self._ended = True
        if self._told < 0 and not self._written:
            self._tell(f"{self._label}: nothing new, lag 0")

    def _start(self, now: float) -> None:
        self._error = None
        try:
            writer = self._stream.frame().writeStream.foreachBatch(self._write)
            writer = writer.option("checkpointLocation", str(self._checkpoint.path))
            if self._trigger.every_ms is None:
                writer = writer.trigger(availableNow=True)
            else:
                every = f"{self._trigger.every_ms} milliseconds"
                writer = writer.trigger(processingTime=every)
            self._query = writer.start()
        except Exception as error:
            # The first start fails because of what the user has to mend, such as an option. A
            # later one worked before, so the broker may be restarting: retry.
            if not is_java_gone(error) and not self._has_run:
                raise QueryFailedError(self._label, one_line(error)) from error
            self._fail(error, now)
        self._has_run = True

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; Spark calls it, in a thread of its own."""
        with self._writing:
            try:
                rows = self._stream.write(frame, self._batch(batch_id))
                if self._compact and batch_id % COMPACT_BATCHES == COMPACT_BATCHES - 1:
                    self._stream.compact()
                self._written[batch_id] = rows
            except BaseException as error:
                self._error = error
                raise

    def _batch(self, batch_id: int) -> Batch:
        if self._stopping.is_set():
            raise StoppingError
        end, start = self._checkpoint.end(batch_id), self._checkpoint.start(batch_id)
        return Batch(self._checkpoint.query_id(), batch_id, end, start)

    def _tell_progress(self) -> None:
        assert self._query is not None
        for progress in self._query.recentProgress:
            if progress.batchId > self._told and progress.batchId in self._written:
                self._told = progress.batchId
                self._failures = 0
                rows = self._written.pop(progress.batchId)
                self._tell(line(self._label, progress, rows))

    def _fail(self, error: BaseException, now: float) -> None:
        if is_java_gone(error):
            raise error  # no restart without a JVM
        if self._stopping.is_set():
            return  # a batch that was refused because of the stop: the next run repeats it
        if is_final(error) or self._failures >= RESTARTS_MAX:
            raise QueryFailedError(self._label, one_line(error)) from error
        wait = min(RESTART_S_MIN * 2**self._failures, RESTART_S_MAX)
        self._failures += 1
        self._start_at = now + wait
        self._tell(
            f"{self._label}: {one_line(error)}; restart {self._failures} of {RESTARTS_MAX} "
            f"in {wait:.0f} s"
        )

    def stop(self) -> None:
        """End it after the batch that is being written."""
        if self._query is None:
            return
        with self._writing:  # no batch starts after this one: `stopping` is set
            newest = max(self._written, default=-1)
        # Stopped before its commit, the batch would be repeated. That is harmless, but it
        # would have to be read again.
        deadline = monotonic() + COMMIT_S_MAX
        while newest >= 0 and not self._checkpoint.is_committed(newest):
            if not self._query.isActive or monotonic() >= deadline:
                break
            Event().wait(LOOK_S)
        self._query.stop()
        self._tell_progress()
