"""The input of a replay: a range of the log, or the files of a table, addressed by position.

A position is an id of the log, or the number of a row when the files of the table are read one
after another. The same positions always give the same rows: a table whose files have changed
since the replay began is refused.

Rows become messages again:

    row of                     goes to
    any topic                  its own topic
    a topic of dead letters    the topic or queue that dead-lettered it
    either, with a target      the target

The headers about its dead-lettering are dropped: the sink does not accept headers that only the
broker may set.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from braidmq.base.errors import BraidError, ConfigError
from braidmq.base.limits import MIB
from braidmq.broker.dead_letters import PREFIX, QUEUE_HEADER
from braidmq.spark.options import for_batch
from braidmq.spark.pipelines.tables import deltas
from braidmq.spark.pipelines.tables.tables import DELTA
from braidmq.spark.reading.offsets import batch_range
from braidmq.spark.reading.scans import Scan
from braidmq.spark.source import FORMAT

COLUMNS: Final = ("value", "topic", "key", "headers", "priority")
"""The columns that are replayed; all but the first may be missing."""

CHUNK_BYTES: Final = 64 * MIB
"""The most payload in one chunk, unless a single row is larger."""

_HIDDEN: Final = ("_", ".")
_UNKNOWN: Final = -1


class ChangedTableError(BraidError):
    """The files of a table have changed since the replay began."""

    def __init__(self, table: Path, problem: str) -> None:
        super().__init__(f"{table}: {problem}; replay it again, under another --name")
        self.table = table


class LogInput:
    """Messages of the log; *source* are the options of a batch read, with or without a range.

    Raises:
        ConfigError: An option cannot be used, or there is no log.
    """

    def __init__(self, source: Mapping[str, str]) -> None:
        options = for_batch({**source, "includeHeaders": "true"})
        self._scan = Scan.of(options, [])
        # Each chunk reads a range of its own, so the options for the whole range are dropped.
        self._source = {
            name: value
            for name, value in source.items()
            if not name.lower().startswith(("starting", "ending"))
        }
        self.first, self.end = batch_range(self._scan.log, options)
        self.end = max(self.first, self.end)

    def after(self, first: int, rows: int) -> int:
        """Return the position after at most *rows* rows; fewer if they are large."""
        return min(self._scan.advance(first, messages=rows, size=CHUNK_BYTES), self.end)

    def count(self, first: int, end: int) -> int:
        """Return how many rows there are from *first* to before *end*."""
        return sum(part.messages for part in self._scan.cut(first, end))

    def frame(self, spark: SparkSession, first: int, end: int) -> DataFrame:
        """Return the rows from *first* to before *end*, in order."""
        reader = spark.read.format(FORMAT).options(**self._source, includeHeaders="true")
        return reader.options(startingOffsets=first, endingOffsets=end).load()


class TableFile(NamedTuple):
    """A file of a table: its path below it, its rows, its size, and the size of its rows."""

    path: str
    rows: int
    file_bytes: int
    row_bytes: int


class TableInput:
    """The rows of Parquet files, in order."""

    def __init__(
        self, table: Path, files: list[TableFile], *, needs_topic: bool = False
    ) -> None:
        self.first = 0
        self.end = sum(file.rows for file in files)
        self._table = table
        self._files = files
        self._needed = ("value", "topic") if needs_topic else ("value",)
        self._ends = list(accumulate(file.rows for file in files))

    def after(self, first: int, rows: int) -> int:
        """Return the position after at most *rows* rows; fewer if they are large."""
        room = CHUNK_BYTES
        at = first
        for file, _, count in self._spans(first, min(first + rows, self.end)):
            fitting = min(count, room * file.rows // max(file.row_bytes, 1))
            at += fitting
            room -= fitting * file.row_bytes // file.rows
            if fitting < count:
                break
        return max(at, min(first + 1, self.end))  # one row at least, however large

    def count(self, first: int, end: int) -> int:
        """Return how many rows there are from *first* to before *end*."""
        return end - first

    def frame(self, spark: SparkSession, first: int, end: int) -> DataFrame:
        """Return the rows from *first* to before *end*, in order."""
        found = [
            self._read(file, start, count) for file, start, count in self._spans(first, end)
        ]
        return spark.createDataFrame(pa.concat_tables(found, promote_options="default"))

    def _spans(self, first: int, end: int) -> Iterator[tuple[TableFile, int, int]]:
        """Yield the files that cover a range of positions: file, first row, number of rows."""
        number = bisect_right(self._ends, first)
        while first < end:
            file, file_end = self._files[number], self._ends[number]
            count = min(file_end, end) - first
            if count:
                yield file, first - (file_end - file.rows), count
            first, number = first + count, number + 1

    def _read(self, file: TableFile, start: int, count: int) -> pa.Table:
        path = self._table / file.path
        # Tables replace their files and never edit them, so the size is check enough; to hash
        # each file would read it twice.
        if _size(path) != file.file_bytes:
            raise ChangedTableError(self._table, f"{file.path} is another file, or gone")
        with pq.ParquetFile(path) as opened:
            names = _columns(path, opened.schema_arrow, self._needed)
            groups, skipped = _groups(opened.metadata, start, count)
            found = opened.read_row_groups(groups, columns=names)
        return _plain(found.slice(start - skipped, count))


Input = LogInput | TableInput


def _groups(metadata: Any, start: int, count: int) -> tuple[list[int], int]:  # noqa: ANN401 - pyarrow has no types
    """Return the row groups that hold the rows, and how many rows come before them."""
    groups, before, at = [], 0, 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if at + rows <= start:
            before = at + rows
        elif at < start + count:
            groups.append(number)
        at += rows
    return groups, before


def check_table(table: Path, format_: str) -> None:
    """Check the format of a table: read as plain files, a Delta table shows deleted rows.

    Raises:
        ConfigError: The table has the other format.
    """
    is_delta = _is_delta(table)
    if table.is_dir() and is_delta != (format_ == DELTA):
        other = "a Delta table" if is_delta else "not a Delta table"
        raise ConfigError(
            "--format", f"{table} is {other}; leave --format out to have it detected"
        )


def table_files(table: Path) -> list[TableFile]:
    """Return the files of a table, ordered by their lowest offset, if they have offsets.

    Raises:
        ConfigError: There are no files, or they cannot be replayed.
    """
    if not table.is_dir():
        raise ConfigError("--table", f"{table} is not a directory")
    found = [_file(table, path) for path in _paths(table)]
    if not found:
        raise ConfigError("--table", f"there are no Parquet files in {table}")
    return [file for _, file in sorted(found)]


def _is_delta(table: Path) -> bool:
    return (table / deltas.LOG).is_dir()


def _paths(table: Path) -> list[Path]:
    if _is_delta(table):
        return [Path(uri) for uri in DeltaTable(table).file_uris()]
    return [
        path
        for path in table.rglob("*.parquet")
        if not any(part.startswith(_HIDDEN) for part in path.relative_to(table).parts)
    ]


def _file(table: Path, path: Path) -> tuple[int, TableFile]:
    try:
        with pq.ParquetFile(path) as opened:
            metadata = opened.metadata
            _columns(path, opened.schema_arrow, ("value",))
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError("--table", f"{path} cannot be read: {error}") from None
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = sum(group.total_byte_size for group in groups)
    name = path.relative_to(table).as_posix()
    file = TableFile(name, metadata.num_rows, path.stat().st_size, row_bytes)
    return _first_offset(metadata, groups), file


def _first_offset(metadata: Any, groups: list[Any]) -> int:  # noqa: ANN401 - pyarrow has no types
    """Return the lowest offset in a file, from its footer."""
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    if "offset" not in names or not groups:
        return _UNKNOWN
    statistics = groups[0].column(names.index("offset")).statistics
    known = statistics is not None and statistics.has_min_max
    return statistics.min if known and isinstance(statistics.min, int) else _UNKNOWN


def _columns(path: Path, schema: pa.Schema, needed: Sequence[str]) -> list[str]:
    for name in needed:
        if name not in schema.names:
            fix = "; give --to-topic" if name == "topic" else ""
            there = ", ".join(schema.names)
            problem = f"{path} has no column {name!r}, there are: {there}{fix}"
            raise ConfigError("--table", problem)
    return [name for name in COLUMNS if name in schema.names]


def _plain(rows: pa.Table) -> pa.Table:
    """Return rows without dictionary columns, which Spark does not accept."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            column = rows.column(number).cast(field.type.value_type)
            rows = rows.set_column(number, field.name, column)
    return rows


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def header(name: str) -> Column:
    """Return the value of a row's header as text; null if it has none of that name."""
    named = F.filter("headers", lambda one: one["key"] == name)
    return F.try_element_at(named, F.lit(1))["value"].cast("string")


def outgoing(rows: DataFrame, to_topic: str | None = None) -> DataFrame:
    """Return rows as the sink takes them; rows without a topic need *to_topic*."""
    names = [name for name in COLUMNS if name in rows.columns]
    target = _target(names, to_topic).alias("topic")
    return rows.select(target, *(name for name in names if name != "topic"))


def _target(names: Sequence[str], to_topic: str | None) -> Column:
    if to_topic is not None:
        return F.lit(to_topic)
    own = F.col("topic")
    if "headers" not in names:
        return own
    died_in = F.when(own.startswith(PREFIX), header(QUEUE_HEADER))
    return F.coalesce(died_in, own)
