"""The numbers of a report: plain functions from frame to frame.

    counted     messages by topic, hour, size and what their headers say: the rest is of it
    volumes     for each topic: messages, bytes, the usual and the large payload, first and last
    hours       messages by hour
    deaths      dead letters by topic and reason
    claims      which topics have messages that name a schema
    fits        for each typed topic: rows, how many do not fit, how long they were on their way
    delays      how many typed rows were how long on their way

Hours are UTC. A percentile that lies between two values is between them in proportion.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users give it

from braidmq.base.schemas import BUILT_IN
from braidmq.broker.dead_letters import PREFIX, REASON_HEADER
from braidmq.columnar.decoding.unsealing import SCHEMA_HEADER
from braidmq.spark.pipelines.readings import EVENT_TIME
from braidmq.spark.pipelines.replay.rows import header
from braidmq.spark.pipelines.rollup.windows import TIME_MS_MAX

REASON_CHARS_MAX: Final = 120
"""A reason is a header, and anybody may publish to a topic of dead letters."""

UNSAID: Final = "(none)"
HOUR_US: Final = 3_600_000_000
DELAY_BOUNDS_MS: Final = (0, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000)
"""Delays are counted below the first of them, below the second, ... and above the last."""

DELAY_NAMES: Final = (
    "before they happened",
    "below 0.1 s",
    "below 1 s",
    "below 10 s",
    "below 1 minute",
    "below 10 minutes",
    "below 1 hour",
    "longer",
)
assert len(DELAY_NAMES) == len(DELAY_BOUNDS_MS) + 1


def counted(rows: DataFrame) -> DataFrame:
    """Return how many messages are alike in topic, hour, size, schema and reason of death."""
    hour = F.timestamp_micros(F.expr(f"unix_micros(timestamp) div {HOUR_US} * {HOUR_US}"))
    said = F.coalesce(F.substring(header(REASON_HEADER), 1, REASON_CHARS_MAX), F.lit(UNSAID))
    schema = header(SCHEMA_HEADER.decode())
    return rows.groupBy(
        "topic",
        hour.alias("hour"),
        F.length("value").cast("bigint").alias("size"),
        F.when(F.col("topic").startswith(PREFIX), said).alias("reason"),
        F.when(schema.isin(list(BUILT_IN)), schema).alias("schema_id"),
    ).agg(
        F.count("*").alias("messages"),
        F.min("timestamp").alias("first"),
        F.max("timestamp").alias("last"),
    )


def volumes(alike: DataFrame) -> DataFrame:
    """Return what each topic has, of `counted`."""
    summed = alike.groupBy("topic").agg(
        F.sum("messages").alias("messages"),
        F.sum(F.col("size") * F.col("messages")).alias("bytes"),
        F.percentile("size", [0.5, 0.99], F.col("messages")).alias("percentiles"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )
    return summed.select(
        "topic",
        "messages",
        "bytes",
        (F.col("bytes") / F.col("messages")).alias("mean_bytes"),
        F.col("percentiles")[0].alias("p50_bytes"),
        F.col("percentiles")[1].alias("p99_bytes"),
        "first",
        "last",
    )


def hours(alike: DataFrame) -> DataFrame:
    """Return how many messages each hour has, of `counted`."""
    return alike.groupBy("hour").agg(F.sum("messages").alias("messages"))


def deaths(alike: DataFrame) -> DataFrame:
    """Return how many dead letters each topic has for each reason, of `counted`."""
    dead = alike.where("reason is not null")
    return dead.groupBy("topic", "reason").agg(F.sum("messages").alias("messages"))


def claims(alike: DataFrame) -> DataFrame:
    """Return the topics with messages that name a built-in schema, of `counted`."""
    return alike.where("schema_id is not null").select("schema_id", "topic").distinct()


def claiming(rows: DataFrame, schema_id: str) -> DataFrame:
    """Return the rows whose message names that schema; *rows* have headers."""
    return rows.where(header(SCHEMA_HEADER.decode()) == schema_id)


def fits(rows: DataFrame) -> DataFrame:
    """Return how each topic's typed rows fit, and their delays if they say their time."""
    delay_ms = _delay_ms(rows)
    summed = rows.groupBy("topic").agg(
        F.count("*").alias("rows"),
        F.count("_error").alias("invalid"),
        F.percentile(delay_ms, [0.5, 0.99]).alias("percentiles"),
        F.max(delay_ms).alias("max_delay_ms"),
    )
    return summed.select(
        "topic",
        "rows",
        "invalid",
        F.col("percentiles")[0].alias("p50_delay_ms"),
        F.col("percentiles")[1].alias("p99_delay_ms"),
        "max_delay_ms",
    )


def delays(rows: DataFrame) -> DataFrame:
    """Return how many typed rows have a delay of each of DELAY_NAMES, by its number."""
    delay_ms = _delay_ms(rows)
    bucket = F.lit(len(DELAY_BOUNDS_MS))
    for number, bound_ms in reversed(list(enumerate(DELAY_BOUNDS_MS))):
        bucket = F.when(delay_ms < bound_ms, number).otherwise(bucket)
    timed = rows.where(delay_ms.isNotNull())
    return timed.groupBy(bucket.alias("bucket")).agg(F.count("*").alias("rows"))


def _delay_ms(rows: DataFrame) -> Column:
    """Return the milliseconds from the event to its acceptance; null where it says no time."""
    if EVENT_TIME not in rows.columns:
        return F.lit(None).cast("bigint")
    event_ms = F.col(EVENT_TIME)
    known = F.when(event_ms.between(0, TIME_MS_MAX), event_ms)
    return F.unix_millis("timestamp") - known
