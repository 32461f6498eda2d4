"""The log read by Spark, beside Spark's own Parquet with the same rows; and read without Spark.

Spark runs in its own process, `python -m bench.spark`, whose JVM ends with it; it prints its
figures as JSON. All tasks of a round run one after the other in one session with two cores.
Everything is read from the same log; see `bench.readings`.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

from bench import readings, report
from bench.streams import BrokenRunError, Sample
from braidmq import columnar
from braidmq.columnar.loss import Losses
from braidmq.columnar.segments.segments import MappedFile
from braidmq.columnar.segments.views import DurableView
from braidmq.columnar.selection import Selection
from braidmq.spark.runtime.java import JAVA_MIN, find_java
from braidmq.spark.runtime.workers import HOLD_BYTES_MAX
from braidmq.wal.segment import segment_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "spark"
MASTER: Final = "local[2,4]"
CONFIG: Final = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
WARM_UPS: Final = 2
"""Warm-up rounds, if several are measured: the JVM compiles what is used often."""

WARM_UP_S: Final = 2.0
"""Each task runs for at least this long in a warm-up round."""

SHORT_RUNS: Final = 9
"""Runs per round of tasks that take hundredths of a second; their median counts."""

CONTESTANTS: Final = (
    "source",
    "parquet",
    "topic",
    "nothing",
    "typed",
    "json",
    "parquet_json",
    "archive",
    "copy",
)
"""Tasks of a round, in this order: methods of `Contestants`."""

SHORT: Final = frozenset({"topic", "nothing"})
"""Tasks that take hundredths of a second."""

SPARK_S_MAX: Final = 3_600.0
FEW: Final = 5
"""Memory is compared between all messages and this share of them."""

SOURCE_BAR: Final = 0.6
TYPED_BAR: Final = 4.0
ARCHIVE_BAR: Final = 0.6
TOPIC_BAR: Final = 20.0
MEMORY_BAR_MIB: Final = 32.0
MIB: Final = 1024 * 1024
KIB: Final = 1024

_JSON_SCHEMA: Final = "celsius double, timestamp_ms bigint, sensor_id string"
_TYPED_SCHEMA: Final = f"{_JSON_SCHEMA}, _error string"


def rows(
    directory: Path, messages: int, rounds: int, *, with_spark: bool
) -> Iterator[report.Row]:
    """Write a log, read it, and return the rows; without Spark only the first of them."""
    log = directory / "log"
    readings.write(log, messages)
    yield from _one_topic(log, rounds)
    if with_spark and find_java() is None:
        yield report.Row("Spark", "", peer=f"there is no Java {JAVA_MIN} or newer")
    elif with_spark:
        yield from _spark_rows(_measured(directory, messages, rounds), messages)


def _one_topic(log: Path, rounds: int) -> Iterator[report.Row]:
    one: list[float] = []
    first: list[float] = []
    touched: list[float] = []
    everything: list[float] = []
    places = _places(log)
    topics = [readings.ONE_TOPIC]
    for _ in range(rounds + 1):
        with columnar.open_log(log) as opened:
            everything.append(_seconds(opened.read))
            opened.read(topics=topics)
            one.append(_usual_s(lambda: opened.read(topics=topics)))
        first.append(_usual_s(lambda: columnar.read(log, topics=topics)))
        touched.append(_usual_s(lambda: _touch(places)))
    for title, samples, bar in (
        ("of an open log", one, TOPIC_BAR),
        ("at the first read", first, None),
        ("only a byte of each payload", touched, None),
    ):
        yield report.time_row(
            f"one topic of {readings.TOPICS} {title}",
            samples[1:],
            peer_name="all topics",
            peer_samples=everything[1:],
            bar=bar,
        )


def _places(log: Path) -> list[tuple[Path, NDArray[np.int64]]]:
    """Return where the payloads of the one topic are, by the files that have them."""
    view = DurableView(log)
    wanted = Selection([readings.ONE_TOPIC])
    losses = Losses(str(log), fail=True)
    found = []
    for segment in view.segments(view.earliest, view.latest, losses):
        rows = wanted.rows(segment, 0, len(segment.rows))
        places = segment.rows["payload_at"][rows].astype(np.int64)
        found.append((log / segment_path(segment.first_id), places))
    return found


def _touch(places: list[tuple[Path, NDArray[np.int64]]]) -> None:
    """Map the files and read a byte at each position: the least any reader must do."""
    for path, at in places:
        np.frombuffer(MappedFile(path).buffer, np.uint8)[at].sum()


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _usual_s(run: Callable[[], object]) -> float:
    return statistics.median(_seconds(run) for _ in range(SHORT_RUNS))


def _warm_up(run: Callable[[], object]) -> None:
    left_s = WARM_UP_S
    while left_s > 0:
        left_s -= _seconds(run)


def _measured(directory: Path, messages: int, rounds: int) -> dict[str, Any]:
    """Return the output of the other process."""
    command = [sys.executable, "-m", "bench.spark", str(directory), str(messages), str(rounds)]
    log = directory / "spark.log"
    with log.open("wb") as errors:
        run = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, check=False, timeout=SPARK_S_MAX
        )
    if run.returncode:
        told = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise BrokenRunError(f"{' '.join(command)} ended with {run.returncode}: {told}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def _spark_rows(found: dict[str, Any], messages: int) -> Iterator[report.Row]:
    samples = {
        name: [Sample(**sample) for sample in taken] for name, taken in found["samples"].items()
    }
    for title, ours, peer, theirs, bar in (
        ("Spark source", "source", "its own Parquet", "parquet", SOURCE_BAR),
        ("Spark typed readings", "typed", "from_json", "json", TYPED_BAR),
        ("Spark typed readings, Parquet", "typed", "from_json", "parquet_json", None),
        ("Spark archive", "archive", "Parquet to Parquet", "copy", ARCHIVE_BAR),
    ):
        yield report.rate_row(
            title, samples[ours], peer_name=peer, peer_samples=samples[theirs], bar=bar
        )
    for title, ours, bar in (
        (f"one topic of {readings.TOPICS} through Spark", "topic", TOPIC_BAR),
        ("nothing through Spark", "nothing", None),
    ):
        yield report.time_row(
            title,
            [sample.seconds for sample in samples[ours]],
            peer_name="all topics",
            peer_samples=[sample.seconds for sample in samples["source"]],
            bar=bar,
        )
    few, many = found["few_bytes"] / MIB, found["many_bytes"] / MIB
    yield report.amount_row(
        f"memory, a Spark worker that reads {messages:,}",
        many - few,
        "MiB",
        bar=MEMORY_BAR_MIB,
        note=f"more than for {messages // FEW:,}; peak {many:,.0f} MiB",
    )
    yield report.amount_row(
        "files mapped, a Spark worker that reads one topic",
        found["mapped_bytes"] / MIB,
        "MiB",
        bar=HOLD_BYTES_MAX / MIB,
        note=f"and own memory {found['own_bytes'] / MIB:,.0f} MiB",
    )


class Processes:
    """The JVM and the Python processes below it."""

    def __init__(self) -> None:
        children = psutil.Process().children()
        self._java = next(child for child in children if "java" in child.name())

    def cpu_s(self) -> float:
        """Return the CPU time of all of them so far, including those that have ended."""
        spent = self._java.cpu_times()
        total = spent.user + spent.system + spent.children_user + spent.children_system
        for child in self._java.children(recursive=True):
            try:
                spent = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += spent.user + spent.system + spent.children_user + spent.children_system
        return float(total)

    def worker_bytes(self, name: str) -> int:
        """Return the largest value of *name* in /proc among the Python processes.

        VmHWM is the most that a process ever had resident, RssAnon what is its own now, and
        RssFile what it has mapped of files and touched.
        """
        found = 0
        for child in self._java.children(recursive=True):
            try:
                text = Path(f"/proc/{child.pid}/status").read_text()
            except OSError:
                continue
            for line in text.splitlines():
                if line.startswith(name):  # missing if the process has just ended
                    found = max(found, int(line.split()[1]) * KIB)
        return found


class Contestants:
    """The tasks of the session, each a method without arguments."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self._spark = spark
        self._log = str(directory / "log")
        self._parquet = str(directory / "parquet")
        self._out = directory / "out"

    def prepare(self, messages: int) -> None:
        """Write the rows as Parquet with Spark's defaults, and count both."""
        self._source().write.parquet(self._parquet)
        counts = [self._source().count(), self._spark.read.parquet(self._parquet).count()]
        if counts != [messages, messages]:
            raise BrokenRunError(f"{counts} rows were read of {messages}")

    def _source(self, **options: str) -> "DataFrame":
        reader = self._spark.read.format("braidmq").option("path", self._log)
        return reader.options(**options).load()

    def source(self, **options: str) -> None:
        """Read every column of the log."""
        _drop(self._source(**options))

    def parquet(self) -> None:
        """Read every column of the Parquet."""
        _drop(self._spark.read.parquet(self._parquet))

    def topic(self) -> None:
        """Read one topic."""
        self.source(subscribe=readings.ONE_TOPIC)

    def nothing(self) -> None:
        """Plan and start a query that finds nothing to read."""
        self.source(startingOffsets="1", endingOffsets="1")

    def typed(self) -> None:
        """Read payloads decoded by the source."""
        reader = self._spark.read.format("braidmq").option("path", self._log)
        _drop(reader.option("schemaId", readings.SCHEMA).schema(_TYPED_SCHEMA).load())

    def json(self) -> None:
        """Read payloads of the source, decoded by Spark."""
        reader = self._spark.read.format("braidmq").option("path", self._log)
        self._decoded(reader.schema("value binary").load())

    def parquet_json(self) -> None:
        """Read payloads of the Parquet, decoded by Spark."""
        self._decoded(self._spark.read.parquet(self._parquet).select("value"))

    @staticmethod
    def _decoded(payloads: "DataFrame") -> None:
        from pyspark.sql import functions  # noqa: PLC0415 - only this process needs it

        text = functions.col("value").cast("string")
        parsed = functions.from_json(text, _JSON_SCHEMA).alias("parsed")
        _drop(payloads.select(parsed).select("parsed.*"))

    def archive(self) -> None:
        """Archive the log, by day and topic."""
        from braidmq.spark.pipelines.archive import archive  # noqa: PLC0415 - as above
        from braidmq.spark.pipelines.runs.runs import Plan  # noqa: PLC0415 - as above

        plan = Plan({"path": self._log}, self._new_out(), master=MASTER, config=CONFIG)
        archive(plan, lambda _: None)

    def copy(self) -> None:
        """Write the Parquet to the same directories with Spark's defaults."""
        from braidmq.spark.pipelines.archive import DAY, with_day  # noqa: PLC0415 - as above

        frame = with_day(self._spark.read.parquet(self._parquet))
        frame = frame.withColumn("topic_dir", frame["topic"])
        frame.write.partitionBy(DAY, "topic_dir").parquet(str(self._new_out()))

    def _new_out(self) -> Path:
        shutil.rmtree(self._out, ignore_errors=True)
        os.sync()  # no task waits for what another left to be written
        return self._out


def _drop(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measure(directory: Path, messages: int, rounds: int) -> dict[str, Any]:
    from braidmq.spark import session  # noqa: PLC0415 - only this process needs it

    spark = session("braidmq bench", master=MASTER, config=CONFIG)
    spark.sparkContext.setLogLevel("ERROR")
    processes = Processes()
    contestants = Contestants(spark, directory)
    contestants.source(endingOffsets=str(messages // FEW + 1))
    memory = {"few_bytes": processes.worker_bytes("VmHWM")}
    contestants.source()
    memory["many_bytes"] = processes.worker_bytes("VmHWM")
    contestants.prepare(messages)
    for _ in range(SHORT_RUNS):  # use each worker at least once
        contestants.topic()
    memory["mapped_bytes"] = processes.worker_bytes("RssFile")
    memory["own_bytes"] = processes.worker_bytes("RssAnon")
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    warm_ups = WARM_UPS if rounds > 1 else 0
    for _ in range(warm_ups):
        for name in CONTESTANTS:
            _warm_up(getattr(contestants, name))
    for _ in range(rounds):
        for name in CONTESTANTS:
            run: Callable[[], None] = getattr(contestants, name)
            before = processes.cpu_s()
            seconds = (_usual_s if name in SHORT else _seconds)(run)
            spent = (processes.cpu_s() - before) / (SHORT_RUNS if name in SHORT else 1)
            samples[name].append(asdict(Sample(messages, seconds, spent, 0.0)))
    spark.stop()
    return {"samples": samples, **memory}


def main(arguments: Sequence[str]) -> int:
    """Measure in this process and print the figures as a line of JSON."""
    directory, messages, rounds = arguments
    found = _measure(Path(directory), int(messages), int(rounds))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
