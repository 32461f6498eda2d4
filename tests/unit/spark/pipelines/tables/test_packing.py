"""Messages on their way to a file; that Spark packs them so is tested with a session."""

import pyarrow as pa

from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.headers import HEADERS_TYPE
from braidmq.spark.pipelines.tables.packing import PACKED, unpacked

HEADERS = [
    None,
    [{"key": "ß", "value": b"\xff\x00"}, {"key": "key", "value": b""}],
    [],
]
TEXTS = [None, '[{"key":"ß","value":"/wA="},{"key":"key","value":""}]', "[]"]


def packed(texts: list[str | None]) -> pa.Table:
    count = len(texts)
    return pa.table(
        {
            "value": pa.array([b""] * count, pa.binary()),
            "offset": pa.array(range(count), pa.int64()),
            PACKED: pa.array(texts, pa.string()),
            "origin": ["blip"] * count,
            "date": ["today"] * count,
        }
    )


def test_headers_are_lists_again_and_what_is_always_the_same_is_back() -> None:
    """In the source's order and types; other columns come behind."""
    found = unpacked(packed(TEXTS))
    names = ["value", "partition", "offset", "timestampType", "headers", "origin", "date"]

    assert names == found.column_names
    assert HEADERS == found.column("headers").to_pylist()
    assert ([0, 0, 0], [1, 1, 1]) == (
        found.column("partition").to_pylist(),
        found.column("timestampType").to_pylist(),
    )
    for name in names[:-1]:
        assert TYPES[name] == found.schema.field(name).type


def test_messages_without_any_headers_have_their_column_too() -> None:
    """The same type in every file of a table."""
    found = unpacked(packed([None, None]))

    assert HEADERS_TYPE == found.schema.field("headers").type
    assert [None, None] == found.column("headers").to_pylist()


def test_other_tables_are_left_alone() -> None:
    """They have nothing to unpack."""
    table = pa.table({"a": [1]})

    assert unpacked(table) is table
