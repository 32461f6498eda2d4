"""The writers that Spark calls: rows on executors, commit and abort on the driver.

The key of a streaming batch is its query id and batch id. A task finds them in its local
properties, and they are the same when the batch is repeated. Spark never repeats a plain batch
write, so such a write gets a random key, unless its caller sets one with `batch_key`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from braidmq.columnar.flight.requests import SinkKey
from braidmq.spark.options import WriteOptions
from braidmq.spark.values import OptionError
from braidmq.spark.writing.sink import Sink, Staged, staged_of

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"

NO_SINK: Final = ""
"""The sink id of a query with a single sink."""


def streaming_ids() -> tuple[str, int] | None:
    """Return the ids of the query and the batch of this task; None for a plain batch."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    return None if query is None or batch is None else (query, int(batch))


@contextmanager
def batch_key(spark: SparkSession, query: str, batch: int) -> Iterator[None]:
    """Give the writes of this thread the key of a batch, so that repeating them is harmless.

    For a pipeline that writes batches of its own and may have to repeat one after a crash. Each
    write needs a `sinkId`. Batch numbers start at 1 and grow: the broker does not remember
    number 0 forever.
    """
    assert batch > 0
    context = spark.sparkContext
    context.setLocalProperty(QUERY_PROPERTY, query)
    context.setLocalProperty(BATCH_PROPERTY, str(batch))
    try:
        yield
    finally:
        for name in (QUERY_PROPERTY, BATCH_PROPERTY):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes it


class BatchWriter(DataSourceArrowWriter):
    """Writes one frame; in `foreachBatch` as a part of the streaming batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink(options, schema)
        # Made once here: Spark pickles the writer, so tasks and commit share the key.
        self._fresh = SinkKey(uuid4().hex, NO_SINK, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; on executors.

        Raises:
            OptionError: There is no sinkId where one is needed, or one where it has no effect.
        """
        ids, sink_id = streaming_ids(), self._sink.options.sink_id
        if ids is not None and sink_id is None:
            problem = (
                "is missing: the writes of one foreachBatch share its ids, so the broker "
                "could not tell a write from another, nor from its own repeat after a crash"
            )
            fix = "give each write a fixed name of its own"
            raise OptionError("sinkId", "", problem, fix)
        if ids is None and sink_id is not None:
            problem = (
                "has no effect: this is not a streaming batch, or not the thread of "
                "foreachBatch"
            )
            fix = "leave it out of a plain write; write in the thread of foreachBatch"
            raise OptionError("sinkId", sink_id, problem, fix)
        stage, rows = self._sink.stage(iterator)
        return Staged(stage, rows, *(ids or (None, None)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the stages messages; on the driver."""
        self._sink.commit(self._key(staged_of(messages)), messages)

    def _key(self, staged: list[Staged]) -> SinkKey:
        query, batch = staged[0].query, staged[0].batch
        if query is None or batch is None:
            return self._fresh
        assert self._sink.options.sink_id is not None
        return SinkKey(query, self._sink.options.sink_id, batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the stages; on the driver."""
        self._sink.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition of a micro-batch; on executors."""
        ids = streaming_ids()
        assert ids is not None, "Spark tells a task neither query nor batch"
        return Staged(*self._sink.stage(iterator), *ids)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the stages messages, unless the batch is there already; on the driver."""
        query = staged_of(messages)[0].query
        assert query is not None
        key = SinkKey(query, self._sink.options.sink_id or NO_SINK, batchId)
        self._sink.commit(key, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - as Spark calls it
        """Drop the stages of an attempt; on the driver."""
        self._sink.abort(messages)
