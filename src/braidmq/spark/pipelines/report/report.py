"""`report`: what is in the log, as tables and as one HTML page, computed from scratch.

With an interval as the trigger, it is computed again each time the log has new messages.

    <out>/report.html             the page
    <out>/topics.parquet          each topic: messages, bytes, sizes, first and last
    <out>/hours.parquet           messages by hour
    <out>/dead_letters.parquet    dead letters by topic and reason
    <out>/typed.parquet           each typed topic: rows, invalid rows, delays

With the format delta the tables are directories without the `.parquet`. Typed topics are those
whose messages name a built-in schema, and those that the user names one for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from braidmq.base.counts import counted
from braidmq.spark.brokers import log_of
from braidmq.spark.options import ReadOptions, for_batch
from braidmq.spark.pipelines.report import counts
from braidmq.spark.pipelines.report.page import Findings, TopicFit, TopicVolume, page
from braidmq.spark.pipelines.runs.guards import cancelling, held, plain_errors
from braidmq.spark.pipelines.runs.queries import StoppingError
from braidmq.spark.pipelines.runs.runs import Plan, Run, Tell
from braidmq.spark.pipelines.tables.tables import DELTA
from braidmq.spark.pipelines.typed import TypedTopics, schema_of
from braidmq.spark.reading.offsets import batch_range
from braidmq.spark.source import FORMAT
from braidmq.wal.disk import Disk, replace_file

NAME: Final = "report"
PAGE: Final = "report.html"
STAYS: Final = "the previous report is unchanged"
_READ: Final = (
    "value binary, topic string, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
_TYPED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("schema_id", pa.string()),
        ("rows", pa.int64()),
        ("invalid", pa.int64()),
        ("p50_delay_ms", pa.float64()),
        ("p99_delay_ms", pa.float64()),
        ("max_delay_ms", pa.int64()),
    ]
)


def report(plan: Plan, wanted: Sequence[TypedTopics], tell: Tell) -> None:
    """Run the pipeline; *wanted* are typed topics besides those whose messages name a schema.

    Raises:
        BraidError: It cannot start or finish; the last report stays as it is.
    """
    run = Run(NAME, plan, tell)
    options = for_batch(plan.source)
    for given in wanted:
        schema_of(given.schema)
    if plan.checkpoint is not None:
        tell(f"{NAME}: --checkpoint is not used: a report is computed from scratch")
    run.check_broker()
    _pinned(options)  # reports a missing log or a wrong range before Spark starts
    typed = {given.schema: given.topics for given in wanted}
    with held(plan.out, "--out"), run.ending(STAYS), plain_errors(NAME):
        before: dict[str, str] = {}
        for _ in due(run):
            pinned = _pinned(options)
            if pinned != before:
                Counting(run, pinned).go(log_of(options).address, typed)
            before = pinned


def due(run: Run) -> Iterator[None]:
    """Yield when a report is due: once, or at an interval until a signal."""
    every_ms = run.plan.trigger.every_ms
    while True:
        begun_s = monotonic()
        yield
        if every_ms is None:
            return
        if run.stopping.wait(max(0.0, begun_s + every_ms / 1_000 - monotonic())):
            run.tell(f"{NAME}: stopped; {STAYS}")
            return


def _pinned(options: ReadOptions) -> dict[str, str]:
    """Return the range that the log has now, as options of a read."""
    first, end = batch_range(log_of(options), options)
    return {"startingOffsets": str(first), "endingOffsets": str(end)}


class Counting:
    """One report: all of its numbers are of the same range of the log."""

    def __init__(self, run: Run, pinned: Mapping[str, str]) -> None:
        self._run = run
        kept = {k: v for k, v in run.plan.source.items() if not k.endswith("Timestamp")}
        self._source = {**kept, **pinned}

    def go(self, address: str, typed: Mapping[str, Sequence[str]]) -> None:
        """Count, and write tables and page."""
        out, tell = self._run.plan.out, self._run.tell
        with cancelling(self._run.spark, self._run.stopping):
            tables, delays = self._counted(typed)
        for name, table in tables.items():
            _write(out, name, table, self._run.plan.format)
        text = page(_findings(address, tables, delays))
        replace_file(Disk(out), PAGE, text.encode("utf-8", "replace"))
        tell(f"{NAME}: {out / PAGE} is written")

    def _counted(
        self, typed: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, pa.Table], list[int]]:
        """Return the tables, and the number of typed rows per delay."""
        reader = self._run.spark.read.format(FORMAT).options(**self._source)
        # Four results derive from it; unless it is kept, each of them reads the log again.
        alike = counts.counted(reader.schema(_READ).load()).persist()
        tables = {
            "topics": self._result(counts.volumes(alike)).sort_by("topic"),
            "hours": self._result(counts.hours(alike)).sort_by("hour"),
            "dead_letters": self._result(counts.deaths(alike)).sort_by("topic"),
        }
        messages = sum(tables["topics"].column("messages").to_pylist())
        topics = counted(len(tables["topics"]), "topic")
        self._run.tell(f"{NAME}: counted {counted(messages, 'message')} of {topics}")
        claimed = self._result(counts.claims(alike)).to_pylist()
        alike.unpersist()
        tables["typed"], delays = self._typed(claimed, typed)
        return tables, delays

    def _result(self, frame: DataFrame) -> pa.Table:
        """Compute a frame, unless the run is stopping."""
        if self._run.stopping.is_set():
            raise StoppingError
        return frame.toArrow()

    def _typed(
        self, claimed: list[dict[str, Any]], named: Mapping[str, Sequence[str]]
    ) -> tuple[pa.Table, list[int]]:
        """Return the table of typed topics, and the number of their rows per delay."""
        fits: list[dict[str, Any]] = []
        delays = [0] * len(counts.DELAY_NAMES)
        for schema_id in sorted({row["schema_id"] for row in claimed} | named.keys()):
            named_topics = set(named.get(schema_id, ()))
            claiming = {row["topic"] for row in claimed if row["schema_id"] == schema_id}
            for topics, is_claim in ((named_topics, False), (claiming - named_topics, True)):
                if topics:
                    rows = self._typed_rows(schema_id, topics, is_claim=is_claim)
                    fits += [
                        {**row, "schema_id": schema_id}
                        for row in self._result(counts.fits(rows)).to_pylist()
                    ]
                    for row in self._result(counts.delays(rows)).to_pylist():
                        delays[row["bucket"]] += row["rows"]
        fits.sort(key=lambda fit: (fit["topic"], fit["schema_id"]))
        return pa.Table.from_pylist(fits, _TYPED), delays

    def _typed_rows(self, schema_id: str, topics: set[str], *, is_claim: bool) -> DataFrame:
        kept = {k: v for k, v in self._source.items() if not k.startswith("subscribe")}
        reader = self._run.spark.read.format(FORMAT).options(**kept, includeHeaders="true")
        # By pattern, not by `subscribe`: a comma in a topic's name would make two topics.
        pattern = "|".join(map(re.escape, sorted(topics)))
        rows = reader.options(schemaId=schema_id, subscribePattern=pattern).load()
        return counts.claiming(rows, schema_id) if is_claim else rows


def _write(out: Path, name: str, table: pa.Table, format_: str) -> None:
    if format_ == DELTA:
        from deltalake import write_deltalake

        write_deltalake(out / name, table, mode="overwrite", schema_mode="overwrite")
        return
    # Into memory first: a reader then sees the old file or the new one, never a part of it.
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    replace_file(Disk(out), f"{name}.parquet", buffer.getvalue().to_pybytes())


def _findings(address: str, tables: Mapping[str, pa.Table], delays: list[int]) -> Findings:
    rows = {name: table.to_pylist() for name, table in tables.items()}
    return Findings(
        source=address,
        volumes=[TopicVolume(**row) for row in rows["topics"]],
        hours=[(row["hour"], row["messages"]) for row in rows["hours"]],
        deaths=[(row["topic"], row["reason"], row["messages"]) for row in rows["dead_letters"]],
        fits=[TopicFit(**row) for row in rows["typed"]],
        delays=list(zip(counts.DELAY_NAMES, delays, strict=True)),
    )
