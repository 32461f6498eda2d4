"""Typed tables in a real session: every row is typed or quarantined, none is lost."""

from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.typed import judged, parse_typed, typed
from tests.integration.spark.outputs import (
    HUMIDITY,
    SCHEMAS,
    TEMPERATURE,
    expected_typed,
    forget_newest_commit,
    readings,
    rows_of,
    typed_rows,
)
from tests.unit.columnar.logs import log_of, message, plain_rows, write, write_log
from tests.unit.columnar.strangers import OF_FILES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("spark"),
]

WANTED = parse_typed(f"{topic}={schema}" for topic, schema in SCHEMAS.items())


def plan_of(log: Path, out: Path, form: str = "parquet") -> Plan:
    source = {"path": str(log), "maxOffsetsPerTrigger": "40"}
    return Plan(source, out, format=form, master="local[2,4]")


def test_each_schema_has_its_table_and_misfits_are_in_quarantine(tmp_path: Path) -> None:
    """Checked against a plain count, after lost commits, and with other readers."""
    out, lines = tmp_path / "out", list[str]()
    with log_of(tmp_path / "log", readings(120)) as wal:
        run = partial(typed, plan_of(tmp_path / "log", out), WANTED, lines.append)
        run()
        for schema in (TEMPERATURE, HUMIDITY):
            assert expected_typed(tmp_path / "log", schema) == typed_rows(out, schema)
            forget_newest_commit(out / "_checkpoint" / schema)
        write(wal, readings(40, 120))
        run()
        for schema in (TEMPERATURE, HUMIDITY):
            assert expected_typed(tmp_path / "log", schema) == typed_rows(out, schema)
        wanted = [row for row in plain_rows(tmp_path / "log") if row["topic"] in SCHEMAS]

    tables = [rows_of(out / name) for name in (TEMPERATURE, HUMIDITY, "quarantine")]
    assert all(tables)
    for name, rows in zip((TEMPERATURE, HUMIDITY, "quarantine"), tables, strict=True):
        assert [rows, rows] == [read(out / name) for read in OF_FILES.values()]
    assert len(wanted) == sum(map(len, tables))
    assert any(line.startswith(f"typed {HUMIDITY}: batch 0, 30 rows") for line in lines)


def test_a_lost_row_fails_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's index has the count; the batch writes nothing and is repeated."""
    log, out = write_log(tmp_path / "log", readings(60)), tmp_path / "out"
    run = partial(typed, plan_of(log, out), WANTED[:1], print)

    def losing(rows: DataFrame, schema_id: str) -> DataFrame:
        return judged(rows, schema_id).where("offset <> 5")

    with monkeypatch.context() as patch:
        patch.setattr("braidmq.spark.pipelines.typed.judged", losing)
        with pytest.raises(BraidError, match=r"batch 0 has 30 rows, but 29 would be written"):
            run()
    assert [] == list(out.rglob("*.parquet"))
    run()

    assert expected_typed(log, TEMPERATURE) == typed_rows(out, TEMPERATURE)


def test_delta_has_a_table_for_each_schema_too(tmp_path: Path) -> None:
    """A repeated batch is in none of them twice."""
    log = write_log(tmp_path / "log", readings(60))
    run = partial(typed, plan_of(log, tmp_path / "out", "delta"), WANTED[:1], print)
    run()
    forget_newest_commit(tmp_path / "out" / "_checkpoint" / TEMPERATURE)
    run()
    expected = expected_typed(log, TEMPERATURE)

    for name, rows in zip((TEMPERATURE, "quarantine"), expected, strict=True):
        table = DeltaTable(tmp_path / "out" / name).to_pyarrow_table()
        assert [row["offset"] for row in rows] == sorted(table.column("offset").to_pylist())


def test_rows_are_classified_by_their_error(spark: SparkSession, tmp_path: Path) -> None:
    """A valid row has its fields and no payload; a misfit has its bytes and the reason."""
    good = b'{"celsius": 1.5, "timestamp_ms": 7, "sensor_id": "s"}'
    log = write_log(tmp_path / "log", [message("t", good), message("t", b"[")])
    reader = spark.read.format("braidmq").option("schemaId", TEMPERATURE)
    found = judged(reader.load(str(log)), TEMPERATURE).orderBy("offset").toArrow().to_pylist()

    fits, misfit = found
    assert (TEMPERATURE, 1.5, None, None) == tuple(
        fits[name] for name in ("_table", "celsius", "value", "_error")
    )
    assert ("quarantine", None, b"[") == tuple(
        misfit[name] for name in ("_table", "celsius", "value")
    )
    assert misfit["_error"]
    assert {TEMPERATURE} == {row["_schema"] for row in found}
