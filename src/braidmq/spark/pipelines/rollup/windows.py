"""Readings by sensor and minute: plain functions from frame to frame.

    typed rows --> judged --> too far behind the newest time so far? --> merged into windows
                     |                        |
                     v                        v
                  invalid                    late

A reading is late when an earlier message in the log has an event time that is later by more
than the watermark allows. So the log alone decides, and not how it was cut into micro-batches:
a second run over the same log gives the same windows. A minute is closed when its end is behind
the watermark; readings that arrive for it after that are late.

A schema of readings has these fields, and may have others:

    sensor_id      string     the sensor
    timestamp_ms   integer    the event time, in milliseconds since 1970
    ...            number     the value: the only other number, or the one that the user names

To find the newest event time before each row, rows are grouped into blocks of ids: the driver
compares the newest times of blocks, executors compare the rows within a block.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users give it

from braidmq.base.errors import ConfigError
from braidmq.columnar import TypedSchema
from braidmq.spark.pipelines.archive import DAY

SENSOR: Final = "sensor_id"
EVENT_TIME: Final = "timestamp_ms"
MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last moment that all readers of the table can show."""

SENSOR_CHARS_MAX: Final = 1_024
"""A sensor's name is stored with each open minute, and is the key of its messages."""

BLOCK_BITS: Final = 16
"""A block has 2 to this power ids: the driver collects one row for each block, and an executor
sorts one block at a time."""

LATE: Final = "late: behind the watermark"
NEVER_MS: Final = -TIME_MS_MAX
"""Earlier than every event time, by more than any watermark."""

WINDOW_SCHEMA: Final = (
    "sensor_id string, minute_ms bigint, count bigint, min double, max double, sum double, "
    "latest struct<ms:bigint,offset:bigint,value:double>"
)
"""What is stored of a sensor's minute while it is open."""

_NUMBERS: Final = frozenset({"number", "integer"})
_KEPT: Final = ("key", "value", "topic", "offset", "timestamp", "headers")


class Reading(NamedTuple):
    """A schema of readings: its id, and the field that holds what was measured."""

    schema_id: str
    value: str


def reading_of(schema: TypedSchema, value: str | None = None) -> Reading:
    """Return the reading in *schema*; *value* names the number, if there are several.

    Raises:
        ConfigError: Its payloads are not readings.
    """
    kinds = {field.name: field.kind for field in schema.fields}
    if kinds.get(SENSOR) != "string" or kinds.get(EVENT_TIME) != "integer":
        problem = (
            f"{schema.id!r} is not a schema of readings: it needs a string {SENSOR!r} and "
            f"an integer {EVENT_TIME!r}"
        )
        raise ConfigError("schema", problem)
    numbers = [name for name, kind in kinds.items() if kind in _NUMBERS and name != EVENT_TIME]
    if value is not None and value not in numbers:
        problem = f"{value!r} is not a number of {schema.id!r}; there are: {_listed(numbers)}"
        raise ConfigError("value", problem)
    if value is None and len(numbers) != 1:
        problem = (
            f"{schema.id!r} has {len(numbers)} numbers besides {EVENT_TIME!r}, and a reading "
            f"is one; name it with --value: {_listed(numbers)}"
        )
        raise ConfigError("schema", problem)
    return Reading(schema.id, value or numbers[0])


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


@dataclass(frozen=True)
class Rules:
    """Bounds on the event time of a reading: how late, and how far ahead of its arrival."""

    watermark_ms: int
    ahead_ms: int = DAY_MS


class Block(NamedTuple):
    """A summary of the rows of a block: how many, how many invalid, and their times."""

    number: int
    rows: int
    invalid: int
    oldest_ms: int | None
    newest_ms: int | None


def judged(rows: DataFrame, reading: Reading, rules: Rules) -> DataFrame:
    """Return typed rows as readings; `reason` is null, or says why a row is invalid."""
    sensor, moment, number = F.col(SENSOR), F.col(EVENT_TIME), F.col(reading.value)
    latest_ms = F.unix_millis("timestamp") + rules.ahead_ms
    reasons = (
        (
            sensor.isNull() | moment.isNull() | number.isNull(),
            f"{SENSOR}, {EVENT_TIME} or {reading.value} is null",
        ),
        (
            F.length(sensor) > SENSOR_CHARS_MAX,
            f"{SENSOR} has more than {SENSOR_CHARS_MAX} characters",
        ),
        (
            ~moment.between(0, TIME_MS_MAX),
            f"{EVENT_TIME} is not a moment between 1970 and 9999",
        ),
        (
            moment > latest_ms,
            f"{EVENT_TIME} is more than {rules.ahead_ms} ms ahead of its arrival",
        ),
    )
    return rows.select(
        *(name for name in rows.columns if name in _KEPT),
        sensor.alias("sensor_id"),
        moment.alias("event_ms"),
        number.cast("double").alias("reading"),
        F.coalesce("_error", *(F.when(broken, text) for broken, text in reasons)).alias(
            "reason"
        ),
        F.shiftright("offset", BLOCK_BITS).alias("block"),
    )


def blocks_of(readings: DataFrame) -> list[Block]:
    """Return the blocks of judged rows, in order; runs a job."""
    valid_ms = F.when(F.isnull("reason"), F.col("event_ms"))
    found = readings.groupBy("block").agg(
        F.count("*"), F.count("reason"), F.min(valid_ms), F.max(valid_ms)
    )
    return sorted(Block(*row) for row in found.collect())


def later(one: int | None, other: int | None) -> int | None:
    """Return the later of two moments; None is earlier than any."""
    return max((moment for moment in (one, other) if moment is not None), default=None)


def floors_of(blocks: Iterable[Block], newest_ms: int | None) -> dict[int, int | None]:
    """Return the newest event time before each block; *newest_ms* is that before the first."""
    found = {}
    for block in blocks:
        found[block.number] = newest_ms
        newest_ms = later(newest_ms, block.newest_ms)
    return found


def may_be_late(
    blocks: Iterable[Block], floors: Mapping[int, int | None], rules: Rules
) -> bool:
    """Tell whether any row can be late; usually none can, which saves a sort of all rows."""
    for block in blocks:
        newest_ms = later(floors[block.number], block.newest_ms)
        if block.oldest_ms is None or newest_ms is None:
            continue
        if block.oldest_ms < newest_ms - rules.watermark_ms:
            return True
    return False


def with_late(readings: DataFrame, floors: Mapping[int, int | None], rules: Rules) -> DataFrame:
    """Return judged rows, with LATE as the reason of the late ones."""
    spark = readings.sparkSession
    known = spark.createDataFrame(list(floors.items()), "block bigint, floor_ms bigint")
    inside = (
        Window.partitionBy("block")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    valid_ms = F.when(F.isnull("reason"), F.col("event_ms"))
    # `greatest` skips nulls, and NEVER_MS is never null: the first row of all is not late.
    newest_ms = F.greatest(F.col("floor_ms"), F.max(valid_ms).over(inside), F.lit(NEVER_MS))
    is_late = valid_ms < newest_ms - rules.watermark_ms
    return (
        readings.join(F.broadcast(known), "block")
        .withColumn("reason", F.coalesce("reason", F.when(is_late, LATE)))
        .select(readings.columns)
    )


def windows_of(readings: DataFrame) -> DataFrame:
    """Return each valid reading as a window of its own, with WINDOW_SCHEMA."""
    number = F.col("reading")
    return readings.where("reason is null").select(
        "sensor_id",
        F.expr(f"event_ms div {MINUTE_MS} * {MINUTE_MS}").alias("minute_ms"),
        F.lit(1).cast("bigint").alias("count"),
        number.alias("min"),
        number.alias("max"),
        number.alias("sum"),
        F.struct(F.col("event_ms").alias("ms"), F.col("offset"), number.alias("value")).alias(
            "latest"
        ),
    )


def merged(windows: DataFrame) -> DataFrame:
    """Return one window per sensor and minute; `latest` goes by event time, then by id."""
    return windows.groupBy("sensor_id", "minute_ms").agg(
        F.sum("count").alias("count"),
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.sum("sum").alias("sum"),
        F.max("latest").alias("latest"),
    )


def is_closed(watermark_ms: int | None) -> Column:
    """Return the condition that a window's minute has ended before the watermark."""
    if watermark_ms is None:
        return F.lit(False)  # noqa: FBT003 - a literal of SQL
    return F.col("minute_ms") + MINUTE_MS <= watermark_ms


def as_table(windows: DataFrame) -> DataFrame:
    """Return windows as the rows of the table, each with its day in UTC."""
    # The sum may overflow or be rounded; the mean still has to lie between min and max.
    mean = F.least(F.greatest(F.col("sum") / F.col("count"), "min"), "max")
    return windows.select(
        "sensor_id",
        F.timestamp_millis("minute_ms").alias("minute"),
        "count",
        "min",
        "max",
        mean.alias("mean"),
        F.col("latest.value").alias("last"),
        F.date_from_unix_date(F.expr(f"int(minute_ms div {DAY_MS})")).alias(DAY),
    )


def as_messages(table: DataFrame) -> DataFrame:
    """Return the table's rows as JSON messages, with the sensor as the key."""
    minute_ms = F.unix_millis("minute").alias("minute_ms")
    numbers = ("count", "min", "max", "mean", "last")
    return table.select(
        F.col("sensor_id").alias("key"),
        F.to_json(F.struct("sensor_id", minute_ms, *numbers)).alias("value"),
    )
