"""The format: which reader it makes of which options and schema."""

from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from braidmq.base.errors import ConfigError
from braidmq.spark.reading.batch import BatchReader, FilteringBatchReader
from braidmq.spark.reading.readers import StreamReader
from braidmq.spark.source import BraidSource, FilteringBraidSource
from braidmq.spark.values import OptionError
from braidmq.spark.writing.writers import BatchWriter, StreamWriter
from tests.unit.columnar.logs import plain_rows, write_log
from tests.unit.spark.sources import read_batch, source, varied

OFFSET = StructType([StructField("offset", LongType())])
VALUE = StructType([StructField("value", BinaryType())])
SINK = {"endpoint": "grpc://127.0.0.1:1", "apikey": "s3cret", "topic": "out"}


def test_the_format_has_a_name() -> None:
    """What users write."""
    assert {"braidmq"} == {BraidSource.name(), FilteringBraidSource.name()}


def test_readers_are_of_the_kind_that_was_registered() -> None:
    """With filters or without."""
    given = {"path": "data", "startingoffsets": "earliest"}

    assert BatchReader is type(BraidSource(given).reader(OFFSET))
    assert FilteringBatchReader is type(FilteringBraidSource(given).reader(OFFSET))
    assert StreamReader is type(BraidSource(given).streamReader(OFFSET))


def test_options_are_judged_as_soon_as_the_schema_is_asked_for() -> None:
    """That is, by load()."""
    with pytest.raises(OptionError, match="option pth"):
        source(Path("data"), pth="x").schema()
    with pytest.raises(OptionError, match="startingOffsets: 'latest' would lose rows"):
        source(Path("data")).streamReader(OFFSET)


def test_a_schema_of_the_user_is_what_is_read(tmp_path: Path) -> None:
    """As a projection."""
    path = write_log(tmp_path, varied(20))

    assert [{"offset": row["offset"]} for row in plain_rows(path)] == read_batch(path, OFFSET)


def test_writers_append_and_do_nothing_else() -> None:
    """What was published cannot be taken back; they are made without asking the broker."""
    found = BraidSource(SINK)

    assert BatchWriter is type(found.writer(VALUE, overwrite=False))
    assert StreamWriter is type(found.streamWriter(VALUE, overwrite=False))
    with pytest.raises(OptionError, match=r"option mode: 'overwrite' .*append"):
        found.writer(VALUE, overwrite=True)
    with pytest.raises(OptionError, match="option mode: 'overwrite'"):
        found.streamWriter(VALUE, overwrite=True)


def test_what_is_written_is_judged_when_it_is_planned() -> None:
    """Options and columns; no task is started for nothing."""
    with pytest.raises(OptionError, match="option topik"):
        BraidSource(SINK | {"topik": "x"}).writer(VALUE, overwrite=False)
    with pytest.raises(ConfigError, match="column value: is missing"):
        BraidSource(SINK).streamWriter(OFFSET, overwrite=False)
