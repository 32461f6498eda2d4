"""`replay`: rows of a table, or of a time in the log, become messages again, once.

    <checkpoint>/replay.json    what is replayed
    <checkpoint>/chunk.json     how far it is: `replay_places`
    <out>/_spark.log            what Spark has to say; and the checkpoint, if it has no place

Rows go in chunks, each of them a batch of the sink, and no faster than the rate. A replay that
was killed, or is run again, goes on with the chunk that it was at, or finds that it is done.
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
from braidmq.spark.pipelines.keys import batch_key
from braidmq.spark.pipelines.replay.inputs import (
    Input,
    LogInput,
    TableInput,
    check_table,
    table_files,
)
from braidmq.spark.pipelines.replay.places import Chunk, Place, Subject
from braidmq.spark.pipelines.replay.rows import outgoing
from braidmq.spark.pipelines.runs.contacts import meet
from braidmq.spark.pipelines.runs.guards import held, plain_errors
from braidmq.spark.pipelines.runs.progress import batch_line
from braidmq.spark.pipelines.runs.runs import GOES_ON, Plan, Run, Tell
from braidmq.spark.pipelines.tables.tables import check_format
from braidmq.spark.source import FORMAT

NAME: Final = "replay"
CHUNK_ROWS_MAX: Final = 100_000
CHUNK_S: Final = 2.0
"""A chunk has the rows of so much time at the wanted rate: much shorter ones, and a job for
each of them would be what takes the time."""


@dataclass(frozen=True)
class Wish:
    """What the user says besides the plan: which rows, where to, and how fast at most."""

    name: str
    sink: Mapping[str, str]  # options of the format
    table: Path | None = None  # None: the log that the plan's source is
    to_topic: str | None = None  # None: each row's own
    rate: float | None = None  # messages a second
    format: str | None = None  # of the table; None: as it is

    @property
    def chunk_rows(self) -> int:
        """How many rows one chunk has at most."""
        if self.rate is None:
            return CHUNK_ROWS_MAX
        return max(1, min(int(self.rate * CHUNK_S), CHUNK_ROWS_MAX))


def replay(plan: Plan, wish: Wish, tell: Tell) -> None:
    """Run the pipeline; of the plan's `out` it needs no more than the checkpoint.

    Raises:
        BraidError: It cannot begin, or not go on; the next run goes on where this one was.
    """
    if plan.trigger.every_ms is not None:
        problem = "a replay has an end, fixed when it begins: give available-now"
        raise ConfigError("--trigger", f"{problem}, and another --name for what comes later")
    _check_format(wish, tell)
    values.name("--name", wish.name)
    topic = {} if wish.to_topic is None else {"topic": wish.to_topic}
    for_write({**wish.sink, **topic})
    if wish.rate is not None and wish.rate <= 0:
        raise ConfigError(
            "--rate", f"{wish.rate:g} is not more than 0; leave it out for no limit"
        )
    run = Run(NAME, plan, tell)
    with held(run.checkpoint(), "--checkpoint"), run.ending(), plain_errors(NAME):
        run.meet()
        Replay(run, wish).go()


def _check_format(wish: Wish, tell: Tell) -> None:
    if wish.format is None:
        return
    check_format(wish.format)
    if wish.table is None:
        tell(f"{NAME}: --format {wish.format} changes nothing: rows come from the log")
    else:
        check_table(wish.table, wish.format)


class Replay:
    """One life of a replay."""

    def __init__(self, run: Run, wish: Wish) -> None:
        self._run = run
        self._wish = wish
        self._place = Place(run.checkpoint())
        self._input, fresh = self._opened(self._place.begun())
        self._subject = self._place.subject(fresh)

    def _opened(self, begun: Subject | None) -> tuple[Input, Subject]:
        """Return the rows, and what the replay is when it begins now.

        A table is as it was when the replay began, and so is the end of the log.
        """
        wish, source = self._wish, dict(self._run.plan.source)
        found: Input
        files = None
        if wish.table is not None:
            files = table_files(wish.table) if begun is None else begun.files or []
            found = TableInput(wish.table, files, needs_topic=wish.to_topic is None)
            said = f"table {wish.table}"
        else:
            said = _said(source)
            if begun is not None:
                source |= {"startingOffsets": str(begun.first), "endingOffsets": str(begun.end)}
                source = {k: v for k, v in source.items() if not k.endswith("Timestamp")}
            found = LogInput(source)
        subject = Subject(
            name=wish.name,
            source=said,
            to_topic=wish.to_topic,
            first=found.first,
            end=found.end,
            files=files,
        )
        return found, subject

    def go(self) -> None:
        """Send chunks until there are none left, or until a signal."""
        chunk = self._place.last()
        if chunk is None or chunk.done:
            chunk = self._behind(chunk)
        if chunk is not None and not self._run.stopping.is_set():
            meet(NAME, self._wish.sink, needed=True)
        while chunk is not None and not self._run.stopping.is_set():
            spark = self._run.spark  # first of all: it may not come up
            begun_s = monotonic()
            self._place.keep(chunk)
            rows = self._input.count(chunk.first, chunk.behind)
            if rows:
                self._send(spark, chunk)
            self._place.keep(msgspec.structs.replace(chunk, done=True))
            self._tell(chunk, rows, monotonic() - begun_s)
            chunk = self._behind(chunk)
            if chunk is not None and self._wish.rate is not None:
                due_s = begun_s + rows / self._wish.rate
                self._run.stopping.wait(max(0.0, due_s - monotonic()))
        if chunk is None:
            self._run.tell(f"{NAME}: {self._subject.name!r} is done; nothing is left of it")
        else:
            self._run.tell(f"{NAME}: stopped; {GOES_ON}")

    def _behind(self, chunk: Chunk | None) -> Chunk | None:
        """Return the chunk behind another one, or the first; None at the end."""
        first, number = (self._subject.first, 1)
        if chunk is not None:
            first, number = chunk.behind, chunk.number + 1
        if first >= self._subject.end:
            return None
        behind = self._input.behind(first, self._wish.chunk_rows)
        return Chunk(number, first, min(behind, self._subject.end))

    def _send(self, spark: SparkSession, chunk: Chunk) -> None:
        rows: DataFrame = self._input.frame(spark, chunk.first, chunk.behind)
        frame = outgoing(rows, self._wish.to_topic)
        with batch_key(spark, self._subject.query, chunk.number):
            writer = frame.write.format(FORMAT).mode("append")
            writer.options(**self._wish.sink, sinkId=NAME).save()

    def _tell(self, chunk: Chunk, rows: int, seconds: float) -> None:
        left = self._subject.end - chunk.behind
        self._run.tell(batch_line(NAME, chunk.number, rows=rows, seconds=seconds, lag=left))


def _said(source: Mapping[str, str]) -> str:
    """Return what is read as one text.

    Without the key, which nobody shall read in a file, and without what is done about losses,
    which a replay that meets one has to say anew.
    """
    left_out = {"apikey", "failondataloss"}
    names = sorted(name for name in source if name.lower() not in left_out)
    return " ".join(f"{name}={source[name]}" for name in names)
