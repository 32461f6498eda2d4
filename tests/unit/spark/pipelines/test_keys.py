"""Keys for writes outside of a streaming query."""

from typing import cast

import pytest
from pyspark.sql import SparkSession

from braidmq.spark.pipelines.keys import batch_key


class Context:
    """What Spark's context keeps for a thread's jobs."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}
        self.sparkContext = self

    def setLocalProperty(  # noqa: N802 - Spark's name
        self, name: str, value: str | None
    ) -> None:
        self.properties.pop(name, None)
        if value is not None:
            self.properties[name] = value


def test_tasks_are_told_query_and_batch_for_as_long() -> None:
    """By the names that Spark itself uses; afterwards nothing is left, error or not."""
    context = Context()
    spark = cast("SparkSession", context)
    with batch_key(spark, "mine", 7):
        during = dict(context.properties)
    after = dict(context.properties)
    with pytest.raises(ZeroDivisionError), batch_key(spark, "mine", 8):
        raise ZeroDivisionError

    assert {"sql.streaming.queryId": "mine", "streaming.sql.batchId": "7"} == during
    assert {} == after == context.properties


def test_there_is_no_batch_zero() -> None:
    """The broker does not remember it for ever, so a repeat might be taken for new."""
    context = Context()
    with pytest.raises(AssertionError), batch_key(cast("SparkSession", context), "mine", 0):
        pass
