"""The partition of a read that Spark ships from the driver to one task."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from braidmq.columnar import Part
from braidmq.spark.reading.offsets import NO_LIMITS, Limits


@dataclass
class LogPart(InputPartition):
    """The offsets from `start` to before `end`, except the rows that `limits` exclude."""

    start: int
    end: int
    limits: Limits = NO_LIMITS


def as_partitions(parts: list[Part], limits: Limits) -> list[InputPartition]:
    """Return *parts* as the partitions that Spark expects of a reader."""
    return [LogPart(p.start, p.end, limits.within(p.start, p.end)) for p in parts]
