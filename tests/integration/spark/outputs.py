"""Logs for the pipelines, and their tables as readers other than Spark see them."""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.unit.columnar.logs import Row, message, plain_rows

HOUR_US: Final = 3_600_000_000
TEMPERATURE: Final = "sensor.Temperature"
HUMIDITY: Final = "sensor.Humidity"
SCHEMAS: Final = {"köln/temp": TEMPERATURE, "b": TEMPERATURE, "humid": HUMIDITY}
"""The topics with a schema; one more has none."""

TOPICS: Final = ("köln/temp", "humid", "b", "other")
BAD: Final = (b"[", b"", b'{"celsius": "warm"}', b"\xff\xfe")


def reading(number: int) -> bytes:
    """Return a message, an hour later than the previous one; one in five is invalid."""
    topic = TOPICS[number % 4]
    field = "percent" if topic == "humid" else "celsius"
    good = {field: number / 8, "timestamp_ms": number, "sensor_id": f"s{number % 3}"}
    payload = BAD[number % 4] if number % 5 == 4 else json.dumps(good).encode()
    kept = {"key": f"k{number}", "größe": "ü"} if number % 3 == 0 else {}
    return message(topic, payload, number * HOUR_US, kept=kept)


def readings(count: int, first: int = 0) -> list[bytes]:
    return [reading(number) for number in range(first, first + count)]


def archived(out: Path) -> list[Row]:
    """Return the rows of an archive without its partition columns, in log order."""
    rows = rows_of(out)
    for row in rows:
        del row["date"], row["topic_dir"]
    return rows


def in_delta(out: Path) -> list[Row]:
    """Return the same for an archive in Delta format, read with Delta's own library."""
    if not DeltaTable.is_deltatable(str(out)):
        return []
    table = DeltaTable(out).to_pyarrow_table().drop_columns(["date"])
    return sorted(table.to_pylist(), key=lambda row: int(row["offset"]))


def rows_of(table: Path) -> list[Row]:
    """Return the rows of one table in log order; there may be none yet."""
    if not any(table.rglob("*.parquet")):
        return []
    return sorted(pq.read_table(table).to_pylist(), key=lambda row: int(row["offset"]))


def expected_typed(log: Path, schema: str) -> tuple[list[Row], list[Row]]:
    """Return the expected rows of a schema's table and of its quarantine."""
    typed: list[Row] = []
    misfits: list[Row] = []
    for row in plain_rows(log):
        if SCHEMAS.get(row["topic"]) != schema:
            continue
        shared = {name: row[name] for name in ("topic", "offset", "timestamp", "key")}
        shared["date"] = row["timestamp"].date().isoformat()
        fields = _fields(row["value"])
        if fields is None:
            misfits.append({**shared, "value": row["value"], "schema": schema})
        else:
            typed.append({**shared, **fields})
    return typed, misfits


def _fields(payload: bytes) -> dict[str, Any] | None:
    return None if payload in BAD else json.loads(payload)


def typed_rows(out: Path, schema: str) -> tuple[list[Row], list[Row]]:
    """Return the rows of a schema's table and its quarantine; each misfit has a reason."""
    misfits = [row for row in rows_of(out / "quarantine") if row["schema"] == schema]
    assert all(row.pop("reason") for row in misfits)
    return rows_of(out / schema), misfits


def newest_commit(checkpoint: Path) -> Path:
    """Return the commit file of the last batch."""
    return max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))


def forget_newest_commit(checkpoint: Path) -> None:
    """Make Spark repeat the last batch; it keeps a checksum beside the commit file."""
    newest = newest_commit(checkpoint)
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
