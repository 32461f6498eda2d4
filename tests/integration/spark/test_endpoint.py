"""Reading over the network in a real session returns the same rows as the directory."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.serving import Serving, serving
from tests.unit.columnar.logs import Row, message, plain_rows, write_log
from tests.unit.spark.running import KEY
from tests.unit.spark.sources import MIB, varied

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

TOPICS = 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker on a log with every kind of message and very many topics."""
    many = [message(f"topic {n % TOPICS}", b"%d" % n, 300_000 + n) for n in range(2 * TOPICS)]
    bodies = [*varied(300), message("large", b"\xff" * MIB, 299_500), *many]
    path = tmp_path_factory.mktemp("broker") / "data"
    write_log(path, bodies, segment_bytes=MIB, batch=1000)
    with serving(path) as found:
        yield found


def load(spark: SparkSession, broker: Serving, *, by_path: bool, **more: object) -> DataFrame:
    where = {"path": broker.path} if by_path else {"endpoint": broker.address, "apiKey": KEY}
    options = {name: str(value) for name, value in {**where, **more}.items()}
    return spark.read.format("braidmq").options(**options).load()


def rows_of(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def test_every_row_of_ten_thousand_topics_is_read_both_ways(
    spark: SparkSession, broker: Serving
) -> None:
    """All rows and columns, in the log's order."""
    expected = plain_rows(broker.path)
    options = {"includeHeaders": True, "targetPartitionBytes": 512 * 1024}

    assert TOPICS < len({row["topic"] for row in expected})
    for by_path in (True, False):
        assert expected == rows_of(load(spark, broker, by_path=by_path, **options))


@pytest.mark.parametrize(
    "condition",
    [
        "topic IN ('topic 17', 'データ') AND offset > 100",
        "topic LIKE 'topic 99%' AND timestamp < timestamp_millis(310)",
    ],
)
def test_filters_and_patterns_select_the_same_rows(
    spark: SparkSession, broker: Serving, condition: str
) -> None:
    """The index decides, locally or at the broker."""
    pattern = ".*[a-z9].*|データ"
    both = [
        rows_of(load(spark, broker, by_path=way, subscribePattern=pattern).where(condition))
        for way in (True, False)
    ]

    assert both[0]
    assert both[0] == both[1]


def test_a_stream_can_switch_between_endpoint_and_path(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its checkpoint holds offsets, not where they came from."""
    with serving(write_log(tmp_path / "data", varied(100))) as broker:
        for where in ({"endpoint": broker.address, "apiKey": KEY}, {"path": str(broker.path)}):
            broker.publish(["one", "two"], "a")
            frame = (
                spark.readStream.format("braidmq")
                .options(startingOffsets="earliest", subscribe="a", maxOffsetsPerTrigger="15")
                .options(**where)
                .load()
            )
            writer = frame.writeStream.option("checkpointLocation", f"{tmp_path}/state")
            query = writer.trigger(availableNow=True).start(f"{tmp_path}/rows")
            assert query.awaitTermination(120)
        files = (tmp_path / "rows").glob("*.parquet")
        found = [row["offset"] for file in files for row in pq.read_table(file).to_pylist()]

        assert [r["offset"] for r in broker.rows() if r["topic"] == "a"] == sorted(found)


def test_no_error_and_no_plan_shows_the_key(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """Spark shows plans, with the options of their sources, in errors, logs and pages."""
    where = {"endpoint": broker.address, "apiKey": "s3cret"}
    table = spark.read.format("braidmq").options(**where).load()
    reader = spark.readStream.format("braidmq").options(startingOffsets="earliest", **where)
    stream = reader.load()
    writer = stream.writeStream.format("braidmq").options(**where)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(PySparkException) as failure:
        query.awaitTermination(120)
    plans = [plan_of(frame.select("value")) for frame in (table, stream)]

    assert "the API key is not known" in str(failure.value)
    assert broker.address in plans[1]
    assert [] == [text for text in (str(failure.value), *plans) if "s3cret" in text]


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())  # noqa: SLF001 - no other way
