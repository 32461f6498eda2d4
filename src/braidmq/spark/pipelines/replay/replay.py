"""`replay`: publish rows of a table, or of a time range in the log, again, exactly once.

    <checkpoint>/replay.json    what is replayed
    <checkpoint>/chunk.json     how far it is: see `chunks`
    <out>/_spark.log            Spark's log; `out` also holds the default checkpoint

Rows are sent in chunks, each of them a batch of the sink, no faster than the rate. A replay
that is killed and run again resumes with the chunk it was sending, or finds that it is done.
The rows of a topic keep their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import ConfigError
from braidmq.spark import values
from braidmq.spark.options import for_write
from braidmq.spark.pipelines.replay.chunks import Chunk, ReplayCheckpoint, Subject
from braidmq.spark.pipelines.replay.inputs import (
    Input,
    LogInput,
    TableInput,
    check_table,
    outgoing,
    table_files,
)
from braidmq.spark.pipelines.runs.guards import check_broker, held, plain_errors
from braidmq.spark.pipelines.runs.progress import batch_line
from braidmq.spark.pipelines.runs.runs import RESUMES, Plan, Run, Tell
from braidmq.spark.pipelines.tables.tables import check_format
from braidmq.spark.source import FORMAT
from braidmq.spark.writing.writers import batch_key

NAME: Final = "replay"
CHUNK_ROWS_MAX: Final = 100_000
CHUNK_S: Final = 2.0
"""With a rate, a chunk has the rows of this much time. Much shorter chunks would spend most of
the time starting a job for each."""


@dataclass(frozen=True)
class ReplayOptions:
    """The parameters of a replay besides the plan: which rows, where to, and how fast."""

    name: str
    sink: Mapping[str, str]  # options of the format
    table: Path | None = None  # None: the log of the plan
    to_topic: str | None = None  # None: the topic of each row
    rate: float | None = None  # messages a second
    format: str | None = None  # of the table; None: detect it

    @property
    def chunk_rows(self) -> int:
        """The most rows in one chunk."""
        if self.rate is None:
            return CHUNK_ROWS_MAX
        return max(1, min(int(self.rate * CHUNK_S), CHUNK_ROWS_MAX))


def replay(plan: Plan, options: ReplayOptions, tell: Tell) -> None:
    """Run the pipeline; it uses the plan's `out` only for the checkpoint and Spark's log.

    Raises:
        BraidError: It cannot start or continue; the next run resumes where this one was.
    """
    if plan.trigger.every_ms is not None:
        problem = "the end of a replay is fixed when it begins: use available-now"
        raise ConfigError("--trigger", f"{problem}, and another --name for later messages")
    _check_format(options, tell)
    values.name("--name", options.name)
    topic = {} if options.to_topic is None else {"topic": options.to_topic}
    for_write({**options.sink, **topic})
    if options.rate is not None and options.rate <= 0:
        raise ConfigError(
            "--rate", f"{options.rate:g} must be greater than 0; leave it out for no limit"
        )
    run = Run(NAME, plan, tell)
    # The lock is outermost: a second replay on the same checkpoint must not even read it.
    with held(run.checkpoint(), "--checkpoint"), run.ending(), plain_errors(NAME):
        run.check_broker()
        Replay(run, options).go()


def _check_format(options: ReplayOptions, tell: Tell) -> None:
    if options.format is None:
        return
    check_format(options.format)
    if options.table is None:
        tell(f"{NAME}: --format {options.format} changes nothing: rows come from the log")
    else:
        check_table(options.table, options.format)


class Replay:
    """One run of a replay."""

    def __init__(self, run: Run, options: ReplayOptions) -> None:
        self._run = run
        self._options = options
        self._checkpoint = ReplayCheckpoint(run.checkpoint())
        self._input, fresh = self._opened(self._checkpoint.begun())
        self._subject = self._checkpoint.subject(fresh)

    def _opened(self, begun: Subject | None) -> tuple[Input, Subject]:
        """Return the rows, and the subject of a replay that starts now.

        A replay that has begun keeps the files of its table, or its range of the log.
        """
        options, source = self._options, dict(self._run.plan.source)
        found: Input
        files = None
        if options.table is not None:
            files = table_files(options.table) if begun is None else begun.files or []
            found = TableInput(options.table, files, needs_topic=options.to_topic is None)
            said = f"table {options.table}"
        else:
            said = _said(source)
            if begun is not None:
                source |= {"startingOffsets": str(begun.first), "endingOffsets": str(begun.end)}
                source = {k: v for k, v in source.items() if not k.endswith("Timestamp")}
            found = LogInput(source)
        subject = Subject(
            name=options.name,
            source=said,
            to_topic=options.to_topic,
            first=found.first,
            end=found.end,
            files=files,
        )
        return found, subject

    def go(self) -> None:
        """Send chunks until there are none left, or until a signal."""
        chunk = self._checkpoint.last()
        if chunk is None or chunk.done:
            chunk = self._next(chunk)
        if chunk is not None and not self._run.stopping.is_set():
            check_broker(NAME, self._options.sink, needed=True)
        while chunk is not None and not self._run.stopping.is_set():
            spark = self._run.spark  # before the chunk is recorded: Spark may not start
            begun_s = monotonic()
            self._checkpoint.keep(chunk)
            rows = self._input.count(chunk.first, chunk.end)
            if rows:  # a range of ids may hold only records of the broker's own
                self._send(spark, chunk)
            self._checkpoint.keep(msgspec.structs.replace(chunk, done=True))
            self._tell(chunk, rows, monotonic() - begun_s)
            chunk = self._next(chunk)
            if chunk is not None and self._options.rate is not None:
                due_s = begun_s + rows / self._options.rate
                self._run.stopping.wait(max(0.0, due_s - monotonic()))
        if chunk is None:
            self._run.tell(f"{NAME}: {self._subject.name!r} is done; nothing is left of it")
        else:
            self._run.tell(f"{NAME}: stopped; {RESUMES}")

    def _next(self, chunk: Chunk | None) -> Chunk | None:
        """Return the chunk after *chunk*, or the first one; None at the end."""
        first, number = (self._subject.first, 1)
        if chunk is not None:
            first, number = chunk.end, chunk.number + 1
        if first >= self._subject.end:
            return None
        end = self._input.after(first, self._options.chunk_rows)
        return Chunk(number, first, min(end, self._subject.end))

    def _send(self, spark: SparkSession, chunk: Chunk) -> None:
        rows: DataFrame = self._input.frame(spark, chunk.first, chunk.end)
        frame = outgoing(rows, self._options.to_topic)
        with batch_key(spark, self._subject.query, chunk.number):
            writer = frame.write.format(FORMAT).mode("append")
            writer.options(**self._options.sink, sinkId=NAME).save()

    def _tell(self, chunk: Chunk, rows: int, seconds: float) -> None:
        left = self._subject.end - chunk.end
        self._run.tell(batch_line(NAME, chunk.number, rows=rows, seconds=seconds, lag=left))


def _said(source: Mapping[str, str]) -> str:
    """Return what is read as one text, for comparison with a later run.

    It leaves out the API key, which must not be stored in a file, and failOnDataLoss, which the
    user may have to change to get past a loss.
    """
    left_out = {"apikey", "failondataloss"}
    names = sorted(name for name in source if name.lower() not in left_out)
    return " ".join(f"{name}={source[name]}" for name in names)
