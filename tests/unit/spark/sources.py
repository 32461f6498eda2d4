"""Logs with every kind of record, and reads as Spark performs them, but without a JVM."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, StructField, StructType
from structlog.testing import capture_logs

from braidmq.spark.reading.readers import StreamReader
from braidmq.spark.source import FilteringBraidSource
from tests.unit.columnar.logs import NOTE, Row, dead_letter, message

MIB = 1024 * 1024
TOPICS = ("a", "b", "sensors/temp", "köln/straße-ß", "データ")


def varied(count: int, first: int = 0) -> list[bytes]:
    """Make messages on several topics, with and without headers, and other records."""
    bodies = []
    for number in range(first, first + count):
        topic, payload = TOPICS[number % 5], b"%d" % number * (number % 7)
        kept = {"key": f"k{number}", "größe": "ü" * (number % 3)} if number % 3 else {}
        if number % 11 == 10:
            bodies.append(NOTE)
        elif number % 13 == 12:
            bodies.append(dead_letter(f"dlq.{topic}", payload, number * 1_000, kept))
        else:
            bodies.append(
                message(topic, payload, number * 1_000, priority=number % 4, kept=kept)
            )
    return bodies


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


def source(path: Path | None, **options: object) -> FilteringBraidSource:
    given = options if path is None else {"path": path, **options}
    return FilteringBraidSource({name.lower(): str(value) for name, value in given.items()})


def batch_reader(
    path: Path | None, schema: StructType | None = None, **options: object
) -> DataSourceReader:
    found = source(path, **options)
    return found.reader(found.schema() if schema is None else schema)


def stream_reader(path: Path | None, **options: object) -> StreamReader:
    found = source(path, **options)
    reader = found.streamReader(found.schema())
    assert isinstance(reader, StreamReader)
    return reader


def read_parts(
    reader: DataSourceReader | StreamReader, parts: Iterable[InputPartition]
) -> list[Row]:
    return [row for part in parts for row in rows_of(reader.read(part))]


def read_batch(
    path: Path | None,
    schema: StructType | None = None,
    filters: Iterable[Filter] = (),
    **options: object,
) -> list[Row]:
    """Plan and perform a batch read as Spark does."""
    reader = batch_reader(path, schema, **options)
    reader.pushFilters(list(filters))
    return read_parts(reader, reader.partitions())


@contextmanager
def logged_losses() -> Iterator[list[str]]:
    """Yield a list that will hold the losses that the block has logged, all as warnings."""
    problems: list[str] = []
    with capture_logs() as lines:
        yield problems
    assert {("offsets_lost", "warning")} >= {
        (line["event"], line["log_level"]) for line in lines
    }
    problems += [line["problem"] for line in lines]


def struct(*columns: tuple[str, DataType], **named: DataType) -> StructType:
    """A schema of these columns, in this order."""
    return StructType([StructField(*column) for column in (*columns, *named.items())])
