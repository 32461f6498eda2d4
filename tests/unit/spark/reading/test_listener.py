"""The listener, with a plan that looks like the JVM's; a real one has its own tests."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.spark.reading.listener import CursorListener, cursor_of, sources_of
from tests.unit.spark.running import Running

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
    """In the plan's order, which is that of the progress; tables to join with are none."""
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
    """Of each source to its own cursor; one without a group has none."""
    end = broker.publish(["a", "b", "c"])
    grouped = broker.options(groupId="listened", startingOffsets="earliest")
    alone = broker.options(startingOffsets="earliest")
    run = uuid4()
    hearing = listener(query(Leaf(alone), Leaf(grouped), Leaf({}, "rate")))
    hearing.onQueryStarted(started(run))
    hearing.onQueryProgress(progress(run, '{"offset": 1}', f'{{"offset": {end}}}', "7"))

    assert end == broker.cursor("listened")["position"]


def test_what_does_not_fit_is_left_to_the_reader(broker: Running) -> None:
    """A plan that is not understood, a query that is gone, another number of sources."""
    end = broker.publish(["a"])
    run = uuid4()
    grouped = Leaf(broker.options(groupId="unheard", startingOffsets="earliest"))
    for hearing in (
        listener(cast("StreamingQuery", SimpleNamespace())),
        listener(None),
        listener(query(grouped, grouped, Leaf({}, "kafka"))),
    ):
        hearing.onQueryStarted(started(run))
        hearing.onQueryProgress(progress(run, f'{{"offset": {end}}}'))
    hearing.onQueryProgress(progress(run, None, "x"))

    assert [] == [row for row in broker.endpoint().cursors() if row["name"] == "unheard"]


def test_a_query_that_has_ended_is_forgotten(broker: Running) -> None:
    """Its run does not come back."""
    end = broker.publish(["a", "b"])
    run = uuid4()
    grouped = Leaf(broker.options(groupId="ended", startingOffsets="earliest"))
    hearing = listener(query(grouped))
    hearing.onQueryStarted(started(run))
    hearing.onQueryProgress(progress(run, f'{{"offset": {end - 1}}}'))
    hearing.onQueryTerminated(QueryTerminatedEvent(uuid4(), run, None, None))
    hearing.onQueryProgress(progress(run, f'{{"offset": {end}}}'))

    assert end - 1 == broker.cursor("ended")["position"]


def test_a_stream_without_a_group_has_no_cursor(broker: Running) -> None:
    """And one that has is told by its options alone."""
    found = cursor_of(broker.options(groupId="named"))

    assert cursor_of(broker.options(startingOffsets="earliest")) is None
    assert found is not None
    assert "named" == found.name
