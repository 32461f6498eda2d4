"""Rows become messages again, in a real session."""

import pytest
from pyspark.sql import SparkSession

from braidmq.spark.pipelines.replay.inputs import outgoing
from tests.integration.spark.conftest import spark  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

SCHEMA = (
    "value binary, topic string, key binary, headers array<struct<key:string,value:binary>>, "
    "priority string, offset bigint"
)
DEATH = [
    {"key": "deathReason", "value": b"expired"},
    {"key": "deathQueue", "value": b"w\xc3\xb6"},
]
ROWS = [
    (b"1", "a", b"k", [{"key": "key", "value": b"k"}], "high", 1),
    (b"2", "dlq.w", None, DEATH, "low", 2),
    (b"3", "dlq.b", None, None, "low", 3),
    (b"4", "b", None, DEATH, "low", 4),
]


def test_rows_go_to_their_topic_and_dead_letters_to_their_queue(spark: SparkSession) -> None:  # noqa: F811 - the fixture
    """A dead letter without a queue stays one; an explicit target applies to every row."""
    rows = spark.createDataFrame(ROWS, SCHEMA)
    home, redirected = outgoing(rows), outgoing(rows, "x")
    bare = outgoing(rows.select("value"), "x")

    assert ["a", "wö", "dlq.b", "b"] == [row.topic for row in home.collect()]
    assert ["x"] * 4 == [row.topic for row in redirected.collect()]
    assert (
        ["topic", "value", "key", "headers", "priority"] == home.columns == redirected.columns
    )
    assert [row[3] for row in ROWS] == [
        row.headers and [header.asDict() for header in row.headers] for row in home.collect()
    ]
    assert [("x", b"1"), ("x", b"2"), ("x", b"3"), ("x", b"4")] == [
        (row.topic, bytes(row.value)) for row in bare.collect()
    ]
