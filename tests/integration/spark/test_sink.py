"""The sink in a real session: whatever is killed, each row reaches its topic once.

A test holds back rows in the middle of a batch until a file appears, which leaves
time for a kill.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from threading import Thread

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from braidmq import columnar
from tests.integration.spark.conftest import ON_LOOPBACK
from tests.integration.spark.families import executors_of, family_of, workers_of
from tests.integration.spark.serving import Serving, serving, until
from tests.unit.spark.running import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

ROWS = 200
PADDING = 160 * 1024
"""Bytes per row; a few rows fill the buffers on the way to the broker."""

SMALL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
    "spark.sql.execution.python.udf.maxRecordsPerBatch": "5",
}
HALF = ROWS // 2
NUMBERS = [str(number) for number in range(ROWS)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker whose topic `in` holds NUMBERS."""
    with serving(tmp_path_factory.mktemp("broker") / "data") as found:
        found.publish(NUMBERS, "in")
        yield found


@pytest.fixture(autouse=True)
def _small_batches(spark: SparkSession) -> None:
    for name, value in SMALL.items():
        spark.conf.set(name, value)


def to(broker: Serving, **more: object) -> dict[str, str]:
    given = {"endpoint": broker.address, "apiKey": KEY, **more}
    return {name: str(value) for name, value in given.items()}


def read(spark: SparkSession, parts: int, **where: str) -> DataFrame:
    options = {"subscribe": "in", "startingOffsets": "earliest", "minPartitions": str(parts)}
    return spark.readStream.format("braidmq").options(**options, **where).load()


def held(frame: DataFrame, root: Path) -> DataFrame:
    """Return large rows, half of which wait for a gate.

    Whether a batch has all numbers or half of them, both of its tasks send some rows first.
    """
    gates = [str(gate) for gate in gates_in(root)]
    padding, half, few = PADDING, HALF, HALF // 2

    def hold(value: bytearray) -> str:
        import time  # noqa: PLC0415 - runs on a worker, which has only the shipped function
        from pathlib import Path  # noqa: PLC0415 - as above

        number = int(value.decode())
        while number % few > few // 2 and not Path(gates[number // half]).exists():
            time.sleep(0.01)
        return f"{number}{' ' * padding}"

    return frame.select(udf(hold, "string", useArrow=False)("value").alias("value"))


def gates_in(root: Path) -> list[Path]:
    """Return the files that release the rows of each half."""
    return [root / "gate of the first half", root / "gate of the second half"]


def open_gates(root: Path) -> None:
    for gate in gates_in(root):
        gate.touch()


def start(frame: DataFrame, state: Path, options: dict[str, str]) -> StreamingQuery:
    writer = frame.writeStream.format("braidmq").options(**options)
    writer = writer.option("checkpointLocation", str(state))
    return writer.trigger(availableNow=True).start()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(200)


def numbers_on(broker: Serving, topic: str) -> list[str]:
    """Return the numbers on a topic, sorted."""
    return sorted((value.strip() for value in broker.values(topic)), key=int)


def forget_last_commit(state: Path) -> None:
    """Make a checkpoint look as if its query was killed right after the sink's commit."""
    last = max((state / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_rows_that_were_read_can_be_written(spark: SparkSession, broker: Serving) -> None:
    """With key, headers and priority; the option `topic` overrides the column."""
    rows = [
        ("a", "k", [("größe", b"\xc3\xbc")], "high"),
        ("", None, None, "low"),
        ("c", "", [], "normal"),
    ]
    schema = (
        "value string, key string, headers array<struct<key:string,value:binary>>, "
        "priority string, topic string"
    )
    frame = spark.createDataFrame([(*row, "first") for row in rows], schema)
    frame.write.format("braidmq").mode("append").options(**to(broker)).save()
    again = spark.read.format("braidmq").options(path=str(broker.path), includeHeaders="true")
    first = again.option("subscribe", "first").load()
    first.write.format("braidmq").mode("append").options(**to(broker, topic="second")).save()
    kept = ("key", "headers", "priority", "origin")
    one, two = (
        {
            row["value"]: [row[name] for name in kept]
            for row in broker.rows()
            if row["topic"] == topic
        }
        for topic in ("first", "second")
    )
    headers = [{"key": "größe", "value": b"\xc3\xbc"}, {"key": "key", "value": b"k"}]

    assert {b"a", b"", b"c"} == set(one)
    assert [b"k", headers, "high", "spark"] == one[b"a"]
    assert one == two


def test_an_impossible_write_is_refused_with_a_clear_message(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """At planning time, through all of Spark's layers."""
    frame = spark.range(3).selectExpr("id AS value")
    writes = frame.write.format("braidmq").options(**to(broker, topic="none"))
    with pytest.raises(PySparkException, match="column value: is bigint; cast it: binary or"):
        writes.mode("append").save()
    with pytest.raises(PySparkException, match="option mode: 'overwrite' cannot be used"):
        writes.mode("overwrite").save()
    counts = read(spark, 1, path=str(broker.path)).groupBy("topic").count()
    query = (
        counts.selectExpr("topic", "string(count) AS value")
        .writeStream.format("braidmq")
        .options(checkpointLocation=str(tmp_path), **to(broker))
    )
    with pytest.raises(PySparkException, match="option mode: 'overwrite' cannot be used"):
        query.outputMode("complete").trigger(availableNow=True).start().awaitTermination(120)


def test_a_worker_killed_during_a_batch_is_replaced(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """The failed attempt publishes no rows, the next attempt each row once."""
    frame = held(read(spark, 2, path=str(broker.path)), tmp_path)
    query = start(frame, tmp_path / "state", to(broker, topic="worker"))
    until(broker.staging)
    workers = workers_of(psutil.Process())
    killed = [worker for worker in workers if is_connected(worker, broker.port)]
    for worker in killed:
        worker.kill()
    open_gates(tmp_path)
    finish(query)

    assert killed
    assert NUMBERS == numbers_on(broker, "worker")


def is_connected(process: psutil.Process, port: int) -> bool:
    try:
        return any(port in found.raddr for found in process.net_connections())
    except psutil.Error:
        return False


def test_a_query_waits_for_a_broker_killed_during_a_batch(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """Tasks wait and are retried, and so are the driver's calls, for source and sink."""
    frame = held(read(spark, 2, endpoint=broker.address, apiKey=KEY), tmp_path)
    query = start(frame, tmp_path / "state", to(broker, topic="broker"))
    until(broker.staging)
    broker.end(signal.SIGKILL)
    open_gates(tmp_path)
    broker.start()
    finish(query)

    assert NUMBERS == numbers_on(broker, "broker")


def test_a_broker_killed_while_it_publishes_resumes(
    spark: SparkSession, broker: Serving
) -> None:
    """Spark repeats the commit, and the broker continues the batch it had begun."""
    count = 20_000
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    seen: list[int] = []

    def kill_in_the_middle() -> None:
        until(lambda: published(broker, "all"))
        broker.end(signal.SIGKILL)
        seen.append(published(broker, "all"))
        broker.start()

    killing = Thread(target=kill_in_the_middle)
    killing.start()
    frame = spark.range(count, numPartitions=2).selectExpr("string(id) AS value")
    frame.write.format("braidmq").mode("append").options(**to(broker, topic="all")).save()
    killing.join()

    assert 0 < seen[0] < count
    assert [str(number) for number in range(count)] == numbers_on(broker, "all")


def published(broker: Serving, topic: str) -> int:
    found = columnar.topic_counts(broker.path).get(topic)
    return 0 if found is None else found.messages


@pytest.mark.campaign  # the suite kills both under its pipelines, in `test_pipeline_kill`
def test_a_query_survives_a_killed_executor_and_then_a_killed_driver(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """Killed tasks publish no rows, their retries each row once.

    The cluster replaces the executor, and the query finishes its first batch by itself. Another
    driver continues the second from the checkpoint; the broker drops what the first had staged.
    """
    first, second = gates_in(tmp_path)
    driver = drive(broker, tmp_path, "killed", "local-cluster[2,1,1024]")

    def writing() -> list[psutil.Process]:
        return writing_executors(driver, broker.port) if broker.staging() else []

    try:
        until(writing)
        victim = writing()[0]
        victim.kill()
        psutil.wait_procs([victim], 60)
        first.touch()
        until((tmp_path / "state/offsets/1").exists)
        assert NUMBERS[:HALF] == numbers_on(broker, "killed")
        until(writing)
        assert driver.poll() is None
    finally:
        killed = kill_family(driver)
    assert NUMBERS[:HALF] == numbers_on(broker, "killed")
    second.touch()
    frame = held(read(spark, 2, path=str(broker.path)), tmp_path)
    finish(start(frame, tmp_path / "state", to(broker, topic="killed")))

    assert "java" in killed
    assert NUMBERS == numbers_on(broker, "killed")


def drive(broker: Serving, root: Path, topic: str, master: str) -> "subprocess.Popen[bytes]":
    """Start a separate driver that writes each half of the numbers as a batch."""
    program = dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
        from braidmq.spark import session
        from tests.integration.spark import test_sink as here
        from tests.integration.spark.conftest import QUICK
        from pathlib import Path

        root = Path({str(root)!r})
        spark = session("killed", master={master!r}, config=QUICK | here.SMALL)
        rows = here.read(spark, 2, path={str(broker.path)!r}, maxOffsetsPerTrigger="{HALF}")
        frame = here.held(rows, root)
        query = here.start(frame, root / "state", {to(broker, topic=topic)!r})
        query.awaitTermination()
        """
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **ON_LOOPBACK},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def writing_executors(driver: "subprocess.Popen[bytes]", port: int) -> list[psutil.Process]:
    """Return the executors with a task that is connected to the broker."""
    return [
        executor
        for executor in executors_of(psutil.Process(driver.pid))
        if any(is_connected(worker, port) for worker in workers_of(executor))
    ]


def kill_family(process: "subprocess.Popen[bytes]") -> set[str]:
    """Kill a process and its descendants; return their names."""
    family = family_of(psutil.Process(process.pid)) if process.poll() is None else []
    process.kill()
    for _, member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    return {name for name, _ in family}


def test_repeating_a_batch_with_other_partitions_changes_nothing(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """The broker recognises its key."""
    frame = read(spark, 1, path=str(broker.path))
    finish(start(frame.repartition(2), tmp_path, to(broker, topic="repeated")))
    once = broker.rows()[-1]
    forget_last_commit(tmp_path)
    finish(start(frame.repartition(3), tmp_path, to(broker, topic="repeated")))

    assert NUMBERS == numbers_on(broker, "repeated")
    assert once == broker.rows()[-1]


def test_two_writes_of_one_foreach_batch_are_deduplicated_separately(
    spark: SparkSession, broker: Serving, tmp_path: Path
) -> None:
    """By their sinkId; without one, the second write is refused."""

    def write(frame: DataFrame, names: list[str | None]) -> None:
        for name in names:
            known = {} if name is None else {"sinkId": name}
            options = to(broker, topic=f"each {name}", **known)
            frame.select("value").write.format("braidmq").mode("append").options(
                **options
            ).save()

    def run(names: list[str | None]) -> None:
        frame = read(spark, 2, path=str(broker.path))
        writer = frame.writeStream.foreachBatch(lambda frame, _batch: write(frame, names))
        writer = writer.option("checkpointLocation", str(tmp_path))
        finish(writer.trigger(availableNow=True).start())

    with pytest.raises(PySparkException, match="option sinkId: '' is missing: the writes of"):
        run(["one", None])
    run(["one", "two"])
    forget_last_commit(tmp_path)
    run(["two", "one"])

    assert [NUMBERS] * 2 == [numbers_on(broker, f"each {name}") for name in ("one", "two")]
    assert [] == numbers_on(broker, "each None")
