"""Write to topics exactly once: tasks stage their rows, the driver commits the stages.

1. A task sends its partition into a stage of its own; the broker makes it durable.
2. The driver commits the stages under the batch's key; from then on these are the batch.
3. A commit with a known key changes nothing, even if the rows are split differently by then. So
   a commit whose answer was lost is sent again, and a killed task or batch is simply repeated.
4. Stages that are never committed are dropped: by `abort`, or by the broker after a day.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.columnar.flight.requests import SinkKey
from braidmq.spark.brokers import endpoint_of, patiently
from braidmq.spark.options import WriteOptions
from braidmq.spark.runtime.workers import log_event
from braidmq.spark.writing.columns import sink_columns

COMMIT_S_MAX: Final = 120.0
"""How long a commit is retried while the broker cannot be reached: it may be restarting."""

Answer = TypeVar("Answer")


@dataclass
class Staged(WriterCommitMessage):
    """The stage of a task's rows, and the streaming batch that they belong to, if any."""

    stage: str | None  # None: it had no rows
    rows: int
    query: str | None = None
    batch: int | None = None


class Sink:
    """The topics that rows go to; it is pickled into every task.

    Raises:
        UnusableColumnError: The rows cannot be messages.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self._names = sink_columns(schema, options)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> tuple[str | None, int]:
        """Send the rows of a task; return the stage's id, if there are any, and their number.

        Runs on executors.

        Raises:
            BraidError: The broker refuses a row, or cannot be reached.
        """
        full = (batch.select(self._names) for batch in batches if len(batch))
        first = next(full, None)
        if first is None:
            return None, 0
        try:
            rows = chain([first], full)
            stage = self._asked(lambda e: e.stage(self.options.topic, first.schema, rows))
        except UnavailableError:
            # The rows are consumed, so only Spark can repeat the task. It does so at once and
            # gives up after a few attempts; so wait here until the broker is back.
            with suppress(UnavailableError):
                patiently(lambda: self._asked(Endpoint.offsets))
            raise
        return stage.id, stage.rows

    def commit(self, key: SinkKey, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the stages of all tasks as the batch of that key, unless the broker has it.

        Runs on the driver.

        Raises:
            BraidError: The broker refuses the batch, or stays unreachable for COMMIT_S_MAX.
        """
        staged = staged_of(messages)
        # Spark commits once every task has succeeded; a missing stage would be a silent loss.
        assert len(staged) == len(messages), "a task has reported no stage"
        stages = [one.stage for one in staged if one.stage is not None]
        done = patiently(
            lambda: self._asked(lambda endpoint: endpoint.commit(key, stages)), COMMIT_S_MAX
        )
        if done.repeated:
            facts = msgspec.structs.asdict(key)
            log_event("info", "batch_repeated", **facts, rows=done.messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the stages of the tasks, unless they are committed; on the driver."""
        stages = [one.stage for one in staged_of(messages) if one.stage is not None]
        if not stages:
            return
        try:
            self._asked(lambda endpoint: endpoint.abort(stages))
        except BraidError as error:  # they expire
            facts = {"stages": len(stages), "problem": str(error)}
            log_event("warning", "stages_not_dropped", **facts)

    def _asked(self, call: Callable[[Endpoint], Answer]) -> Answer:
        # Looked up each time: a restarted broker may listen at another address.
        with closing(endpoint_of(self.options)) as endpoint:
            return call(endpoint)


def staged_of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the messages of the tasks that finished; Spark passes None for the others."""
    return [message for message in messages if isinstance(message, Staged)]
