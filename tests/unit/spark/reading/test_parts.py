"""Parts of a read on their way to tasks."""

import pickle

from pyspark.sql.datasource import InputPartition

from braidmq.columnar import Part
from braidmq.spark.reading.offsets import Limits
from braidmq.spark.reading.parts import LogPart, as_partitions


def test_a_part_is_its_range() -> None:
    """A partition to Spark, and the same one behind the wire; with the limits that matter."""
    limits = Limits({"a": 3, "b": 4}, {"a": 8, "b": 9})
    (found,) = as_partitions([Part(3, 9, messages=5, payload_bytes=77)], limits)

    assert isinstance(found, InputPartition)
    assert LogPart(3, 9, Limits({"b": 4}, {"a": 8})) == found
    assert found == pickle.loads(pickle.dumps(found))  # noqa: S301 - our own, as Spark does it
