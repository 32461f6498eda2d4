"""Columns as Spark types, and a user's choice of them."""

from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from braidmq.spark.options import ReadOptions
from braidmq.spark.projections import column_names, spark_schema
from braidmq.spark.reading.scans import full_schema
from braidmq.spark.values import OptionError

KAFKAS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int"
)
HEADERS = ",headers:array<struct<key:string,value:binary>>"
OURS = ",qos:int,priority:string,origin:string"


def test_columns_are_kafkas_in_kafkas_order() -> None:
    """Then ours."""
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
def test_arrow_types_come_back_exactly(options: ReadOptions) -> None:
    """Spark compares what is read with what was declared, type by type."""
    back = to_arrow_schema(spark_schema(options), timezone="UTC")

    assert full_schema(options).equals(back)


def test_a_projection_is_its_names_in_their_order() -> None:
    """Headers may be among them, though they were not asked for; so may nothing."""
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
def test_what_is_no_projection_is_refused(fields: list[StructField], problem: str) -> None:
    """With what there is instead."""
    with pytest.raises(OptionError, match=problem):
        column_names(StructType(fields), ReadOptions())
