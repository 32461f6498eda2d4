"""The batch reader: planned on the driver once per query, read on executors."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.filters import Narrowing
from braidmq.spark.reading.offsets import batch_range, limits_of
from braidmq.spark.reading.parts import LogPart, as_partitions
from braidmq.spark.reading.scans import Scan
from braidmq.spark.runtime.patience import patiently


class BatchReader(DataSourceReader):
    """Reads what is durable when the query is planned; accepts no filters."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._narrowing = Narrowing(options)
        topics, pattern = self._narrowing.topics, self._narrowing.pattern
        self._scan = Scan(options, names, topics, pattern)

    def partitions(self) -> list[InputPartition]:
        """Cut the range; runs on the driver."""
        return patiently(self._cut)

    def _cut(self) -> list[InputPartition]:
        log = self._scan.log
        start, end = self._narrowing.range(batch_range(log, self._options), log)
        return as_partitions(self._scan.cut(start, end), limits_of(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; runs on executors."""
        if isinstance(partition, LogPart):  # Spark invents an empty one when there is none
            yield from self._scan.read(partition.start, partition.end, partition.limits)


class FilteringBatchReader(BatchReader):
    """The batch reader with filter pushdown.

    It is a separate class because Spark fails a reader that defines `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters on topic, offset and timestamp; runs on the driver, while planning."""
        left = self._narrowing.take(filters)
        # Spark pickles the reader for its tasks before it asks for the partitions, so the scan
        # has to be narrowed now.
        self._scan.topics = self._narrowing.topics
        self._scan.pattern = self._narrowing.pattern
        self._scan.pattern_only_helps = self._narrowing.pattern_only_helps
        return left
