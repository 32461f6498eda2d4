"""The writers, called as Spark calls them: pickled, run in tasks, committed elsewhere."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from braidmq.spark.options import for_write
from braidmq.spark.values import OptionError
from braidmq.spark.writing.sink import Staged
from braidmq.spark.writing.writers import (
    BATCH_PROPERTY,
    QUERY_PROPERTY,
    BatchWriter,
    StreamWriter,
    batch_key,
)
from tests.unit.spark.running import Running
from tests.unit.spark.sources import struct

SCHEMA = struct(value=StringType())


@contextmanager
def task(query: str | None = None, batch: int | None = None) -> Iterator[None]:
    """Run the block as a task of that streaming batch, or of none."""
    context = TaskContext._getOrCreate()  # noqa: SLF001 - what a worker does
    known = {} if query is None else {QUERY_PROPERTY: query, BATCH_PROPERTY: str(batch)}
    context._localProperties = known  # noqa: SLF001 - what a worker does
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)  # noqa: SLF001 - what a worker does


def batch_writer(broker: Running, topic: str, **more: str) -> BatchWriter:
    return BatchWriter(for_write(broker.options(topic=topic, **more)), SCHEMA)


def stream_writer(broker: Running, topic: str, **more: str) -> StreamWriter:
    return StreamWriter(for_write(broker.options(topic=topic, **more)), SCHEMA)


def staged(writer: BatchWriter | StreamWriter, *values: str) -> Staged:
    batches = iter([pa.record_batch({"value": pa.array(values, pa.string())})])
    return writer.write(batches)


def shipped(writer: BatchWriter) -> BatchWriter:
    found = pickle.loads(pickle.dumps(writer))  # noqa: S301 - our own, and what Spark does
    assert isinstance(found, BatchWriter)
    return found


def test_a_plain_write_has_one_key_wherever_it_is_shipped(broker: Running) -> None:
    """So a repeated commit is recognised; another write of the same rows has another key."""
    writer = batch_writer(broker, "plain")
    with task():
        first = [staged(shipped(writer), "a"), staged(shipped(writer))]
        again = staged(writer, "a")
        other = staged(batch_writer(broker, "plain"), "a")
    shipped(writer).commit([*first])
    shipped(writer).commit([again])
    batch_writer(broker, "plain").commit([other])

    assert ["a", "a"] == broker.values("plain")


def test_a_streaming_batch_is_recognised_by_its_ids(broker: Running) -> None:
    """Spark makes a new writer for the commit; a repeat has other tasks but the same ids."""
    for values in (["a", "b"], ["b"]):
        with task("query", 7):
            tasks = [staged(stream_writer(broker, "stream"), value) for value in values]
        stream_writer(broker, "stream").commit([*tasks], 7)
    with task("query", 8):
        later = staged(stream_writer(broker, "stream"), "c")
    stream_writer(broker, "stream").commit([later], 8)

    assert ["a", "b", "c"] == broker.values("stream")


def test_an_empty_streaming_batch_is_recorded(broker: Running) -> None:
    """A task without rows reports the ids as well."""
    with task("quiet", 0):
        nothing = staged(stream_writer(broker, "quiet"))
    stream_writer(broker, "quiet").commit([nothing], 0)
    with task("quiet", 0):
        something = staged(stream_writer(broker, "quiet"), "a")
    stream_writer(broker, "quiet").commit([something], 0)

    assert Staged(None, 0, "quiet", 0) == nothing
    assert [] == broker.values("quiet")


def test_two_writes_of_one_foreach_batch_are_told_apart(broker: Running) -> None:
    """By their sinkId; a repeat of either is recognised."""
    for _ in range(2):
        for sink_id in ("one", "two"):
            writer = batch_writer(broker, "both", sinkId=sink_id)
            with task("foreach", 3):
                tasks = [staged(writer, sink_id)]
            writer.commit([*tasks])

    assert ["one", "two"] == broker.values("both")


def test_a_sink_id_is_part_of_a_streams_key(broker: Running) -> None:
    """So one query may write the same batch to two sinks."""
    for sink_id in ("one", "two"):
        with task("named", 7):
            done = staged(stream_writer(broker, "named", sinkId=sink_id), sink_id)
        stream_writer(broker, "named", sinkId=sink_id).commit([done], 7)

    assert ["one", "two"] == broker.values("named")


def test_a_write_in_foreach_batch_needs_a_sink_id(broker: Running) -> None:
    """It could not be told from its sibling, nor from its own repeat."""
    writer = batch_writer(broker, "refused")
    with task("foreach", 3), pytest.raises(OptionError, match="option sinkId: '' is missing"):
        staged(writer, "a")


def test_a_sink_id_outside_foreach_batch_is_refused(broker: Running) -> None:
    """Its user expects that repeats are recognised, and they would not be."""
    writer = batch_writer(broker, "refused", sinkId="s")
    with task(), pytest.raises(OptionError, match=r"option sinkId: 's' .*thread of foreachB"):
        staged(writer, "a")


@pytest.mark.parametrize("streaming", [True, False])
def test_an_aborted_write_drops_its_stages(broker: Running, streaming: bool) -> None:
    """Spark passes the results of the tasks that finished."""
    kept = sorted((broker.path / "stages").iterdir())
    if streaming:
        with task("aborted", 0):
            done = staged(stream_writer(broker, "aborted"), "a")
        stream_writer(broker, "aborted").abort([done, None], 0)
    else:
        with task():
            done = staged(batch_writer(broker, "aborted"), "a")
        batch_writer(broker, "aborted").abort([done, None])

    assert kept == sorted((broker.path / "stages").iterdir())
    assert [] == broker.values("aborted")


class Context:
    """A fake of Spark's context, which keeps properties for a thread's jobs."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self.sparkContext = self

    def setLocalProperty(  # noqa: N802 - Spark's name
        self, name: str, value: str | None
    ) -> None:
        self.properties.pop(name, None)
        if value is not None:
            self.properties[name] = value


def test_tasks_see_query_and_batch_within_the_block() -> None:
    """Under Spark's own names; nothing is left afterwards, error or not."""
    context = Context()
    spark = cast("SparkSession", context)
    with batch_key(spark, "mine", 7):
        during = dict(context.properties)
    after = dict(context.properties)
    with pytest.raises(ZeroDivisionError), batch_key(spark, "mine", 8):
        raise ZeroDivisionError

    assert {"sql.streaming.queryId": "mine", "streaming.sql.batchId": "7"} == during
    assert {} == after == context.properties


def test_batch_zero_is_refused() -> None:
    """The broker does not remember it for ever, so a repeat might look new."""
    context = Context()
    with pytest.raises(AssertionError), batch_key(cast("SparkSession", context), "mine", 0):
        pass
