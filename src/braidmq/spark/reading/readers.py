"""The readers that Spark calls: offsets and partitions on the driver, rows on executors.

Spark keeps the offset of a streaming query in its checkpoint; the reader keeps none. The
options about the start apply to a new query only, so a batch that is planned again is the same
batch.

The stream reader reports progress to the cursor of a group. It learns that a batch is done when
Spark asks for the batch after it, and from `commit`, which Spark calls one batch late and never
for the last one. The listener in `cursors` reports the last one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from braidmq.columnar import Part
from braidmq.spark.brokers import patiently
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.cursors import Cursor
from braidmq.spark.reading.filters import Narrowing
from braidmq.spark.reading.offsets import (
    KEY,
    NO_LIMITS,
    Limits,
    Offset,
    StreamOffset,
    batch_limits,
    batch_range,
    limits_of,
    lose,
    stream_start,
)
from braidmq.spark.reading.scans import Scan

QUIET_IDS_MAX: Final = 1_000
"""A range of at most this many ids that holds no message makes no micro-batch. The broker's own
records have ids too, and moving a cursor writes one: without this bound, every batch of a group
would cause the next one."""


@dataclass
class LogPartition(InputPartition):
    """The offsets from `start` to before `end`, except the rows that `limits` exclude."""

    start: int
    end: int
    limits: Limits = NO_LIMITS


def as_partitions(parts: list[Part], limits: Limits) -> list[InputPartition]:
    """Return the parts of a scan as the partitions that Spark sends to its tasks."""
    return [LogPartition(p.start, p.end, limits.within(p.start, p.end)) for p in parts]


class BatchReader(DataSourceReader):
    """Reads what is durable when the query is planned; accepts no filters."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._narrowing = Narrowing(options)
        self._scan = Scan.of(options, names)

    def partitions(self) -> list[InputPartition]:
        """Cut the range; on the driver, once per query."""
        return patiently(self._cut)

    def _cut(self) -> list[InputPartition]:
        log = self._scan.log
        start, end = self._narrowing.range(batch_range(log, self._options), log)
        limits = batch_limits(log, self._options)
        return as_partitions(self._scan.cut(start, end), limits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; on executors."""
        if isinstance(partition, LogPartition):  # Spark invents an empty one when there is none
            yield from self._scan.read(partition.start, partition.end, partition.limits)


class FilteringBatchReader(BatchReader):
    """The batch reader with filter pushdown.

    It is a separate class because Spark fails a reader that defines `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters on topic, offset and timestamp; on the driver, while planning."""
        left = self._narrowing.take(filters)
        # Spark pickles the reader for its tasks before it asks for the partitions, so the scan
        # has to be narrowed now.
        self._scan.topics = self._narrowing.topics
        self._scan.pattern = self._narrowing.pattern
        self._scan.pattern_only_helps = self._narrowing.pattern_only_helps
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from the offset of the query, and only messages that are durable."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._scan = Scan.of(options, names)
        self._cursor = None if options.group_id is None else Cursor(options)
        self._initial: int | None = None
        self._ends_with_the_present = False
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        """Return where a new query begins; on the driver, and more than once."""
        if self._initial is None:
            self._initial = patiently(self._first_offset)
        floors = limits_of(self._options).floors
        return StreamOffset.initial(self._initial, floors).to_json()

    def _first_offset(self) -> int:
        start = stream_start(self._scan.log, self._options)
        if self._cursor is not None:
            return self._cursor.open(start)
        assert start is not None, "a start at latest needs a cursor that pins it"
        return start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of one micro-batch; on the driver."""
        if self._options.trigger_messages is not None:
            return ReadMaxRows(self._options.trigger_messages)
        if self._options.trigger_bytes is not None:
            return ReadMaxBytes(self._options.trigger_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that the query ends with the messages there are now; on the driver."""
        # The end is looked up at the first latestOffset, not here: a query that resumes after a
        # crash repeats its last batch first, which may take long, and messages that arrive
        # meanwhile should be included.
        self._ends_with_the_present = True

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return where the next micro-batch ends; on the driver."""
        begin = StreamOffset.from_json(start)
        if self._cursor is not None:
            self._cursor.report(begin.id)
        end = patiently(lambda: self._next_end(begin.id, limit))
        return begin.followed_by(end).to_json()

    def _next_end(self, begin: int, limit: ReadLimit) -> int:
        latest = self._scan.log.offsets().latest
        if begin > latest:
            problem = f"the log ends at {latest}, before the offset {begin}"
            lose(self._scan.log, self._options, f"{problem}; it may be another log")
            return begin
        if self._ends_with_the_present:
            if self._target is None:
                self._target = latest
            latest = max(self._target, begin)
        if latest - begin <= QUIET_IDS_MAX and not self._scan.has_messages(begin, latest):
            return begin
        return min(self._limited(begin, latest, limit), latest)

    def _limited(self, begin: int, latest: int, limit: ReadLimit) -> int:
        if isinstance(limit, ReadMaxRows):
            return self._scan.advance(begin, messages=max(limit.max_rows, 1))
        if isinstance(limit, ReadMaxBytes):
            return self._scan.advance(begin, size=max(limit.max_bytes, 1))
        return latest

    def reportLatestOffset(self) -> Offset:
        """Return the end of the durable log, for the query's progress; on the driver."""
        return {KEY: patiently(self._scan.log.offsets).latest}

    def commit(self, end: Offset) -> None:
        """Tell the cursor what is done; on the driver."""
        if self._cursor is not None:
            self._cursor.report(StreamOffset.from_json(end).id)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut a micro-batch; on the driver."""
        last = StreamOffset.from_json(end)
        begin, limits = last.batch_from(StreamOffset.from_json(start))
        if begin > last.id:
            # Batch 0 is repeated from a checkpoint of an older version, which does not record
            # where the batch began, and retention has since moved the log's start past its end.
            problem = f"the offsets before {last.id} are lost: the log begins at {begin}"
            lose(self._scan.log, self._options, problem)
            return []
        parts = patiently(lambda: self._scan.cut(begin, last.id))
        return as_partitions(parts, limits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; on executors."""
        assert isinstance(partition, LogPartition)
        yield from self._scan.read(partition.start, partition.end, partition.limits)
