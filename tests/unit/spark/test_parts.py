"""Parts of a read on their way to tasks."""

import pickle

from pyspark.sql.datasource import InputPartition

from braidmq.columnar import Part
from braidmq.spark.parts import LogPart, as_partitions


def test_a_part_is_its_range() -> None:
    """A partition to Spark, and the same one behind the wire."""
    (found,) = as_partitions([Part(3, 9, messages=5, payload_bytes=77)])

    assert isinstance(found, InputPartition)
    assert LogPart(3, 9) == found
    assert found == pickle.loads(pickle.dumps(found))  # noqa: S301 - our own, as Spark does it
