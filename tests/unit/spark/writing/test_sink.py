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
from tests.unit.spark.running import KEY, NOBODY, PATIENCE_S, Running, Waiting, running
from tests.unit.spark.sources import struct

SCHEMA = struct(value=StringType(), more=IntegerType())


def a_sink(options: dict[str, str]) -> Sink:
    return Sink(for_write(options), SCHEMA)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """Batches as Spark has them: one for each value, empty ones, and a column too many."""
    for value in values:
        yield pa.record_batch({"value": ["x"], "more": [1]}).slice(1)
        yield pa.record_batch({"value": [value], "more": [1]})


def staged(to: Sink, *values: str) -> Staged:
    return Staged(*to.stage(rows(*values)))


def on(broker: Running, topic: str) -> list[str]:
    """The values of a topic, in order."""
    return [row["value"].decode() for row in broker.rows() if row["topic"] == topic]


def stages(broker: Running) -> int:
    return len(list((broker.path / "stages").glob("*.arrow")))


def test_rows_are_messages_when_they_are_committed(broker: Running) -> None:
    """Not before; in the order of the tasks, and a task without rows is one of them."""
    to = a_sink(broker.options(topic="committed"))
    tasks = [staged(to, "a", "b"), staged(to), staged(to, "c")]
    before = on(broker, "committed")
    to.commit(SinkKey("committed", "", 0), tasks)

    assert [2, 0, 1] == [task.rows for task in tasks]
    assert [] == before
    assert ["a", "b", "c"] == on(broker, "committed")


def test_a_row_keeps_what_its_columns_say(broker: Running) -> None:
    """Topic, key, headers and priority; and it says where it came from."""
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
    to = Sink(for_write(broker.options()), schema)
    to.commit(SinkKey("columns", "", 0), [Staged(*to.stage([batch]))])
    (found,) = [row for row in broker.rows() if row["topic"] == "köln"]

    assert (b"\xff", b"k", "high", "spark") == tuple(
        found[name] for name in ("value", "key", "priority", "origin")
    )
    assert {"größe": "ü".encode(), "key": b"k"} == {
        header["key"]: header["value"] for header in found["headers"]
    }


def test_a_repeat_changes_nothing_however_its_rows_are_cut(broker: Running) -> None:
    """Nor does a repeat of an earlier batch; their stages are dropped."""
    to = a_sink(broker.options(topic="once"))
    key = SinkKey("once", "s", 1)
    to.commit(key, [staged(to, "a", "b"), staged(to, "c")])
    kept = stages(broker)
    with capture_logs() as told:
        to.commit(key, [staged(to, "c"), staged(to, "b"), staged(to, "a")])
        to.commit(SinkKey("once", "s", 0), [staged(to, "z")])

    assert ["a", "b", "c"] == on(broker, "once")
    assert kept == stages(broker)
    assert [("batch_repeated", 1), ("batch_repeated", 0)] == [
        (line["event"], line["batch"]) for line in told if "batch" in line
    ]


def test_a_batch_without_rows_is_done_all_the_same(broker: Running) -> None:
    """So that it stays empty when it is repeated with some."""
    to = a_sink(broker.options(topic="empty"))
    to.commit(SinkKey("empty", "", 0), [staged(to)])
    to.commit(SinkKey("empty", "", 0), [staged(to, "a")])

    assert [] == on(broker, "empty")


def test_an_attempt_that_does_not_count_is_on_no_topic(broker: Running) -> None:
    """Spark may run a task twice and takes one of them; the other's stage expires."""
    to = a_sink(broker.options(topic="twice"))
    kept = stages(broker)
    attempts = [staged(to, "a"), staged(to, "a")]
    to.commit(SinkKey("twice", "", 0), attempts[1:])

    assert ["a"] == on(broker, "twice")
    assert kept + 1 == stages(broker)


def test_an_aborted_write_leaves_nothing(broker: Running) -> None:
    """Of the tasks that came to an end; Spark knows nothing of the others."""
    to = a_sink(broker.options(topic="aborted"))
    before = stages(broker)
    tasks = [staged(to, "a"), None, staged(to)]
    between = stages(broker)
    to.abort(tasks)
    to.abort([None, staged(to)])

    assert [before + 1, before] == [between, stages(broker)]


def test_an_abort_behind_a_commit_takes_nothing_back(broker: Running) -> None:
    """Spark aborts when a commit failed, also when only its answer was lost."""
    to = a_sink(broker.options(topic="kept"))
    task = staged(to, "a")
    to.commit(SinkKey("kept", "", 0), [task])
    to.abort([task])

    assert ["a"] == on(broker, "kept")


def test_a_batch_without_all_its_tasks_is_not_committed(broker: Running) -> None:
    """It would be a silent loss."""
    to = a_sink(broker.options(topic="partial"))
    with pytest.raises(AssertionError, match="a task has reported no stage"):
        to.commit(SinkKey("partial", "", 0), [staged(to, "a"), None])

    assert [] == on(broker, "partial")


def test_a_row_that_cannot_be_a_message_fails_its_task(broker: Running) -> None:
    """With the reason, and at once."""
    to = Sink(for_write(broker.options()), struct(value=StringType(), topic=StringType()))
    batch = pa.RecordBatch.from_pylist([{"value": "a", "topic": "t"}, {"value": "b"}])
    with pytest.raises(BraidError, match="row 1: topic is null"):
        to.stage([batch.set_column(1, "topic", pa.array(["t", None]))])


def test_a_sink_travels_into_tasks_without_its_connection(broker: Running) -> None:
    """Spark pickles it; by its directory a broker is found everywhere."""
    given = {"path": str(broker.path), "apikey": KEY, "topic": "travelled"}
    to = pickle.loads(pickle.dumps(a_sink(given)))  # noqa: S301 - our own, and what Spark does
    to.commit(SinkKey("travelled", "", 0), [staged(to, "a")])

    assert ["a"] == on(broker, "travelled")


@pytest.mark.slow
def test_a_commit_waits_for_a_broker_that_is_being_restarted(tmp_path: Path) -> None:
    """The stages are durable, so nothing has to be sent again."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        to = a_sink(broker.options(topic="waited"))
        tasks = [staged(to, "a"), staged(to, "b")]
    committing = Thread(target=to.commit, args=(SinkKey("waited", "", 0), tasks))
    committing.start()
    with running(tmp_path, broker.port, clock) as broker:
        committing.join(PATIENCE_S)

        assert ["a", "b"] == on(broker, "waited")


@pytest.mark.slow
def test_a_task_that_lost_the_broker_waits_for_it_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs it again at once, and gives up after a few times."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        to = a_sink(broker.options(topic="lost"))
    failures: list[UnavailableError] = []

    def task() -> None:
        try:
            staged(to, "a")
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
        assert 1 == staged(to, "a").rows


def test_a_broker_that_does_not_come_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; what cannot be dropped is told and expires."""
    monkeypatch.setattr(sink, "COMMIT_S_MAX", 0.0)
    to = a_sink({"endpoint": NOBODY, "apikey": KEY, "topic": "t"})
    task = Staged("00" * 16, 1)
    with pytest.raises(UnavailableError):
        to.commit(SinkKey("q", "", 0), [task])
    with capture_logs() as told:
        to.abort([task])

    assert [("stages_not_dropped", 1)] == [(line["event"], line["stages"]) for line in told]
