"""Our Arrow tables and Parquet files, as DuckDB and polars read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa

from tests.unit.columnar.logs import Row

FILES: Final = "**/*.parquet"
"""The pattern that the documentation gives; it matches nothing else below a table."""


def duckdb_rows(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table, through DuckDB."""
    with duckdb.connect() as connection:
        return _rows(connection.from_arrow(table))


def polars_rows(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table, through polars."""
    return pl.DataFrame(table).to_dicts()


def duckdb_files(directory: Path) -> list[Row]:
    """The rows of a table's files in log order, with the columns of its directories."""
    with duckdb.connect() as connection:
        found = connection.read_parquet(str(directory / FILES), hive_partitioning=True)
        return _in_order(_rows(found))


def polars_files(directory: Path) -> list[Row]:
    """The same, through polars."""
    found = pl.scan_parquet(directory / FILES, hive_partitioning=True)
    return _in_order(found.collect().to_dicts())


OF_ARROW: Final[dict[str, Callable[[pa.Table], list[Row]]]] = {
    "duckdb": duckdb_rows,
    "polars": polars_rows,
}
OF_FILES: Final[dict[str, Callable[[Path], list[Row]]]] = {
    "duckdb": duckdb_files,
    "polars": polars_files,
}


def _rows(found: Any) -> list[Row]:  # noqa: ANN401 - DuckDB's relation has no useful type
    rows: list[Row] = found.to_arrow_table().to_pylist()
    return rows


def _in_order(rows: list[Row]) -> list[Row]:
    """Sort rows by offset, with dates as text, as pyarrow reads them."""
    days = [{**row, "date": row["date"].isoformat()} for row in rows]
    return sorted(days, key=lambda row: int(row["offset"]))
