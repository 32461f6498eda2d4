"""The state of a rollup between two micro-batches: the windows and the watermark of a batch.

    windows/0000000012/state.json     the batch, its counts and its watermark
    windows/0000000012/*.staged       its windows as Parquet: those that the batch has closed,
                                      and those that are open after it
    windows/0000000012.closing        the same windows with a later watermark: all are closed

A batch is computed from the state before it, into a directory that one rename makes valid. From
then on the directory is the batch, however often it is repeated. Killed before the rename, it
is computed again from the same state and the same rows. The two newest states are kept: Spark
may repeat the last batch, which starts from the state before it, and no older one.
"""

import shutil
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.rollup.windows import MINUTE_MS, NEVER_MS, WINDOW_SCHEMA, is_closed
from braidmq.spark.pipelines.tables.layouts import Layout
from braidmq.spark.pipelines.tables.staging import stage
from braidmq.wal.disk import Disk, replace_file

STATE: Final = "state.json"
CLOSING: Final = ".closing"
UNFINISHED: Final = "_"
"""Prefix of a directory that is still being written."""

KEPT: Final = 2
"""States that are kept: that of the last batch, and the one that it started from."""


class StateError(BraidError):
    """The windows of a batch are missing, or belong to another query."""

    def __init__(self, directory: Path, batch_id: int, problem: str) -> None:
        super().__init__(
            f"{directory}: batch {batch_id}: {problem}; restore the whole checkpoint, or begin "
            "again with an empty --checkpoint and --out"
        )
        self.batch_id = batch_id


class State(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"end": "place"},  # as on disk
):
    """A batch: its query, what became of its rows, and its windows at its end."""

    schema_id: str
    value: str
    """The field that holds the measurement."""
    query_id: str
    end: str
    """Where the batch ends in the log."""
    watermark_ms: int | None = None
    rows: int = 0
    late: int = 0
    invalid: int = 0
    closed: int = 0
    """Windows that this batch has closed."""
    open: int = 0
    held: int = 0
    """Readings in the open windows."""
    files: list[str] = []
    """The windows of the batch, closed and open."""


class Count(NamedTuple):
    """A number of windows, and of the readings in them."""

    windows: int
    readings: int

    def plus(self, found: pa.Table) -> "Count":
        """Return the sum with the windows in *found*."""
        readings = pc.sum(found.column("count")).as_py() or 0
        return Count(self.windows + len(found), self.readings + readings)


class Windows:
    """Windows on disk; *names* excludes the files that killed tasks have left."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.directory = directory
        self.names = names
        self._files = [directory / name for name in names]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return them as a frame with WINDOW_SCHEMA."""
        if not self._files:
            return spark.createDataFrame([], WINDOW_SCHEMA)
        return spark.read.schema(WINDOW_SCHEMA).parquet(*map(str, self._files))

    def count(self, watermark_ms: int | None) -> tuple[Count, Count]:
        """Return how many a watermark closes, and how many stay open."""
        closed = still_open = Count(0, 0)
        limit_ms = NEVER_MS if watermark_ms is None else watermark_ms
        for file in self._files:
            found = pq.read_table(file, columns=["minute_ms", "count"])
            ended = pc.less_equal(pc.add(found.column("minute_ms"), MINUTE_MS), limit_ms)
            closed = closed.plus(found.filter(ended))
            still_open = still_open.plus(found.filter(pc.invert(ended)))
        return closed, still_open

    def last_end_ms(self) -> int:
        """Return the end of the latest minute; 0 if there is none."""
        ends = [
            pc.max(pq.read_table(file, columns=["minute_ms"]).column(0)).as_py()
            for file in self._files
        ]
        return max((end + MINUTE_MS for end in ends), default=0)


class States:
    """The states below a directory, which one process writes at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._disk = Disk(directory)

    def prepare(self) -> None:
        """Make the directory; remove what a killed run left unfinished."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left)

    def last(self) -> int | None:
        """Return the newest batch that has a state."""
        return max(self._numbers(), default=None)

    def find(self, batch_id: int) -> State | None:
        """Return the state that a batch left."""
        return self._read(f"{_name(batch_id)}/{STATE}")

    def closing(self, batch_id: int) -> State | None:
        """Return the state of a batch after all of its windows were closed."""
        return self._read(_name(batch_id) + CLOSING)

    def before(self, batch_id: int) -> State | None:
        """Return the state that a batch starts from; None if it is the first batch.

        Raises:
            StateError: The state is missing.
        """
        if batch_id == 0:
            return None
        found = self.closing(batch_id - 1) or self.find(batch_id - 1)
        if found is None:
            raise StateError(self.directory, batch_id, "the windows before it are missing")
        return found

    def windows(self, batch_id: int, state: State) -> Windows:
        """Return the windows of a batch with this state."""
        return Windows(self.directory / _name(batch_id), state.files)

    def open_windows(self, spark: SparkSession, batch_id: int) -> DataFrame:
        """Return the windows that are open before a batch.

        Raises:
            StateError: They are missing.
        """
        state = self.before(batch_id)
        if state is None:
            return spark.createDataFrame([], WINDOW_SCHEMA)
        found = self.windows(batch_id - 1, state).frame(spark)
        return found.where(~is_closed(state.watermark_ms))

    def stage(self, windows: DataFrame) -> Windows:
        """Write the windows of a batch into a directory that is not valid yet."""
        directory = self.directory / f"{UNFINISHED}{uuid4().hex}"
        directory.mkdir()
        staged = stage(windows, directory, Layout())
        return Windows(directory, [file.staged for file in staged.files])

    def keep(self, batch_id: int, state: State, staged: Windows) -> None:
        """Make *state* and these windows the durable result of the batch."""
        disk = Disk(staged.directory)
        replace_file(disk, STATE, msgspec.json.encode(state))
        self._disk.rename(staged.directory.name, _name(batch_id))
        self._disk.sync_dir("")

    def keep_closing(self, batch_id: int, state: State) -> None:
        """Record durably that all windows of the batch are closed."""
        replace_file(self._disk, _name(batch_id) + CLOSING, msgspec.json.encode(state))

    def forget_before(self, batch_id: int) -> None:
        """Remove the states that are not needed once a batch is done."""
        for number in self._numbers():
            if number <= batch_id - KEPT:
                (self.directory / (_name(number) + CLOSING)).unlink(missing_ok=True)
                shutil.rmtree(self.directory / _name(number))

    def _numbers(self) -> list[int]:
        names = self._disk.list_dir("")
        return [int(name) for name in names if name.isdigit()]

    def _read(self, path: str) -> State | None:
        try:
            return msgspec.json.decode((self.directory / path).read_bytes(), type=State)
        except FileNotFoundError:
            return None


def _name(batch_id: int) -> str:
    return f"{batch_id:010}"
