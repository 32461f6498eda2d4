"""The numbers of a report: plain functions from frame to frame.

    counted     messages by topic, hour, size and headers; the next four derive from it
    volumes     for each topic: messages, bytes, payload percentiles, first and last
    hours       messages by hour
    deaths      dead letters by topic and reason
    claims      which topics have messages that name a schema
    fits        for each typed topic: rows, invalid rows, delays from event to acceptance
    delays      number of typed rows per delay

Hours are UTC. A percentile that lies between two values is interpolated.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users give it

from braidmq.base.schemas import BUILT_IN
from braidmq.broker.dead_letters import PREFIX, REASON_HEADER
from braidmq.columnar.decoding.unsealing import SCHEMA_HEADER
from braidmq.spark.pipelines.replay.inputs import header
from braidmq.spark.pipelines.rollup.windows import EVENT_TIME, TIME_MS_MAX

REASON_CHARS_MAX: Final = 120
"""A reason is a header, and any client may publish to a topic of dead letters."""

UNSAID: Final = "(none)"
HOUR_US: Final = 3_600_000_000
DELAY_BOUNDS_MS: Final = (0, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000)
"""The upper bounds of the buckets of delays; one more bucket holds the longer ones."""

DELAY_NAMES: Final = (
    "event time ahead",
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
    """Return the number of messages by topic, hour, size, schema and dead-letter reason."""
    # Whole numbers, because date_trunc would follow the session's time zone.
    hour = F.timestamp_micros(F.expr(f"unix_micros(timestamp) div {HOUR_US} * {HOUR_US}"))
    said = F.coalesce(F.substring(header(REASON_HEADER), 1, REASON_CHARS_MAX), F.lit(UNSAID))
    schema = header(SCHEMA_HEADER.decode())
    return rows.groupBy(
        "topic",
        hour.alias("hour"),
        F.length("value").cast("bigint").alias("size"),
        F.when(F.col("topic").startswith(PREFIX), said).alias("reason"),
        # Only known names: publishers may send any text, and each would make its own groups.
        F.when(schema.isin(list(BUILT_IN)), schema).alias("schema_id"),
    ).agg(
        F.count("*").alias("messages"),
        F.min("timestamp").alias("first"),
        F.max("timestamp").alias("last"),
    )


def volumes(alike: DataFrame) -> DataFrame:
    """Return the volume of each topic, from the rows of `counted`."""
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
    """Return the messages of each hour, from the rows of `counted`."""
    return alike.groupBy("hour").agg(F.sum("messages").alias("messages"))


def deaths(alike: DataFrame) -> DataFrame:
    """Return the dead letters by topic and reason, from the rows of `counted`."""
    dead = alike.where("reason is not null")
    return dead.groupBy("topic", "reason").agg(F.sum("messages").alias("messages"))


def claims(alike: DataFrame) -> DataFrame:
    """Return the topics whose messages name a built-in schema, from the rows of `counted`."""
    return alike.where("schema_id is not null").select("schema_id", "topic").distinct()


def claiming(rows: DataFrame, schema_id: str) -> DataFrame:
    """Return the rows whose headers name that schema."""
    return rows.where(header(SCHEMA_HEADER.decode()) == schema_id)


def fits(rows: DataFrame) -> DataFrame:
    """Return rows, invalid rows and delays by topic; no delays without an event time."""
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
    """Return the number of typed rows per delay, as an index into DELAY_NAMES."""
    delay_ms = _delay_ms(rows)
    bucket = F.lit(len(DELAY_BOUNDS_MS))
    for number, bound_ms in reversed(list(enumerate(DELAY_BOUNDS_MS))):
        bucket = F.when(delay_ms < bound_ms, number).otherwise(bucket)
    timed = rows.where(delay_ms.isNotNull())
    return timed.groupBy(bucket.alias("bucket")).agg(F.count("*").alias("rows"))


def _delay_ms(rows: DataFrame) -> Column:
    """Return the milliseconds from event to acceptance; null without an event time."""
    if EVENT_TIME not in rows.columns:
        return F.lit(None).cast("bigint")
    event_ms = F.col(EVENT_TIME)
    known = F.when(event_ms.between(0, TIME_MS_MAX), event_ms)
    return F.unix_millis("timestamp") - known
