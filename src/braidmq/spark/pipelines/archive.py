"""`archive`: every message, in files by day and topic, with the columns of the source.

    date=2026-11-16/topic_dir=sensors%2Ftemp~9f2c41d07a35be18/batch-0000000012-0000.parquet

The day is that of `timestamp`, in UTC. `topic` is a column of the files, in full length. The
directory therefore uses another name: a reader that finds `topic=` in a path and `topic` in the
file fails, or takes the escaped name in the path for the topic.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from braidmq.spark.pipelines.runs.runs import Batch, Plan, Run, Stream, Tell
from braidmq.spark.pipelines.tables.layouts import Key
from braidmq.spark.pipelines.tables.staging import packed
from braidmq.spark.pipelines.tables.tables import Table

NAME: Final = "archive"
DAY: Final = "date"
DAY_US: Final = 86_400_000_000
KEYS: Final = (Key(DAY), Key("topic", "topic_dir", kept=True))


def with_day(messages: DataFrame) -> DataFrame:
    """Return *messages* with the day of each, in UTC whatever the session's time zone is."""
    days = F.floor(F.unix_micros("timestamp") / F.lit(DAY_US)).cast("int")
    return messages.withColumn(DAY, F.date_from_unix_date(days))


def archive(plan: Plan, tell: Tell) -> None:
    """Run the pipeline.

    Raises:
        BraidError: It cannot start or continue; what is archived stays.
    """
    run = Run(NAME, plan, tell)
    table = Table(plan.out, plan.format, KEYS)

    def frame() -> DataFrame:
        return packed(with_day(run.messages(includeHeaders="true")))

    def write(rows: DataFrame, batch: Batch) -> int | None:
        return table.write(rows, batch).rows

    run.go(Stream(frame, write, tables=[table]))
