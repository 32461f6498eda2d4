"""The sink in a real broker: stages, commits and aborts, and a broker that goes away."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType
from structlog.testing import capture_logs

from braidmq.base.errors import BraidError
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.columnar.flight.requests import SinkKey
from braidmq.spark.options import for_write
from braidmq.spark.writing import sink
from braidmq.spark.writing.sink import Sink, Staged
from braidmq.testing import FakeClock
from tests.unit.columnar.logs import Row
from tests.unit.spark.running import CLOSED_ENDPOINT, KEY, PATIENCE_S, Running, Waiting, running
from tests.unit.spark.sources import struct

SCHEMA = struct(value=StringType(), more=IntegerType())


def sink_to(options: dict[str, str]) -> Sink:
    return Sink(for_write(options), SCHEMA)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """Batches as Spark makes them: one for each value, empty ones, and an extra column."""
    for value in values:
        yield pa.record_batch({"value": ["x"], "more": [1]}).slice(1)
        yield pa.record_batch({"value": [value], "more": [1]})


def staged(target: Sink, *values: str) -> Staged:
    return Staged(*target.stage(rows(*values)))


def stages(broker: Running) -> int:
    return len(list((broker.path / "stages").glob("*.arrow")))


def test_rows_become_messages_when_they_are_committed(broker: Running) -> None:
    """Not before, and in the order of the tasks, one of which has no rows."""
    target = sink_to(broker.options(topic="committed"))
    tasks = [staged(target, "a", "b"), staged(target), staged(target, "c")]
    before = broker.values("committed")
    target.commit(SinkKey("committed", "", 0), tasks)

    assert [2, 0, 1] == [task.rows for task in tasks]
    assert [] == before
    assert ["a", "b", "c"] == broker.values("committed")


def test_a_message_has_what_the_columns_of_its_row_say(broker: Running) -> None:
    """Topic, key, headers and priority; its origin is Spark."""
    headers = ArrayType(struct(key=StringType(), value=BinaryType()))
    schema = struct(
        value=BinaryType(),
        topic=StringType(),
        key=StringType(),
        priority=StringType(),
        headers=headers,
    )
    row: Row = {
        "value": b"\xff",
        "topic": "köln",
        "key": "k",
        "priority": "high",
        "headers": [{"key": "größe", "value": "ü".encode()}],
    }
    batch = pa.RecordBatch.from_pylist([row])
    target = Sink(for_write(broker.options()), schema)
    target.commit(SinkKey("columns", "", 0), [Staged(*target.stage([batch]))])
    (found,) = [row for row in broker.rows() if row["topic"] == "köln"]

    assert (b"\xff", b"k", "high", "spark") == tuple(
        found[name] for name in ("value", "key", "priority", "origin")
    )
    assert {"größe": "ü".encode(), "key": b"k"} == {
        header["key"]: header["value"] for header in found["headers"]
    }


def test_a_repeat_changes_nothing_however_its_rows_are_divided(broker: Running) -> None:
    """Nor does a repeat of an earlier batch; their stages are dropped."""
    target = sink_to(broker.options(topic="once"))
    key = SinkKey("once", "s", 1)
    target.commit(key, [staged(target, "a", "b"), staged(target, "c")])
    kept = stages(broker)
    with capture_logs() as logged:
        target.commit(key, [staged(target, "c"), staged(target, "b"), staged(target, "a")])
        target.commit(SinkKey("once", "s", 0), [staged(target, "z")])

    assert ["a", "b", "c"] == broker.values("once")
    assert kept == stages(broker)
    assert [("batch_repeated", 1), ("batch_repeated", 0)] == [
        (line["event"], line["batch"]) for line in logged if "batch" in line
    ]


def test_a_batch_without_rows_is_recorded_too(broker: Running) -> None:
    """So it stays empty when it is repeated with some."""
    target = sink_to(broker.options(topic="empty"))
    target.commit(SinkKey("empty", "", 0), [staged(target)])
    target.commit(SinkKey("empty", "", 0), [staged(target, "a")])

    assert [] == broker.values("empty")


def test_an_attempt_that_does_not_count_publishes_nothing(broker: Running) -> None:
    """Spark may run a task twice and use one attempt; the other's stage expires."""
    target = sink_to(broker.options(topic="twice"))
    kept = stages(broker)
    attempts = [staged(target, "a"), staged(target, "a")]
    target.commit(SinkKey("twice", "", 0), attempts[1:])

    assert ["a"] == broker.values("twice")
    assert kept + 1 == stages(broker)


def test_an_aborted_write_leaves_nothing(broker: Running) -> None:
    """Of the tasks that finished; Spark knows nothing of the others."""
    target = sink_to(broker.options(topic="aborted"))
    before = stages(broker)
    tasks = [staged(target, "a"), None, staged(target)]
    between = stages(broker)
    target.abort(tasks)
    target.abort([None, staged(target)])

    assert [before + 1, before] == [between, stages(broker)]


def test_an_abort_after_a_commit_takes_nothing_back(broker: Running) -> None:
    """Spark aborts when a commit fails, even if only its answer was lost."""
    target = sink_to(broker.options(topic="kept"))
    task = staged(target, "a")
    target.commit(SinkKey("kept", "", 0), [task])
    target.abort([task])

    assert ["a"] == broker.values("kept")


def test_a_batch_without_all_its_tasks_is_not_committed(broker: Running) -> None:
    """It would be a silent loss."""
    target = sink_to(broker.options(topic="partial"))
    with pytest.raises(AssertionError, match="a task has reported no stage"):
        target.commit(SinkKey("partial", "", 0), [staged(target, "a"), None])

    assert [] == broker.values("partial")


def test_a_row_that_cannot_be_a_message_fails_its_task(broker: Running) -> None:
    """With the reason, and at once."""
    target = Sink(for_write(broker.options()), struct(value=StringType(), topic=StringType()))
    batch = pa.RecordBatch.from_pylist([{"value": "a", "topic": "t"}, {"value": "b"}])
    with pytest.raises(BraidError, match="row 1: topic is null"):
        target.stage([batch.set_column(1, "topic", pa.array(["t", None]))])


def test_a_sink_is_pickled_without_its_connection(broker: Running) -> None:
    """A task opens its own, here to the broker that runs on a directory."""
    given = {"path": str(broker.path), "apikey": KEY, "topic": "travelled"}
    target = pickle.loads(pickle.dumps(sink_to(given)))  # noqa: S301 - our own, and what Spark does
    target.commit(SinkKey("travelled", "", 0), [staged(target, "a")])

    assert ["a"] == broker.values("travelled")


@pytest.mark.slow
def test_a_commit_waits_for_a_broker_that_is_being_restarted(tmp_path: Path) -> None:
    """The stages are durable, so nothing has to be sent again."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        target = sink_to(broker.options(topic="waited"))
        tasks = [staged(target, "a"), staged(target, "b")]
    committing = Thread(target=target.commit, args=(SinkKey("waited", "", 0), tasks))
    committing.start()
    with running(tmp_path, broker.port, clock) as broker:
        committing.join(PATIENCE_S)

        assert ["a", "b"] == broker.values("waited")


@pytest.mark.slow
def test_a_task_that_lost_the_broker_waits_for_it_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs it again at once, and gives up after a few attempts."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        target = sink_to(broker.options(topic="lost"))
    failures: list[UnavailableError] = []

    def task() -> None:
        try:
            staged(target, "a")
        except UnavailableError as error:
            failures.append(error)

    waiting, running_task = Waiting(), Thread(target=task)
    monkeypatch.setattr(sink, "patiently", waiting)
    running_task.start()
    began = waiting.begun.wait(PATIENCE_S)
    with running(tmp_path, broker.port, clock):
        running_task.join(PATIENCE_S)

        assert began
        assert 1 == len(failures)
        assert 1 == staged(target, "a").rows


def test_a_broker_that_does_not_come_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; stages that cannot be dropped are logged, and expire."""
    monkeypatch.setattr(sink, "COMMIT_S_MAX", 0.0)
    target = sink_to({"endpoint": CLOSED_ENDPOINT, "apikey": KEY, "topic": "t"})
    task = Staged("00" * 16, 1)
    with pytest.raises(UnavailableError):
        target.commit(SinkKey("q", "", 0), [task])
    with capture_logs() as logged:
        target.abort([task])

    assert [("stages_not_dropped", 1)] == [(line["event"], line["stages"]) for line in logged]
