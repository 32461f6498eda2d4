"""Cursors of consumer groups, in a real broker."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark.sql.streaming.query import StreamingQuery
from structlog.testing import capture_logs

from braidmq.base.errors import BraidError
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.spark.options import for_stream
from braidmq.spark.reading.cursors import Cursor, CursorListener, cursor_of, sources_of
from braidmq.testing import FakeClock
from tests.unit.spark.running import CLOSED_ENDPOINT, KEY, Running, running


def cursor(broker: Running, name: str, **more: object) -> Cursor:
    return Cursor(for_stream(broker.options(groupId=name, **more)))


def test_a_group_keeps_its_start(broker: Running) -> None:
    """Whichever reader asks, and whatever was published and processed since."""
    broker.publish(["a"])
    first = cursor(broker, "pinned").open(None)
    broker.publish(["b", "c"])
    cursor(broker, "pinned").report(first + 1)

    assert [first] * 3 == [cursor(broker, "pinned").open(at) for at in (None, 1, first + 1)]


def test_a_group_may_start_at_an_offset(broker: Running) -> None:
    """Such as the earliest."""
    assert 1 == cursor(broker, "early").open(1)


def test_a_report_moves_the_cursor_and_never_back(broker: Running) -> None:
    """A batch that is repeated was done before."""
    end = broker.publish(["a", "b", "c"])
    moved = cursor(broker, "moved")
    moved.open(1)
    for offset in (end - 1, end, end - 2):
        moved.report(offset)
    cursor(broker, "moved").report(end - 2)

    assert (1, end) == tuple(broker.cursor("moved")[name] for name in ("initial", "position"))


def test_a_query_that_is_older_than_its_group_creates_the_cursor(broker: Running) -> None:
    """Its checkpoint has its position, so Spark does not ask where to begin."""
    end = broker.publish(["a", "b", "c"])
    cursor(broker, "late").report(end - 1)

    assert (end - 1, end - 1) == tuple(
        broker.cursor("late")[name] for name in ("initial", "position")
    )


def test_the_broker_is_found_by_its_directory(broker: Running) -> None:
    """It then works as with an endpoint."""
    end = broker.publish(["a"])
    options = for_stream({"path": str(broker.path), "groupId": "local", "apiKey": KEY})

    assert 1 == Cursor(options).open(1)
    Cursor(options).report(end)
    assert end == broker.cursor("local")["position"]


def test_a_failed_report_is_logged_once_and_made_up_for(tmp_path: Path) -> None:
    """An unreachable broker fails no query; here it is back when the next batch is done."""
    clock = FakeClock()
    with running(tmp_path, clock=clock) as broker:
        end = broker.publish(["a", "b"])
        away = cursor(broker, "away")
        away.report(end - 1)
    with capture_logs() as logged:
        away.report(end)
        away.report(end)
    with running(tmp_path, broker.port, clock) as broker, capture_logs() as later:
        away.report(end)

        assert end == broker.cursor("away")["position"]
    assert [("cursor_not_reported", "away", end)] == [
        (line["event"], line["group"], line["offset"])
        for line in logged
        if line["log_level"] == "warning"
    ]
    assert [] == [line for line in later if line["event"] == "cursor_not_reported"]


def test_a_start_that_cannot_be_pinned_is_an_error() -> None:
    """It would be a different one the next time."""
    given = {"endpoint": CLOSED_ENDPOINT, "apiKey": KEY, "groupId": "g"}
    with pytest.raises(UnavailableError):
        Cursor(for_stream(given)).open(None)


def test_an_unknown_key_opens_no_cursor(broker: Running) -> None:
    """The error does not repeat the key."""
    given = broker.options(groupId="g") | {"apikey": "s3cret"}
    with pytest.raises(BraidError) as refused:
        Cursor(for_stream(given)).open(None)

    assert "s3cret" not in str(refused.value)


def test_a_cursor_is_pickled_with_its_reader(broker: Running) -> None:
    """Its connection is not; a new one is opened where it arrives."""
    sent = cursor(broker, "travelled")
    sent.open(1)
    end = broker.publish(["a"])
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own, and what Spark does
    arrived.report(end)

    assert end == broker.cursor("travelled")["position"]


SECOND, FIRST = "StreamingRelationV2", "StreamingRelation"


class Leaf:
    """A leaf of an analysed plan, as py4j shows it."""

    def __init__(
        self, options: dict[str, str], name: str = "braidmq", kind: str = SECOND
    ) -> None:
        self._options, self._name, self._kind = options, name, kind

    def isStreaming(self) -> bool:  # noqa: N802 - the JVM's
        return self._kind in {FIRST, SECOND}

    def equals(self, other: object) -> bool:
        return self is other

    def getClass(self) -> Any:  # noqa: N802, ANN401 - the JVM's
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def sourceName(self) -> str:  # noqa: N802 - the JVM's
        return self._name

    def extraOptions(self) -> Any:  # noqa: N802, ANN401 - the JVM's
        return SimpleNamespace(asCaseSensitiveMap=lambda: self._options)


def query(*leaves: Leaf) -> StreamingQuery:
    found = SimpleNamespace(size=lambda: len(leaves), apply=lambda number: leaves[number])
    plan = SimpleNamespace(collectLeaves=lambda: found)
    execution = SimpleNamespace(analyzedPlan=lambda: plan)
    wrapper = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    return cast("StreamingQuery", wrapper)


def listener(found: StreamingQuery | None) -> CursorListener:
    session = SimpleNamespace(streams=SimpleNamespace(get=lambda _id: found))
    return CursorListener(cast("SparkSession", session), "braidmq")


def started(run: UUID) -> QueryStartedEvent:
    return QueryStartedEvent(uuid4(), run, None, "", set())


def progress(run: UUID, *ends: str | None) -> QueryProgressEvent:
    sources = [SimpleNamespace(endOffset=end) for end in ends]
    return QueryProgressEvent(cast("Any", SimpleNamespace(runId=run, sources=sources)))


def test_sources_are_the_streaming_leaves_each_once() -> None:
    """In the plan's order, as in the progress; joined tables are not sources."""
    twice = Leaf({"path": "a"})
    found = query(
        twice,
        Leaf({}, kind="LogicalRelation"),
        Leaf({}, "kafka"),
        twice,
        Leaf({}, kind=FIRST),
        Leaf({"path": "b"}, "BraidMQ"),
    )

    assert [{"path": "a"}, None, None, {"path": "b"}] == sources_of(found, "braidmq")


def test_the_end_of_a_finished_batch_is_reported(broker: Running) -> None:
    """Each source reports to its own cursor; one without a group has none."""
    end = broker.publish(["a", "b", "c"])
    grouped = broker.options(groupId="listened", startingOffsets="earliest")
    alone = broker.options(startingOffsets="earliest")
    run = uuid4()
    observer = listener(query(Leaf(alone), Leaf(grouped), Leaf({}, "rate")))
    observer.onQueryStarted(started(run))
    observer.onQueryProgress(progress(run, '{"offset": 1}', f'{{"offset": {end}}}', "7"))

    assert end == broker.cursor("listened")["position"]


def test_a_query_that_is_not_understood_is_left_to_the_reader(broker: Running) -> None:
    """Its plan is unknown, it is gone, or the progress has another number of sources."""
    end = broker.publish(["a"])
    run = uuid4()
    grouped = Leaf(broker.options(groupId="unheard", startingOffsets="earliest"))
    for observer in (
        listener(cast("StreamingQuery", SimpleNamespace())),
        listener(None),
        listener(query(grouped, grouped, Leaf({}, "kafka"))),
    ):
        observer.onQueryStarted(started(run))
        observer.onQueryProgress(progress(run, f'{{"offset": {end}}}'))
    observer.onQueryProgress(progress(run, None, "x"))

    assert [] == [row for row in broker.endpoint().cursors() if row["name"] == "unheard"]


def test_a_query_that_has_ended_is_forgotten(broker: Running) -> None:
    """A run that has ended does not resume."""
    end = broker.publish(["a", "b"])
    run = uuid4()
    grouped = Leaf(broker.options(groupId="ended", startingOffsets="earliest"))
    observer = listener(query(grouped))
    observer.onQueryStarted(started(run))
    observer.onQueryProgress(progress(run, f'{{"offset": {end - 1}}}'))
    observer.onQueryTerminated(QueryTerminatedEvent(uuid4(), run, None, None))
    observer.onQueryProgress(progress(run, f'{{"offset": {end}}}'))

    assert end - 1 == broker.cursor("ended")["position"]


def test_a_stream_without_a_group_has_no_cursor(broker: Running) -> None:
    """With a group, the options alone name the cursor."""
    found = cursor_of(broker.options(groupId="named"))

    assert cursor_of(broker.options(startingOffsets="earliest")) is None
    assert found is not None
    assert "named" == found.name
