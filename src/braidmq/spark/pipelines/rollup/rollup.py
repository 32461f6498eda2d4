"""`rollup`: readings by sensor and minute, in a table and on the topic `rollup.<schema>`.

    <out>/<schema>/date=.../       closed minutes: count, min, max, mean, last
    <out>/quarantine/date=.../     late rows, and rows that are not readings
    <checkpoint>/windows/          the minutes that are still open

Minutes stay open at the end of a run, and the next run continues them. `close` closes them;
readings for them that arrive afterwards are late. A micro-batch is computed once, in steps:

    1. late and invalid rows go to quarantine
    2. the windows of the batch are made durable: see `states`
    3. the closed windows go to the table, and as messages to the topic

Each step may be repeated after a crash: quarantine and table recognise the batch, durable
windows are not computed again, and the broker recognises the key of the batch's messages.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from braidmq.base.counts import counted
from braidmq.base.errors import BraidError, ConfigError
from braidmq.spark.options import for_write, parse, wants
from braidmq.spark.pipelines.archive import DAY, with_day
from braidmq.spark.pipelines.rollup.states import State, StateError, States, Windows
from braidmq.spark.pipelines.rollup.windows import (
    MINUTE_MS,
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
    reading_of,
    windows_of,
    with_late,
)
from braidmq.spark.pipelines.runs.guards import held, plain_errors
from braidmq.spark.pipelines.runs.runs import Batch, Plan, Run, Stream, Tell
from braidmq.spark.pipelines.tables.layouts import plain_name
from braidmq.spark.pipelines.tables.tables import Table
from braidmq.spark.pipelines.typed import OF_MESSAGES, QUARANTINE
from braidmq.spark.reading.scans import typed_schema
from braidmq.spark.source import FORMAT
from braidmq.spark.writing.writers import batch_key

NAME: Final = "rollup"
STATES: Final = "windows"
TOPIC_PREFIX: Final = "rollup."
WATERMARK_MS: Final = 10 * MINUTE_MS
CLOSING: Final = "closing"
"""The writer name of the minutes that `close` closes after the last batch."""


@dataclass(frozen=True)
class RollupOptions:
    """The parameters of a rollup besides the plan; without a *sink* nothing is published."""

    schema: str
    value: str | None = None
    rules: Rules = field(default=Rules(WATERMARK_MS))
    close: bool = False
    sink: Mapping[str, str] | None = None  # options of the format


class LostReadingsError(BraidError):
    """Rows of a batch are neither in windows nor in quarantine; it is not written."""

    def __init__(self, batch_id: int, state: State, counted: int) -> None:
        super().__init__(
            f"batch {batch_id}: of {state.rows} rows {counted} were counted, {state.late} were "
            f"late and {state.invalid} invalid, which does not add up; if --watermark or "
            "--ahead has changed since it was killed, run it once with the old value"
        )
        self.batch_id = batch_id


def rollup(plan: Plan, options: RollupOptions, tell: Tell) -> None:
    """Run the pipeline.

    Raises:
        BraidError: It cannot start or continue; what is written stays.
    """
    run = Run(NAME, plan, tell)
    if options.close and plan.trigger.every_ms is not None:
        raise ConfigError("--close", "needs --trigger available-now: other runs have no end")
    if options.sink is not None:
        for_write(options.sink)
    source = parse({**plan.source, "schemaId": options.schema})
    schema = typed_schema(source)
    assert schema is not None
    reading = reading_of(schema, options.value)
    topic = TOPIC_PREFIX + schema.id
    if source.topics is None and source.pattern is None:
        problem = f"is missing; name the topics with readings of {schema.id!r}"
        raise ConfigError("--subscribe", problem)
    if wants(source, topic):
        problem = f"has the topic {topic!r}, which this rollup writes; leave it out"
        raise ConfigError("--subscribe", problem)
    with held(run.checkpoint(), "--checkpoint"), run.ending(), plain_errors(NAME):
        writer = Rollup(run, reading, options)
        # A run that was killed while it closed minutes has recorded them, and perhaps not
        # written them. Do that first: the next batch starts from them as closed.
        writer.finish_closing(run.spark)
        messages = partial(run.messages, schemaId=options.schema)
        run.go(Stream(messages, writer.write, tables=writer.tables))
        if options.close and not run.stopping.is_set():
            writer.close(run.spark)


class Rollup:
    """Writes the batches of one run, with their states in its checkpoint."""

    def __init__(self, run: Run, reading: Reading, options: RollupOptions) -> None:
        self._run = run
        self._reading = reading
        self._options = options
        self._states = States(run.checkpoint() / STATES)
        self._states.prepare()
        out, form = run.plan.out, run.plan.format
        self._table = Table(out / plain_name(reading.schema_id), form, (DAY,))
        self._quarantine = Table(out / QUARANTINE, form, (DAY,))
        self.tables = (self._table, self._quarantine)

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
        elif (state.query_id, state.end) != (batch.query_id, batch.end):
            problem = f"it was computed up to {state.end}, by query {state.query_id}"
            raise StateError(self._states.directory, number, problem)
        if state.closed:
            windows = self._states.windows(number, state).frame(frame.sparkSession)
            self._publish(windows.where(is_closed(state.watermark_ms)), batch)
        self._states.forget_before(number)
        self._run.tell(
            f"rollup: batch {number}: {state.late} late, {state.invalid} invalid, "
            f"{counted(state.closed, 'sensor minute')} closed, {state.open:,} open"
        )
        return state.rows

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
            # Durable before anything is written: killed after this, the next run closes the
            # same minutes again, under the same batch and key.
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
        self._publish(left, Batch(state.query_id, number, state.end), CLOSING)
        self._run.tell(f"rollup: closed the last {counted(closing.closed, 'sensor minute')}")

    def _compute(self, frame: DataFrame, batch: Batch) -> State:
        number, rules = batch.batch_id, self._options.rules
        before = self._states.before(number)
        self._check_schema(before, number)
        readings = judged(frame, self._reading, rules)
        blocks = blocks_of(readings)
        # The state keeps the watermark; the newest event time so far follows from it.
        newest_ms = None
        if before is not None and before.watermark_ms is not None:
            newest_ms = before.watermark_ms + rules.watermark_ms
        floors = floors_of(blocks, newest_ms)
        some_late = may_be_late(blocks, floors, rules)
        if some_late:
            readings = with_late(readings, floors, rules)
        invalid = sum(block.invalid for block in blocks)
        aside = self._set_aside(readings, batch) if some_late or invalid else 0
        for block in blocks:
            newest_ms = later(newest_ms, block.newest_ms)
        open_before = self._states.open_windows(frame.sparkSession, number)
        open_and_new = open_before.unionByName(windows_of(readings))
        staged = self._states.stage(merged(open_and_new))
        state = State(
            schema_id=self._reading.schema_id,
            value=self._reading.value,
            query_id=batch.query_id,
            end=batch.end,
            watermark_ms=None if newest_ms is None else newest_ms - rules.watermark_ms,
            rows=sum(block.rows for block in blocks),
            invalid=invalid,
            late=aside - invalid,
            files=staged.names,
        )
        state = _counted(state, staged, number, 0 if before is None else before.held)
        self._states.keep(number, state, staged)
        return state

    def _check_schema(self, before: State | None, number: int) -> None:
        if before is None:
            return
        known, wanted = Reading(before.schema_id, before.value), self._reading
        if known != wanted:
            problem = (
                f"the windows before it are of {known.value!r} of {known.schema_id!r}, "
                f"not {wanted.value!r} of {wanted.schema_id!r}"
            )
            raise StateError(self._states.directory, number, problem)

    def _set_aside(self, readings: DataFrame, batch: Batch) -> int:
        """Write late and invalid rows to quarantine; return how many there are."""
        schema = F.lit(self._reading.schema_id).alias("schema")
        aside = with_day(
            readings.where("reason is not null").select(*OF_MESSAGES, "value", "reason", schema)
        )
        written = self._quarantine.write(aside, batch)
        # A Delta table does not say how many rows a repeated batch has.
        return aside.count() if written.rows is None else written.rows

    def _publish(self, windows: DataFrame, batch: Batch, name: str = "") -> None:
        table = as_table(windows)
        self._table.write(table, batch, name)
        if self._options.sink is None:
            return
        spark = windows.sparkSession
        # Closing runs outside a streaming batch, so Spark does not give its writes a key. Keys
        # start at 1; the sink id keeps this one apart from that of the next batch.
        key = batch_key(spark, batch.query_id, batch.batch_id + 1) if name else nullcontext()
        with key:
            (
                as_messages(table)
                .write.format(FORMAT)
                .mode("append")
                .options(**self._options.sink, topic=TOPIC_PREFIX + self._reading.schema_id)
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
