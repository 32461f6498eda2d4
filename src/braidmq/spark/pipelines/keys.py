"""Keys for writes to topics outside of a streaming query: the same key, the same messages once.

The sink takes its key from what Spark tells every task of a streaming batch. Whoever writes a
batch of his own, and may have to write it again after a crash, says it here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from braidmq.spark.writing.writers import BATCH_PROPERTY, QUERY_PROPERTY


@contextmanager
def batch_key(spark: SparkSession, query: str, batch: int) -> Iterator[None]:
    """Let the writes of this thread be those of a batch; each needs a `sinkId` of its own.

    Batches are numbered upwards, from 1: the broker does not keep number 0 for ever.
    """
    assert batch > 0
    context = spark.sparkContext
    context.setLocalProperty(QUERY_PROPERTY, query)
    context.setLocalProperty(BATCH_PROPERTY, str(batch))
    try:
        yield
    finally:
        for name in (QUERY_PROPERTY, BATCH_PROPERTY):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # so it is forgotten
