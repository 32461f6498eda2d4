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
NO_TOPIC, TO_TOPIC = WriteOptions(), WriteOptions(topic="out")
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
        (struct(value=RAW), TO_TOPIC, ["value"]),
        (struct(topic=TEXT, value=TEXT), NO_TOPIC, ["value", "topic"]),
        (struct(topic=TEXT, value=TEXT), TO_TOPIC, ["value"]),
        (struct(key=RAW, value=RAW), TO_TOPIC, ["value", "key"]),
        (struct(key=TEXT, value=TEXT, priority=TEXT), TO_TOPIC, ["value", "key", "priority"]),
        (struct(value=TEXT, priority=ByteType()), TO_TOPIC, ["value", "priority"]),
        (struct(value=TEXT, priority=LongType()), TO_TOPIC, ["value", "priority"]),
        (struct(value=TEXT, headers=HEADERS), TO_TOPIC, ["value", "headers"]),
        (struct(value=TEXT, headers=TEXT_HEADERS), TO_TOPIC, ["value", "headers"]),
        (AS_READ, NO_TOPIC, ["value", "topic", "key", "priority", "headers"]),
    ],
)
def test_columns_are_those_of_kafkas_sink(
    schema: StructType, options: WriteOptions, taken: list[str]
) -> None:
    """And the priority; others are ignored, so that rows can be written as they were read."""
    assert taken == sink_columns(schema, options)


@pytest.mark.parametrize(
    ("schema", "options", "refused"),
    [
        (struct(topic=TEXT), TO_TOPIC, "value: is missing; "),
        (struct(VALUE=TEXT), TO_TOPIC, "value: is missing; "),
        (struct(value=TEXT), NO_TOPIC, "topic: is missing; add it, or give the option topic"),
        (struct(value=INT), TO_TOPIC, "value: is int; cast it: binary or string"),
        (struct(value=TEXT, topic=RAW), NO_TOPIC, "topic: is binary; cast it: string"),
        (struct(value=TEXT, key=INT), TO_TOPIC, "key: is int; "),
        (struct(value=TEXT, priority=DoubleType()), TO_TOPIC, "priority: is double; "),
        (struct(value=TEXT, headers=TEXT), TO_TOPIC, "headers: is string; "),
        (struct(value=TEXT, headers=MapType(TEXT, TEXT)), TO_TOPIC, "headers: is map<"),
        (
            struct(value=TEXT, headers=ArrayType(struct(k=TEXT, v=RAW))),
            TO_TOPIC,
            "headers: is array<struct<k:string,v:binary>>; cast it: array<struct<key:",
        ),
        (
            struct(value=TEXT, headers=ArrayType(struct(key=TEXT, value=INT))),
            TO_TOPIC,
            "headers: is array<",
        ),
        (struct(("value", TEXT), ("value", RAW)), TO_TOPIC, "value: appears twice; "),
    ],
)
def test_a_column_that_cannot_be_written_is_refused(
    schema: StructType, options: WriteOptions, refused: str
) -> None:
    """The error has its name, its type and the fix."""
    with pytest.raises(UnusableColumnError) as found:
        sink_columns(schema, options)

    assert str(found.value).startswith(f"column {refused}")


def test_a_column_that_is_ignored_may_have_any_type() -> None:
    """The option topic wins over the column, whatever its type."""
    assert ["value"] == sink_columns(struct(value=TEXT, topic=INT), TO_TOPIC)
