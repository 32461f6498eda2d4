"""Arrays of records: gathering numbers and bytes from a mapped file."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.records import DEAD_LETTER, MESSAGE, SUBSCRIBE
from braidmq.columnar.layout import (
    HEADERS_AT,
    ROW,
    Rows,
    ends_of,
    gather_bytes,
    gather_u16,
    gather_u32,
    gather_u64,
    starts_of,
    take_rows,
)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_pieces_are_gathered_as_slices_are(data: bytes, draw: st.DataObject) -> None:
    """Whatever lies between them, the pieces are those of a slice, the empty ones too."""
    size = st.integers(0, len(data))
    cuts = sorted(draw.draw(st.lists(size, max_size=12)))
    pairs = list(zip(cuts[0::2], cuts[1::2], strict=False))
    starts = np.array([a for a, _ in pairs], np.int64)
    ends = np.array([b for _, b in pairs], np.int64)

    found = gather_bytes(pa.py_buffer(data), starts, ends)

    assert pa.binary() == found.type
    assert [data[a:b] for a, b in pairs] == found.to_pylist()


def test_numbers_are_read_at_any_byte() -> None:
    """Offsets need no alignment, and the last byte belongs to the last number."""
    data = np.arange(1, 20, dtype=np.uint8)
    raw = data.tobytes()
    at = np.array([0, 3, 11], np.int64)

    assert [int.from_bytes(raw[i : i + 2], "little") for i in at] == gather_u16(
        data, at
    ).tolist()
    assert [int.from_bytes(raw[i : i + 4], "little") for i in at] == gather_u32(
        data, at
    ).tolist()
    assert [int.from_bytes(raw[i : i + 8], "little") for i in at] == gather_u64(
        data, at
    ).tolist()
    assert [] == gather_u64(data[:3], np.zeros(0, np.int64)).tolist()


def some_rows(count: int) -> Rows:
    rows = np.zeros(count, ROW)
    rows["id"] = np.arange(count) + 1
    rows["payload_at"] = np.arange(count) * 100 + 90
    rows["payload_bytes"] = np.arange(count)
    return rows


def test_a_record_starts_where_the_one_before_it_ends() -> None:
    """The first one starts behind the segment's header."""
    rows = some_rows(4)

    assert [90, 191, 292, 393] == ends_of(rows).tolist()
    assert [32, 90, 191, 292] == starts_of(rows, 0, 4).tolist()
    assert [191, 292] == starts_of(rows, 2, 4).tolist()
    assert [] == starts_of(rows, 2, 2).tolist()


def test_rows_are_taken_as_fancy_indexing_takes_them() -> None:
    """Neighbours or not, or none."""
    rows = some_rows(9)

    for chosen in ([], [3], [2, 3, 4], [0, 4, 8]):
        numbers = np.array(chosen, np.int64)
        assert rows[numbers].tolist() == take_rows(rows, numbers).tolist()


def test_only_messages_have_headers() -> None:
    """The fixed part before them is as long as the broker's records say."""
    assert [40, 64, 0, 0] == HEADERS_AT[[MESSAGE, DEAD_LETTER, SUBSCRIBE, 0]].tolist()
