"""A part of a read as Spark carries it from the driver to a task."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from braidmq.columnar import Part


@dataclass
class LogPart(InputPartition):
    """The offsets from `start` to before `end`."""

    start: int
    end: int


def as_partitions(parts: list[Part]) -> list[InputPartition]:
    """Return parts as what Spark expects of a reader."""
    return [LogPart(part.start, part.end) for part in parts]
