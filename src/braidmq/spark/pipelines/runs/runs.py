"""A run of a pipeline: its session, its queries, and how it ends.

    run = Run("archive", plan, tell)
    run.go(Stream(frame=lambda: run.messages(), write=write))

SIGTERM and SIGINT end a run after the batch that is being written; the next run resumes there.
A shell or systemd may signal the JVM as well: errors that this causes in Spark are not errors
of the run.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from socketserver import BaseServer
from threading import Event, current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.pipelines.runs.failures import (
    JavaGoneError,
    QueryFailedError,
    is_java_gone,
    is_spark_error,
    one_line,
)
from braidmq.spark.pipelines.runs.guards import QUERY_LOCK, check_broker, held
from braidmq.spark.pipelines.runs.queries import LOOK_S, Query, Stream, Tell
from braidmq.spark.pipelines.tables.batches import Batch
from braidmq.spark.pipelines.tables.tables import PARQUET
from braidmq.spark.pipelines.times import Trigger
from braidmq.spark.sessions import MASTER, session
from braidmq.spark.source import FORMAT

__all__ = ["Batch", "Plan", "Run", "Stream", "Tell"]

CHECKPOINT: Final = "_checkpoint"
LOG: Final = "_spark.log"
"""Names in the output directory; readers of tables skip names that start with `_`."""

SIGNAL_S_MAX: Final = 0.5
"""A signal to the whole process group may end Spark this long before we see it ourselves."""

RESUMES: Final = "the next run resumes here"
CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Plan:
    """The parameters that all pipelines share."""

    source: Mapping[str, str]  # options of the format
    out: Path
    checkpoint: Path | None = None  # None: in `out`
    trigger: Trigger = field(default_factory=Trigger)
    format: str = PARQUET
    master: str = MASTER
    config: Mapping[str, str] = field(default_factory=dict)  # of Spark
    compact: bool = False  # merge small files


class Run:
    """One run of a pipeline; `tell` gets a line for each event."""

    def __init__(self, name: str, plan: Plan, tell: Tell) -> None:
        self.name = name
        self.plan = plan
        self.tell = tell
        self.stopping = Event()
        self._failed = False
        self._checked = False

    @cached_property
    def spark(self) -> SparkSession:
        """The session, started on first use.

        Raises:
            ConfigError: There is no Java.
            QueryFailedError: Spark does not start, or the broker does not answer.
        """
        self.check_broker()
        self.plan.out.mkdir(parents=True, exist_ok=True)
        log = self.plan.out / LOG
        config = {**CONFIG, **self.plan.config}
        try:
            with _errors_into(log), _interrupts_kept():
                found = session(f"braidmq {self.name}", master=self.plan.master, config=config)
            found.sparkContext.setLogLevel("ERROR")
        except (PySparkException, Py4JError) as error:
            problem = f"Spark failed to start: {one_line(error)}; see {log}"
            raise QueryFailedError(self.name, problem) from error
        _keep_quiet()
        _let_java_go_quietly(found.sparkContext._accumulatorServer)  # noqa: SLF001 - as Spark made it
        return found

    def check_broker(self) -> None:
        """Check once that the broker answers, if it is read from or must create a cursor.

        Raises:
            QueryFailedError: It does not answer.
        """
        if not self._checked:
            # A stream that resumes has its start in the checkpoint, and needs no cursor.
            begins = "groupId" in self.plan.source and not self.checkpoint().exists()
            check_broker(self.name, self.plan.source, needed=begins)
        self._checked = True

    def messages(self, **options: str) -> DataFrame:
        """Return the log as a stream, with the options of the plan and *options*."""
        return self.spark.readStream.format(FORMAT).options(**self.source(**options)).load()

    def source(self, **options: str) -> dict[str, str]:
        """Return the options of such a stream."""
        return {"startingOffsets": "earliest", **self.plan.source, **options}

    def checkpoint(self, name: str = "") -> Path:
        """Return the directory of a stream's checkpoint."""
        return (self.plan.checkpoint or self.plan.out / CHECKPOINT) / name

    def go(self, *streams: Stream) -> None:
        """Run queries until they have read everything, or until a signal.

        Raises:
            ConfigError: Another run writes the same output, or there is no Java.
            QueryFailedError: A query has failed for good.
            JavaGoneError: The JVM has died.
        """
        with self.ending(), held(self.plan.out, "--out", QUERY_LOCK):
            assert self.spark is not None  # starts Spark now, before anything is written
            self._watch([self._query(stream) for stream in streams])
            if self.plan.compact and not self.stopping.is_set():
                for stream in streams:
                    stream.compact()

    @contextmanager
    def ending(self, left: str = RESUMES) -> Iterator[None]:
        """Let a signal set `stopping`, and report errors of Spark after it as a normal end.

        *left* tells the user what happens to the work that is left.
        """
        with signals(self.stopping):
            try:
                yield
            except Exception as error:
                if not self._is_end(error):
                    raise
                self.tell(f"{self.name}: stopped; {left}")

    def _query(self, stream: Stream) -> Query:
        return Query(
            " ".join(filter(None, (self.name, stream.name))),
            stream,
            checkpoint=self.checkpoint(stream.name),
            trigger=self.plan.trigger,
            stopping=self.stopping,
            tell=self.tell,
            compact=self.plan.compact,
        )

    def _watch(self, queries: list[Query]) -> None:
        going = True
        try:
            while going and not self.stopping.wait(LOOK_S):
                now = monotonic()
                going = any([query.look(now) for query in queries])  # noqa: C419 - each of them
            for query in queries:
                query.stop()
        except Exception as error:
            going = self._is_end(error)
            if not going and is_java_gone(error):
                raise JavaGoneError(self.name) from error
            self._failed = not going
            self._give_up(queries)
            if not going:
                raise
        if going:
            self.tell(f"{self.name}: stopped; {RESUMES}")

    def _is_end(self, error: Exception) -> bool:
        """Tell whether *error* is how Spark fails when the whole process group is signalled."""
        return is_spark_error(error) and not self._failed and self.stopping.wait(SIGNAL_S_MAX)

    def _give_up(self, queries: list[Query]) -> None:
        self.stopping.set()
        for query in queries:
            with suppress(Exception):  # the first failure is the one that is reported
                query.stop()


@contextmanager
def signals(stopping: Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set *stopping*; only the main thread can install handlers."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before: dict[int, Any] = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep our SIGINT handler: Spark installs one that cancels jobs and raises."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, before)


def _keep_quiet() -> None:
    """Keep py4j from logging failures with their tracebacks; we report them in one line."""
    for name in ("", "py4j"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _let_java_go_quietly(server: BaseServer) -> None:
    """Keep Spark's accumulator server from printing that the JVM closed the connection.

    The server is another thread, so its traceback could follow the last line of the run.
    """
    tell = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in socketserver
        if not isinstance(sys.exception(), EOFError | OSError):
            tell(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign] # of this one server


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Redirect stderr into a file while the JVM starts; the JVM inherits and keeps it."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - no other way to ask
        yield
        return
    # The descriptor, not sys.stderr: the JVM inherits descriptors.
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
