"""DuckDB and polars take our Arrow tables as they are, row for row.

The tables of pipelines are read by them in `tests/integration/spark`, where they are made.
"""

from pathlib import Path

import pytest

from braidmq import columnar
from tests.unit.columnar.logs import log_of, message, plain_rows, write_log
from tests.unit.columnar.strangers import OF_ARROW
from tests.unit.columnar.test_reading import mixed


@pytest.mark.parametrize("reader", OF_ARROW)
def test_others_see_every_column_of_every_message(reader: str, tmp_path: Path) -> None:
    """Of sealed segments and of the one that grows, headers and keys among them."""
    with log_of(tmp_path, mixed(300)):
        table = columnar.read(tmp_path, headers=True)

        assert 1 < table.column("value").num_chunks
        assert plain_rows(tmp_path) == OF_ARROW[reader](table)


@pytest.mark.parametrize("reader", OF_ARROW)
def test_others_see_the_fields_of_a_schema(reader: str, tmp_path: Path) -> None:
    """And why a row does not fit."""
    good = b'{"celsius": 1.5, "timestamp_ms": 7, "sensor_id": "s"}'
    write_log(tmp_path, [message("t", good), message("t", b"[")])
    decoding = columnar.Decoding(columnar.TypedSchema.built_in("sensor.Temperature"))
    table = columnar.read(tmp_path, decoding=decoding)
    fits, misfit = OF_ARROW[reader](table)

    assert table.to_pylist() == [fits, misfit]
    assert (1.5, None) == (fits["celsius"], fits["_error"])
    assert (None, True) == (misfit["celsius"], bool(misfit["_error"]))
