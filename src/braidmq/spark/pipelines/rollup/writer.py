"""Write the micro-batches of a rollup: compute once, then write to the table and the topic.

    1. late and invalid rows go to quarantine
    2. the windows of the batch are made durable: see `states`
    3. the closed windows go to the table, and as messages to the topic

Each step may be repeated after a crash: quarantine and table recognise the batch, durable
windows are not computed again, and the broker recognises the key of the batch's messages.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's users give it

from braidmq.base.counts import counted
from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.archive import COMPACT_BATCHES, DAY, with_day
from braidmq.spark.pipelines.rollup.states import State, StateError, States, Windows
from braidmq.spark.pipelines.rollup.windows import (
    Reading,
    Rules,
    as_messages,
    as_table,
    blocks_of,
    floors_of,
    is_closed,
    judged,
    later,
    may_be_late,
    merged,
    windows_of,
    with_late,
)
from braidmq.spark.pipelines.runs.runs import Batch, Tell
from braidmq.spark.pipelines.tables.layouts import plain_name
from braidmq.spark.pipelines.tables.tables import PARQUET, Table
from braidmq.spark.pipelines.typed import OF_MESSAGES, QUARANTINE
from braidmq.spark.source import FORMAT
from braidmq.spark.writing.writers import batch_key

TOPIC_PREFIX: Final = "rollup."
CLOSING: Final = "closing"
"""The writer name of the minutes that `close` closes after the last batch."""


class LostReadingsError(BraidError):
    """Rows of a batch are neither in windows nor in quarantine; it is not written."""

    def __init__(self, batch_id: int, state: State, counted: int) -> None:
        super().__init__(
            f"batch {batch_id}: of {state.rows} rows {counted} were counted, {state.late} were "
            f"late and {state.invalid} invalid, which does not add up; if --watermark or "
            "--ahead has changed since it was killed, run it once with the old value"
        )
        self.batch_id = batch_id


@dataclass(frozen=True)
class Goal:
    """What a rollup computes, and where it goes; without a *sink* only to the table."""

    reading: Reading
    rules: Rules
    out: Path
    format: str = PARQUET
    sink: Mapping[str, str] | None = None  # options of the format
    compact: bool = False

    @property
    def topic(self) -> str:
        """The topic that closed minutes go to."""
        return TOPIC_PREFIX + self.reading.schema_id


class Rollup:
    """Writes the batches of one query, with their states below *directory*."""

    def __init__(self, goal: Goal, directory: Path, tell: Tell) -> None:
        self._goal = goal
        self._tell = tell
        self._states = States(directory)
        self._states.prepare()
        place = goal.out / plain_name(goal.reading.schema_id)
        self._table = Table(place, goal.format, (DAY,))
        self._quarantine = Table(goal.out / QUARANTINE, goal.format, (DAY,))

    def write(self, frame: DataFrame, batch: Batch) -> int:
        """Write a micro-batch of typed rows; return how many rows it had.

        Raises:
            LostReadingsError: Rows are missing from what would be written.
            StateError: The windows belong to another query.
        """
        number = batch.batch_id
        state = self._states.find(number)
        if state is None:
            state = self._compute(frame, batch)
        elif (state.query_id, state.place) != (batch.query_id, batch.place):
            problem = f"it was computed up to {state.place}, by query {state.query_id}"
            raise StateError(self._states.directory, number, problem)
        if state.closed:
            windows = self._states.windows(number, state).frame(frame.sparkSession)
            self._publish(windows.where(is_closed(state.watermark_ms)), batch)
        self._states.forget_before(number)
        if self._goal.compact and number % COMPACT_BATCHES == COMPACT_BATCHES - 1:
            self.compact()
        self._tell(
            f"rollup: batch {number}: {state.late} late, {state.invalid} invalid, "
            f"{counted(state.closed, 'minute')} of sensors closed, {state.open:,} open"
        )
        return state.rows

    def compact(self) -> None:
        """Merge the small files of the tables."""
        for table in (self._table, self._quarantine):
            if table.out.is_dir():
                table.compact()

    def close(self, spark: SparkSession) -> None:
        """Close the minutes that are still open; later readings for them are late."""
        number = self._states.last()
        state = None if number is None else self._states.find(number)
        if number is None or state is None or not state.open:
            return
        if self._states.closing(number) is None:
            end_ms = self._states.windows(number, state).last_end_ms()
            closed = msgspec.structs.replace(
                state, watermark_ms=end_ms, closed=state.open, open=0, held=0
            )
            self._states.keep_closing(number, closed)
        self.finish_closing(spark)

    def finish_closing(self, spark: SparkSession) -> None:
        """Write the minutes that were closed after the last batch, if there are any."""
        number = self._states.last()
        closing = None if number is None else self._states.closing(number)
        if number is None or closing is None:
            return
        state = self._states.find(number)
        assert state is not None
        windows = self._states.windows(number, state).frame(spark)
        left = windows.where(~is_closed(state.watermark_ms))
        self._publish(left, Batch(state.query_id, number, state.place), CLOSING)
        self._tell(f"rollup: closed the last {counted(closing.closed, 'minute')} of sensors")

    def _compute(self, frame: DataFrame, batch: Batch) -> State:
        number, rules = batch.batch_id, self._goal.rules
        before = self._states.before(number)
        self._check_schema(before, number)
        readings = judged(frame, self._goal.reading, rules)
        blocks = blocks_of(readings)
        newest_ms = None
        if before is not None and before.watermark_ms is not None:
            newest_ms = before.watermark_ms + rules.watermark_ms
        floors = floors_of(blocks, newest_ms)
        some_late = may_be_late(blocks, floors, rules)
        if some_late:
            readings = with_late(readings, floors, rules)
        invalid = sum(block.invalid for block in blocks)
        apart = self._put_apart(readings, batch) if some_late or invalid else 0
        for block in blocks:
            newest_ms = later(newest_ms, block.newest_ms)
        open_before = self._states.open_windows(frame.sparkSession, number)
        open_and_new = open_before.unionByName(windows_of(readings))
        staged = self._states.stage(merged(open_and_new))
        state = State(
            schema_id=self._goal.reading.schema_id,
            value=self._goal.reading.value,
            query_id=batch.query_id,
            place=batch.place,
            watermark_ms=None if newest_ms is None else newest_ms - rules.watermark_ms,
            rows=sum(block.rows for block in blocks),
            invalid=invalid,
            late=apart - invalid,
            files=staged.names,
        )
        state = _counted(state, staged, number, 0 if before is None else before.held)
        self._states.keep(number, state, staged)
        return state

    def _check_schema(self, before: State | None, number: int) -> None:
        if before is None:
            return
        known, wanted = Reading(before.schema_id, before.value), self._goal.reading
        if known != wanted:
            problem = (
                f"the windows before it are of {known.value!r} of {known.schema_id!r}, "
                f"not {wanted.value!r} of {wanted.schema_id!r}"
            )
            raise StateError(self._states.directory, number, problem)

    def _put_apart(self, readings: DataFrame, batch: Batch) -> int:
        """Write late and invalid rows into quarantine; return how many there are."""
        schema = F.lit(self._goal.reading.schema_id).alias("schema")
        apart = with_day(
            readings.where("reason is not null").select(*OF_MESSAGES, "value", "reason", schema)
        )
        written = self._quarantine.write(
            apart, batch.query_id, batch.batch_id, place=batch.place
        )
        return apart.count() if written.rows is None else written.rows

    def _publish(self, windows: DataFrame, batch: Batch, name: str = "") -> None:
        table = as_table(windows)
        self._table.write(table, batch.query_id, batch.batch_id, name, batch.place)
        if self._goal.sink is None:
            return
        spark = windows.sparkSession
        key = batch_key(spark, batch.query_id, batch.batch_id + 1) if name else nullcontext()
        with key:
            (
                as_messages(table)
                .write.format(FORMAT)
                .mode("append")
                .options(**self._goal.sink, topic=self._goal.topic)
                .option("sinkId", f"rollup {name}".strip())
                .save()
            )


def _counted(state: State, staged: Windows, number: int, held_before: int) -> State:
    """Return the state with its windows counted, after checking that no row is missing."""
    closed, still_open = staged.count(state.watermark_ms)
    counted = closed.readings + still_open.readings - held_before
    if counted + state.late + state.invalid != state.rows:
        raise LostReadingsError(number, state, counted)
    return msgspec.structs.replace(
        state, closed=closed.windows, open=still_open.windows, held=still_open.readings
    )
