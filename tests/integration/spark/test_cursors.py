"""Groups in a real session: cursors pin the start and follow the query to its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.pipelines.archive import archive
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.typed import parse_typed, typed
from tests.integration.spark.serving import Serving, serving, until
from tests.unit.spark.running import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("broker") / "data") as found:
        yield found


class Query:
    """A query of a group that collects what it reads, and fails on demand."""

    def __init__(self, spark: SparkSession, state: Path, **options: str) -> None:
        self._spark, self._state, self._options = spark, state, options
        self.values: list[str] = []
        self.fails = False

    def run(self) -> None:
        """Read everything available, then end."""
        frame = self._spark.readStream.format("braidmq").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._state))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    def _take(self, frame: DataFrame, _batch: int) -> None:
        if self.fails:
            raise RuntimeError("told to")
        self.values += [bytes(row.value).decode() for row in frame.select("value").collect()]


def test_the_cursor_is_at_the_end_after_a_run(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """Spark never commits the last batch of such a run, so the listener moves the cursor."""
    end = broker.publish([str(number) for number in range(5)])
    query = Query(
        spark,
        tmp_path,
        path=str(broker.path),
        apiKey=KEY,
        groupId="to the end",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="2",
    )
    query.run()
    until(lambda: broker.cursor("to the end")["position"] >= end)
    cursor = broker.cursor("to the end")
    broker.publish(["5", "6", "7"])
    behind = broker.endpoint().offsets().latest - cursor["position"]

    assert [str(number) for number in range(5)] == query.values
    assert 1 == cursor["initial"]
    assert [] == [row for row in broker.rows()[:5] if row["offset"] >= cursor["position"]]
    assert behind == broker.cursor("to the end")["lag"]
    assert cursor["lag"] + 3 <= behind


@pytest.mark.usefixtures("spark")
def test_an_archive_of_a_group_has_a_cursor(broker: Serving, tmp_path: Path) -> None:
    """So that retention keeps messages that are not archived yet."""
    end = broker.publish(["to be kept"])
    source = {"path": str(broker.path), "apiKey": KEY, "groupId": "archive"}
    archive(Plan(source, tmp_path / "out", master="local[2,4]"), lambda _: None)
    until(lambda: broker.cursor("archive")["position"] >= end)

    assert 1 == broker.cursor("archive")["initial"]


@pytest.mark.usefixtures("spark")
def test_typed_tables_of_a_group_have_a_cursor_each(broker: Serving, tmp_path: Path) -> None:
    """So that retention waits for the slower table, too."""
    end = broker.publish(["no reading"], "typed")
    source = {"path": str(broker.path), "apiKey": KEY, "groupId": "tables"}
    wanted = parse_typed(["typed=sensor.Temperature", "other=sensor.Humidity"])
    typed(Plan(source, tmp_path / "out", master="local[2,4]"), wanted, lambda _: None)
    names = [f"tables.{given.schema}" for given in wanted]

    until(lambda: min(broker.cursor(name)["position"] for name in names) >= end)


def test_latest_is_pinned_across_a_first_batch_that_fails(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """Messages published meanwhile are read once: the group's start precedes them."""
    broker.publish(["before"], "pinned")
    where = {"endpoint": broker.address, "apiKey": KEY, "subscribe": "pinned"}
    query = Query(spark, tmp_path, groupId="pinned", **where)
    query.fails = True
    for values in (["1", "2"], ["3"]):
        with pytest.raises(PySparkException, match="told to"):
            query.run()
        broker.publish(values, "pinned")
    query.fails = False
    query.run()

    assert ["1", "2", "3"] == query.values


def test_a_query_continues_while_the_broker_of_its_cursor_is_down(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It reads the files; a later batch moves the cursor."""
    with serving(tmp_path / "data") as broker:
        broker.publish(["1", "2"])
        where = {"path": str(broker.path), "apiKey": KEY, "startingOffsets": "earliest"}
        query = Query(spark, tmp_path / "state", groupId="alone", **where)
        query.run()
        end = broker.publish(["3"])
        broker.end()
        query.run()
        broker.start()
        before = broker.cursor("alone")["position"]
        last = broker.publish(["4"])
        query.run()
        until(lambda: broker.cursor("alone")["position"] >= last)

    assert ["1", "2", "3", "4"] == query.values
    assert before < end
