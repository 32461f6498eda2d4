"""DuckDB and polars read our Arrow tables, row for row.

In `tests/integration/spark` they read the tables of pipelines.
"""

from pathlib import Path

import pytest

from braidmq import columnar
from tests.unit.columnar.logs import log_of, message, plain_rows, write_log
from tests.unit.columnar.strangers import OF_ARROW
from tests.unit.columnar.test_reading import mixed


@pytest.mark.parametrize("reader", OF_ARROW)
def test_other_readers_see_every_column_of_every_message(reader: str, tmp_path: Path) -> None:
    """In sealed segments and in the growing one, including headers and keys."""
    with log_of(tmp_path, mixed(300)):
        table = columnar.read(tmp_path, headers=True)

        assert 1 < table.column("value").num_chunks
        assert plain_rows(tmp_path) == OF_ARROW[reader](table)


@pytest.mark.parametrize("reader", OF_ARROW)
def test_other_readers_see_the_fields_of_a_schema(reader: str, tmp_path: Path) -> None:
    """And why a row is invalid."""
    good = b'{"celsius": 1.5, "timestamp_ms": 7, "sensor_id": "s"}'
    write_log(tmp_path, [message("t", good), message("t", b"[")])
    decoding = columnar.Decoding(columnar.TypedSchema.built_in("sensor.Temperature"))
    table = columnar.read(tmp_path, decoding=decoding)
    valid, invalid = OF_ARROW[reader](table)

    assert table.to_pylist() == [valid, invalid]
    assert (1.5, None) == (valid["celsius"], valid["_error"])
    assert (None, True) == (invalid["celsius"], bool(invalid["_error"]))
