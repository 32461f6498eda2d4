"""Keys for writes to topics outside a streaming query: the same key publishes only once.

The sink takes its key from the local properties that Spark sets for every task of a streaming
batch. A pipeline that writes batches of its own, and may have to repeat one after a crash, sets
them here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from braidmq.spark.writing.writers import BATCH_PROPERTY, QUERY_PROPERTY


@contextmanager
def batch_key(spark: SparkSession, query: str, batch: int) -> Iterator[None]:
    """Make the writes of this thread part of a batch; each needs a `sinkId` of its own.

    Batch numbers start at 1 and grow: the broker does not remember number 0 for ever.
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
