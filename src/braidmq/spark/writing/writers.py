"""The writers, as Spark calls them: rows on executors, commit and abort on the driver.

The key of a streaming batch is Spark's: query and batch ids, which a task finds in its local
properties, and which are the same when the batch is run again. A plain batch write is nobody's
repeat, so its key is made up.
"""

from collections.abc import Iterator
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
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
"""The sink of a query that has one alone."""


def streaming_ids() -> tuple[str, int] | None:
    """Return the ids of the query and the batch that this task is for; None: a plain batch."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    return None if query is None or batch is None else (query, int(batch))


class BatchWriter(DataSourceArrowWriter):
    """Writes one frame; in `foreachBatch` as a part of the streaming batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._sink = Sink(options, schema)
        # Spark pickles the writer into the tasks and the commit, so they have one key.
        self._fresh = SinkKey(uuid4().hex, NO_SINK, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition; on executors.

        Raises:
            OptionError: There is no sinkId where one is needed, or one where it is of no use.
        """
        ids, sink_id = streaming_ids(), self._sink.options.sink_id
        if ids is not None and sink_id is None:
            problem = (
                "is missing: the writes of one foreachBatch share its ids, so that a write is "
                "not told apart from another, nor from its own repeat after a crash"
            )
            fix = "give each of them a name of its own that stays"
            raise OptionError("sinkId", "", problem, fix)
        if ids is None and sink_id is not None:
            problem = (
                "is of no use: this is not a streaming batch, or another thread than that "
                "of foreachBatch"
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
