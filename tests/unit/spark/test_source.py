"""The format: which readers and writers it makes from options and schemas."""

from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from braidmq.base.errors import ConfigError
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.readers import BatchReader, FilteringBatchReader, StreamReader
from braidmq.spark.reading.scans import full_schema
from braidmq.spark.source import BraidSource, FilteringBraidSource, column_names, spark_schema
from braidmq.spark.values import OptionError
from braidmq.spark.writing.writers import BatchWriter, StreamWriter
from tests.unit.columnar.logs import plain_rows, write_log
from tests.unit.spark.sources import read_batch, source, varied

OFFSET = StructType([StructField("offset", LongType())])
VALUE = StructType([StructField("value", BinaryType())])
SINK = {"endpoint": "grpc://127.0.0.1:1", "apikey": "s3cret", "topic": "out"}


def test_the_format_has_a_name() -> None:
    """It is the one that users pass to format()."""
    assert {"braidmq"} == {BraidSource.name(), FilteringBraidSource.name()}


def test_readers_are_of_the_kind_that_was_registered() -> None:
    """With filters or without."""
    given = {"path": "data", "startingoffsets": "earliest"}

    assert BatchReader is type(BraidSource(given).reader(OFFSET))
    assert FilteringBatchReader is type(FilteringBraidSource(given).reader(OFFSET))
    assert StreamReader is type(BraidSource(given).streamReader(OFFSET))


def test_options_are_checked_as_soon_as_the_schema_is_needed() -> None:
    """That is, by load()."""
    with pytest.raises(OptionError, match="option pth"):
        source(Path("data"), pth="x").schema()
    with pytest.raises(OptionError, match="startingOffsets: 'latest' would lose rows"):
        source(Path("data")).streamReader(OFFSET)


def test_a_schema_from_the_user_is_what_is_read(tmp_path: Path) -> None:
    """It is a projection."""
    path = write_log(tmp_path, varied(20))

    assert [{"offset": row["offset"]} for row in plain_rows(path)] == read_batch(path, OFFSET)


def test_a_schema_names_the_errors_where_senders_have_to_be_trusted() -> None:
    """Else a refused row could not be told from a trusted one."""
    options = ReadOptions(key_file=Path("key"), trusted=(b"k" * 32,))
    with_errors = StructType([*VALUE.fields, StructField("_error", StringType())])

    with pytest.raises(OptionError, match=r"option schema: 'value' leaves out _error.*; add"):
        column_names(VALUE, options)
    assert ["value", "_error"] == column_names(with_errors, options)
    assert ["value"] == column_names(VALUE, ReadOptions(key_file=Path("key")))


def test_writers_only_append() -> None:
    """Published messages cannot be replaced; the broker is not contacted yet."""
    found = BraidSource(SINK)

    assert BatchWriter is type(found.writer(VALUE, overwrite=False))
    assert StreamWriter is type(found.streamWriter(VALUE, overwrite=False))
    with pytest.raises(OptionError, match=r"option mode: 'overwrite' .*append"):
        found.writer(VALUE, overwrite=True)
    with pytest.raises(OptionError, match="option mode: 'overwrite'"):
        found.streamWriter(VALUE, overwrite=True)


def test_a_write_is_checked_when_it_is_planned() -> None:
    """Both options and columns, before any task is started."""
    with pytest.raises(OptionError, match="option topik"):
        BraidSource(SINK | {"topik": "x"}).writer(VALUE, overwrite=False)
    with pytest.raises(ConfigError, match="column value: is missing"):
        BraidSource(SINK).streamWriter(OFFSET, overwrite=False)


KAFKAS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int"
)
HEADERS = ",headers:array<struct<key:string,value:binary>>"
OURS = ",qos:int,priority:string,origin:string"


def test_columns_are_kafkas_in_kafkas_order() -> None:
    """Ours follow."""
    plain, headed = spark_schema(ReadOptions()), spark_schema(ReadOptions(headers=True))

    assert f"{KAFKAS}{OURS}>" == plain.simpleString()
    assert f"{KAFKAS}{HEADERS}{OURS}>" == headed.simpleString()


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(headers=True, schema_id="sensor.Temperature"),
        ReadOptions(schema_id="control.Command", key_file=Path("k")),
    ],
)
def test_arrow_types_survive_a_round_trip_exactly(options: ReadOptions) -> None:
    """Spark compares what is read with what was declared, type by type."""
    back = to_arrow_schema(spark_schema(options), timezone="UTC")

    assert full_schema(options).equals(back)


def test_a_projection_is_its_names_in_their_order() -> None:
    """They may include headers without includeHeaders, and may be empty."""
    whole = spark_schema(ReadOptions(headers=True))
    chosen = StructType([whole["offset"], whole["headers"], whole["topic"]])

    assert ["offset", "headers", "topic"] == column_names(chosen, ReadOptions())
    assert [] == column_names(StructType([]), ReadOptions())


BAD = [
    ([StructField("ofset", LongType())], "schema: 'ofset bigint' is not a column of braidmq"),
    ([StructField("offset", IntegerType())], "it is bigint: cast it after the read"),
    ([StructField("celsius", StringType())], "'celsius string' is not a column"),
    ([StructField("offset", LongType()), StructField("offset", LongType())], "twice"),
    ([StructField("offset", LongType(), nullable=False)], "leave NOT NULL out"),
]


@pytest.mark.parametrize(("fields", "problem"), BAD)
def test_an_invalid_projection_is_refused(fields: list[StructField], problem: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(OptionError, match=problem):
        column_names(StructType(fields), ReadOptions())
