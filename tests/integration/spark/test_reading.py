"""Reading the log in a real session: the JVM and its Python workers, nothing faked.

The tests in tests/unit/spark cover each case that needs no JVM. All tests here share a session.
"""

import base64
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from braidmq.broker.marks import SENDER_PUBLIC_KEY
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.columnar.decoding.unsealing import NOT_SEALED
from braidmq.spark import register, session
from braidmq.spark.sessions import CONFIG
from tests.integration.spark.families import workers_of
from tests.integration.spark.outputs import TEMPERATURE
from tests.unit.columnar.logs import (
    Row,
    log_of,
    message,
    plain_rows,
    retain_from,
    segment_files,
    write,
    write_log,
)
from tests.unit.spark.sources import MIB, varied

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

Option = str | int | bool
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting for filters of Python sources, which is off by default."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every kind of message, including the largest."""
    bodies = [*varied(150), message("a", b"\xff" * MIB, 150_000), *varied(150, 151)]
    return write_log(tmp_path_factory.mktemp("log"), bodies)


def load(
    spark: SparkSession, path: Path, schema: str | None = None, **options: Option
) -> DataFrame:
    reader = spark.read.format("braidmq").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(str(path))


def rows_of(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def test_the_session_is_ready(spark: SparkSession) -> None:
    """Workers run this Python, and `session` returns the same session."""
    assert spark.sparkContext.pythonExec == sys.executable
    found = dict(spark.sparkContext.getConf().getAll())
    assert [] == [name for name, value in CONFIG.items() if value not in found[name]]
    sockets = Path(found["spark.python.unix.domain.socket.dir"])
    assert [] != [path for path in sockets.iterdir() if path.is_socket()]
    assert spark.sparkContext is session(master="local[2]").sparkContext
    formats = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - there is no public API
    environment = formats.lookupDataSource("braidmq").dataSourceCls().envVars()
    assert "ConcurrentHashMap" == environment.getClass().getSimpleName()


def test_another_thread_finds_the_format(spark: SparkSession, log: Path) -> None:
    """After it has registered it: a thread starts without an active session."""

    def count() -> int:
        register(spark)
        return load(spark, log, endingOffsets=100).count()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(count).result()

    assert sum(row["offset"] < 100 for row in plain_rows(log)) == found


def test_every_read_returns_the_rows_of_the_log(spark: SparkSession, log: Path) -> None:
    """All rows and columns: headers, every script, empty payloads and a mebibyte."""
    frame = load(spark, log, includeHeaders=True, targetPartitionBytes=8000, endingOffsets=302)
    expected = plain_rows(log)

    assert {0, MIB} <= {len(row["value"]) for row in expected}
    assert expected == rows_of(frame)
    assert expected == rows_of(frame)


CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "topic = 'データ' AND offset > 17 AND offset <= 140": (
        lambda row: row["topic"] == "データ" and 17 < row["offset"] <= 140
    ),
    "topic IN ('a', 'köln/straße-ß') AND length(value) > 3 AND qos = 1": (
        lambda row: row["topic"] in {"a", "köln/straße-ß"} and len(row["value"]) > 3
    ),
    "timestamp >= timestamp_millis(40) AND timestamp < timestamp_millis(90) AND key IS NULL": (
        lambda row: 41 <= row["offset"] < 91 and row["key"] is None
    ),
    "topic LIKE 'dlq.%' OR offset = 5": (
        lambda row: row["topic"].startswith("dlq.") or row["offset"] == 5
    ),
    "topic = 'nowhere'": lambda row: False,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_match_a_plain_count(spark: SparkSession, log: Path, condition: str) -> None:
    """Spark applies them to the rows."""
    expected = [row["offset"] for row in plain_rows(log) if CONDITIONS[condition](row)]
    frame = load(spark, log).where(condition)

    assert expected == [row["offset"] for row in rows_of(frame.select("offset"))]


@pytest.mark.parametrize("setting", ["true", "false"])
def test_a_frame_that_is_used_twice_returns_the_rows_of_each_use(
    spark: SparkSession, log: Path, setting: str
) -> None:
    """Even if the user turned filter pushdown on: the filters of one use stay its own."""
    spark.conf.set(FILTER_PUSHDOWN, setting)
    try:
        frame = load(spark, log, "topic string, offset bigint")
        rows = [(row["topic"], row["offset"]) for row in plain_rows(log)]
        few, late = frame.where("topic = 'a'"), frame.where("offset >= 200")
        expected_few = [row for row in rows if row[0] == "a"]
        expected_late = [row for row in rows if row[1] >= 200]

        assert expected_few == few.collect()
        assert len(rows) == frame.count()
        assert expected_late == late.collect()
        assert rows == frame.collect()
        assert sorted(expected_few + expected_late) == sorted(few.union(late).collect())
        assert sorted(expected_few + rows) == sorted(few.union(frame).collect())
        both = sorted(row for row in expected_few if row in expected_late)
        assert both == sorted(few.join(late, ["topic", "offset"]).collect())
        frame.createOrReplaceTempView("every_message")
        found = spark.sql("SELECT count(*), count_if(topic = 'a') FROM every_message").first()
        assert (len(rows), len(expected_few)) == found
        few.createOrReplaceTempView("few_messages")
        in_few = spark.sql("SELECT count(*) FROM few_messages WHERE offset >= 200").first()
        assert (len(both),) == in_few
        assert len(rows) == spark.table("every_message").count()
    finally:
        spark.conf.unset(FILTER_PUSHDOWN)


def test_options_select_on_the_index(spark: SparkSession, log: Path) -> None:
    """Topics and ranges are part of the read; Spark's plan has nothing left to filter."""
    frame = load(spark, log, subscribe="a", startingOffsets=20, endingTimestamp=120)
    plan = frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - there is no public API
    expected = [
        row["offset"]
        for row in plain_rows(log)
        if row["topic"] == "a" and 20 <= row["offset"] < 121
    ]

    assert "BatchScan braidmq" in plan
    assert "Filter" not in plan.replace("RuntimeFilters", "")
    assert expected == [row["offset"] for row in rows_of(frame)]


def test_a_schema_is_a_projection(spark: SparkSession, log: Path) -> None:
    """A count reads no payload; typed columns and their errors have Spark's types."""
    good = json.dumps({"celsius": -1.5, "timestamp_ms": 2**40, "sensor_id": "ß"}).encode()
    typed_log = write_log(log.parent / "typed", [message("t", good), message("t", b"[")])
    typed = rows_of(load(spark, typed_log, schemaId="sensor.Temperature").orderBy("offset"))

    assert len(plain_rows(log)) == load(spark, log, "topic string").count()
    assert [(-1.5, 2**40, "ß", None)] == [
        tuple(typed[0][name] for name in ("celsius", "timestamp_ms", "sensor_id", "_error"))
    ]
    assert (b"[", None, True) == (
        typed[1]["value"],
        typed[1]["celsius"],
        bool(typed[1]["_error"]),
    )


def run_stream(spark: SparkSession, path: Path, out: Path, **options: Option) -> list[int]:
    """Run a query until everything is read; return the row count of each micro-batch."""
    frame = spark.readStream.format("braidmq").options(**options).load(str(path))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}/state")
    query = writer.trigger(availableNow=True).start(f"{out}/rows")
    assert query.awaitTermination(120)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def stored(out: Path) -> list[Row]:
    """Return the rows that a plain Parquet reader sees."""
    files = (out / "rows").glob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: int(row["offset"]))


def test_only_what_a_trusted_key_sealed_is_a_trusted_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The rest is in `_error`, whoever it names as its sender, and has no typed field."""
    trusted, stranger, reader = (KeyPair.generate() for _ in range(3))
    plain = b'{"celsius":21.5,"timestamp_ms":1,"sensor_id":"s"}'
    by_trusted, by_stranger = (
        one.seal(plain, reader.public_key) for one in (trusted, stranger)
    )
    sent = [
        (trusted, by_trusted),
        (stranger, by_stranger),
        (trusted, by_stranger),
        (trusted, plain),
        (None, plain),
        (None, by_trusted),
    ]
    bodies = [
        message("t", payload, kept={} if keys is None else {SENDER_PUBLIC_KEY: text_of(keys)})
        for keys, payload in sent
    ]
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(reader.reveal_private_key().hex())
    found = rows_of(
        load(
            spark,
            write_log(tmp_path / "log", bodies),
            schemaId=TEMPERATURE,
            privateKeyFile=str(key_file),
            trustedKeys=trusted.public_key.hex(),
        )
    )

    assert [
        (None, 21.5, plain),
        ("the sender is not trusted", None, by_stranger),
        ("the box does not open", None, by_stranger),
        (NOT_SEALED, None, plain),
        (NOT_SEALED, None, plain),
        (NOT_SEALED, None, by_trusted),
    ] == [(row["_error"], row["celsius"], row["value"]) for row in found]


def text_of(keys: KeyPair) -> str:
    return base64.b64encode(keys.public_key).decode()


def test_a_stream_reads_everything_once_and_resumes_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In micro-batches up to the limit; a later run ignores its own startingOffsets."""
    options: dict[str, Option] = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 120,
        "includeHeaders": True,
    }
    with log_of(tmp_path / "log", varied(300)) as wal:
        path = tmp_path / "log"
        first = run_stream(spark, path, tmp_path, **options)
        before = plain_rows(path)
        read = stored(tmp_path)
        write(wal, varied(50, 300))
        options["startingOffsets"] = '{"a": {"0": 340}}'
        second = run_stream(spark, path, tmp_path, **options)
        after = plain_rows(path)

    assert [120, 120, len(before) - 240] == first
    assert before == read
    assert [len(after) - len(before)] == second
    assert after == stored(tmp_path)


def test_messages_removed_by_retention_fail_the_read_or_are_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As failOnDataLoss says; never a silent short read."""
    with log_of(tmp_path, [message("t", b"x" * 300, n) for n in range(100)]) as wal:
        retain_from(wal, 60)
        strict = load(spark, tmp_path, "offset bigint", startingOffsets=1)
        with pytest.raises(PySparkException, match=r"the offsets 1 to .* failOnDataLoss=false"):
            strict.toArrow()
        rest = rows_of(
            load(spark, tmp_path, "offset bigint", startingOffsets=1, failOnDataLoss=False)
        )

        assert plain_rows(tmp_path)[0]["offset"] > 1
        assert [{"offset": row["offset"]} for row in plain_rows(tmp_path)] == rest


def mapped_below(path: Path) -> set[str]:
    """Return the files below a directory that Spark's Python processes have mapped."""
    found = set()
    for worker in workers_of(psutil.Process()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just exited
            lines = Path(f"/proc/{worker.pid}/maps").read_text().splitlines()
            found |= {Path(line.split()[-1]).name for line in lines if str(path) in line}
    return found


def test_files_stay_mapped_between_queries_of_few_topics(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query of all topics keeps none mapped; the rows are correct either way."""
    often = [message("often", b"x" * 60, n) for n in range(50)]
    write_log(tmp_path, [message("rare", b"1"), *often, message("rare", b"2"), *often] * 4)
    everything = rows_of(load(spark, tmp_path))
    assert set() == mapped_below(tmp_path)
    expected = [row for row in everything if row["topic"] == "rare"]

    assert expected == rows_of(load(spark, tmp_path, subscribe="rare"))
    assert {path.name for path in segment_files(tmp_path)[:-1]} <= mapped_below(tmp_path)
    assert expected == rows_of(load(spark, tmp_path, subscribe="rare"))


def test_the_error_for_a_bad_option_says_what_to_do(spark: SparkSession, log: Path) -> None:
    """Through all of Spark's layers; an availableNow stream from latest is refused."""
    with pytest.raises(
        PySparkException, match=r"option include_headers: 'true' .* includeHeaders"
    ):
        load(spark, log, include_headers=True)
    stream = spark.readStream.format("braidmq").load(str(log)).writeStream.format("noop")
    query = stream.trigger(availableNow=True)
    with pytest.raises(PySparkException, match="option startingOffsets: 'latest' would lose"):
        query.start().awaitTermination(120)


def test_a_session_finds_the_format_without_registering_it(
    spark: SparkSession, log: Path
) -> None:
    """By the module's name, in the Python that its workers run."""
    other = spark.newSession()
    other.createDataFrame([], "nothing int")  # makes it the thread's active one
    found = load(other, log, "topic string").where("topic = 'a'").count()

    assert len([row for row in plain_rows(log) if row["topic"] == "a"]) == found


def test_another_session_of_the_context_registers_for_itself(
    spark: SparkSession, log: Path
) -> None:
    """The format belongs to one session, and registering it twice does no harm.

    Spark itself considers the name taken while another session that has it is active.
    """
    other = spark.newSession()
    register(other)
    register(other)

    assert len(plain_rows(log)) == load(other, log, "offset bigint").count()
