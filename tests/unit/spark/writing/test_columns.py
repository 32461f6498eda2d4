"""Columns of a write: which are taken, and which are refused."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from braidmq.spark.options import WriteOptions
from braidmq.spark.writing.columns import UnusableColumnError, sink_columns
from tests.unit.spark.sources import struct

TEXT, RAW, INT = StringType(), BinaryType(), IntegerType()
HEADERS = ArrayType(struct(key=TEXT, value=RAW))
NOWHERE, SOMEWHERE = WriteOptions(), WriteOptions(topic="out")
AS_READ = struct(
    key=RAW,
    value=RAW,
    topic=TEXT,
    partition=INT,
    offset=LongType(),
    timestamp=TimestampType(),
    timestampType=INT,
    headers=HEADERS,
    qos=INT,
    priority=TEXT,
    origin=TEXT,
)
TEXT_HEADERS = ArrayType(struct(key=TEXT, value=TEXT))


@pytest.mark.parametrize(
    ("schema", "options", "taken"),
    [
        (struct(value=RAW), SOMEWHERE, ["value"]),
        (struct(topic=TEXT, value=TEXT), NOWHERE, ["value", "topic"]),
        (struct(topic=TEXT, value=TEXT), SOMEWHERE, ["value"]),
        (struct(key=RAW, value=RAW), SOMEWHERE, ["value", "key"]),
        (struct(key=TEXT, value=TEXT, priority=TEXT), SOMEWHERE, ["value", "key", "priority"]),
        (struct(value=TEXT, priority=ByteType()), SOMEWHERE, ["value", "priority"]),
        (struct(value=TEXT, priority=LongType()), SOMEWHERE, ["value", "priority"]),
        (struct(value=TEXT, headers=HEADERS), SOMEWHERE, ["value", "headers"]),
        (struct(value=TEXT, headers=TEXT_HEADERS), SOMEWHERE, ["value", "headers"]),
        (AS_READ, NOWHERE, ["value", "topic", "key", "priority", "headers"]),
    ],
)
def test_columns_are_those_of_kafkas_sink(
    schema: StructType, options: WriteOptions, taken: list[str]
) -> None:
    """And the priority; others are left out, so that what was read can be written."""
    assert taken == sink_columns(schema, options)


@pytest.mark.parametrize(
    ("schema", "options", "refused"),
    [
        (struct(topic=TEXT), SOMEWHERE, "value: is missing; "),
        (struct(VALUE=TEXT), SOMEWHERE, "value: is missing; "),
        (struct(value=TEXT), NOWHERE, "topic: is missing; add it, or give the option topic"),
        (struct(value=INT), SOMEWHERE, "value: is int; cast it: binary or string"),
        (struct(value=TEXT, topic=RAW), NOWHERE, "topic: is binary; cast it: string"),
        (struct(value=TEXT, key=INT), SOMEWHERE, "key: is int; "),
        (struct(value=TEXT, priority=DoubleType()), SOMEWHERE, "priority: is double; "),
        (struct(value=TEXT, headers=TEXT), SOMEWHERE, "headers: is string; "),
        (struct(value=TEXT, headers=MapType(TEXT, TEXT)), SOMEWHERE, "headers: is map<"),
        (
            struct(value=TEXT, headers=ArrayType(struct(k=TEXT, v=RAW))),
            SOMEWHERE,
            "headers: is array<struct<k:string,v:binary>>; cast it: array<struct<key:",
        ),
        (
            struct(value=TEXT, headers=ArrayType(struct(key=TEXT, value=INT))),
            SOMEWHERE,
            "headers: is array<",
        ),
        (struct(("value", TEXT), ("value", RAW)), SOMEWHERE, "value: appears twice; "),
    ],
)
def test_a_column_that_cannot_be_written_is_refused(
    schema: StructType, options: WriteOptions, refused: str
) -> None:
    """With its name, its type and the fix."""
    with pytest.raises(UnusableColumnError) as found:
        sink_columns(schema, options)

    assert str(found.value).startswith(f"column {refused}")


def test_a_column_that_is_left_out_may_be_anything() -> None:
    """The option wins over the column, whatever that is."""
    assert ["value"] == sink_columns(struct(value=TEXT, topic=INT), SOMEWHERE)
