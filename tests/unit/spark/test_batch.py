"""The batch reader, called as Spark calls it."""

import pickle
from pathlib import Path

from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition

from braidmq.spark.batch import BatchReader, FilteringBatchReader
from tests.unit.columnar.logs import plain_rows, write_log
from tests.unit.spark.sources import batch_reader, read_batch, read_parts, varied


def test_the_same_range_gives_the_same_rows(tmp_path: Path) -> None:
    """However often it is read."""
    path = write_log(tmp_path, varied(200))
    reader = batch_reader(path, includeHeaders=True, startingOffsets=20, endingOffsets=150)
    expected = [row for row in plain_rows(path) if 20 <= row["offset"] < 150]

    assert expected == read_parts(reader, reader.partitions())
    assert expected == read_parts(reader, reader.partitions())


def test_a_task_knows_the_filters(tmp_path: Path) -> None:
    """Spark ships the reader before it asks for the partitions, and both to tasks."""
    path = write_log(tmp_path, varied(100))
    reader = batch_reader(path)
    reader.pushFilters([EqualTo(("topic",), "a")])
    shipped = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own, as Spark does it
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301 - as above

    assert {"a"} == {row["topic"] for row in read_parts(shipped, parts)}


def test_no_part_at_all_is_no_row(tmp_path: Path) -> None:
    """Spark makes up a partition of its own then."""
    reader = batch_reader(write_log(tmp_path, varied(5)), subscribe="nowhere")

    assert [] == list(reader.partitions())
    assert [] == list(reader.read(InputPartition(None)))


def test_times_choose_rows(tmp_path: Path) -> None:
    """From the first to before the second; varied() is accepted one each millisecond."""
    path = write_log(tmp_path, varied(100))
    rows = read_batch(path, startingTimestamp=30, endingTimestamp=60, includeHeaders=True)

    assert plain_rows(path)[0]["timestamp"] < rows[0]["timestamp"]
    assert [row for row in plain_rows(path) if 31 <= row["offset"] < 61] == rows


def test_filters_are_only_taken_by_the_class_that_says_so() -> None:
    """Spark fails a reader that defines the method while the configuration is off."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    assert FilteringBatchReader.pushFilters is not DataSourceReader.pushFilters
