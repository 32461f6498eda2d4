"""Arrays of records: gathering numbers and bytes from a mapped file."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.records import DEAD_LETTER, FIRST_MESSAGE, MESSAGE, SINK_ROW, SUBSCRIBE
from braidmq.columnar.segments.layout import (
    HEADERS_AT,
    ROW,
    Rows,
    ends_of,
    gather_bytes,
    gather_structs,
    is_run,
    near_groups,
    starts_of,
    take_rows,
)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_pieces_are_gathered_as_slices_are(data: bytes, draw: st.DataObject) -> None:
    """Whatever lies between them, the pieces equal slices, empty ones included."""
    size = st.integers(0, len(data))
    cuts = sorted(draw.draw(st.lists(size, max_size=12)))
    pairs = list(zip(cuts[0::2], cuts[1::2], strict=False))
    starts = np.array([a for a, _ in pairs], np.int64)
    ends = np.array([b for _, b in pairs], np.int64)

    found = gather_bytes(pa.py_buffer(data), starts, ends)

    assert pa.binary() == found.type
    assert [data[a:b] for a, b in pairs] == found.to_pylist()


def test_structures_are_read_at_any_byte() -> None:
    """Offsets need no alignment, and the last byte belongs to the last structure."""
    raw = bytes(range(1, 20))
    kind = np.dtype([("small", "u1"), ("large", "<u4"), ("other", ">u2")])
    at = [0, 3, 12]

    found = gather_structs(pa.py_buffer(raw), np.array(at, np.int64), kind)

    assert [raw[i] for i in at] == found["small"].tolist()
    assert [int.from_bytes(raw[i + 1 : i + 5], "little") for i in at] == found["large"].tolist()
    assert [int.from_bytes(raw[i + 5 : i + 7], "big") for i in at] == found["other"].tolist()
    assert [] == gather_structs(pa.py_buffer(raw[:3]), np.zeros(0, np.int64), kind).tolist()


@pytest.mark.parametrize("kind", [np.int64, np.uint32])
def test_a_great_many_pieces_are_gathered_too(kind: type[np.generic]) -> None:
    """Whether their offsets come from an index or are computed."""
    count = 70_000
    starts = np.arange(5, 5 + 3 * count, 3).astype(kind)
    data = bytes(range(256)) * (3 * count // 256 + 1)

    found = gather_bytes(pa.py_buffer(data), starts, starts + kind(2))

    assert b"".join(data[i : i + 2] for i in range(5, 5 + 3 * count, 3)) == b"".join(
        found.to_pylist()
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=30), st.data())
def test_groups_are_bounded_and_complete(
    records: list[tuple[int, int]], draw: st.DataObject
) -> None:
    """In order, none twice; only a record that is too large by itself exceeds a bound."""
    rows, size = draw.draw(st.integers(1, 5)), draw.draw(st.integers(1, 50))
    ends = np.cumsum([gap + length for gap, length in records], dtype=np.int64)
    starts = ends - np.array([length for _, length in records], np.int64)

    pieces = list(near_groups(starts, ends, rows=rows, record_bytes=size))

    assert list(range(len(records))) == [i for p in pieces for i in range(p.start, p.stop)]
    for piece in pieces:
        held = int((ends[piece] - starts[piece]).sum())
        assert piece.stop - piece.start == 1 or held <= size
        assert piece.stop - piece.start <= rows


def test_a_run_has_no_hole() -> None:
    """An empty selection is not a run: it has no first row."""
    assert is_run(np.array([4, 5, 6]))
    assert is_run(np.array([4]))
    assert not is_run(np.array([4, 6]))
    assert not is_run(np.array([], np.int64))


def some_rows(count: int) -> Rows:
    rows = np.zeros(count, ROW)
    rows["id"] = np.arange(count) + 1
    rows["payload_at"] = np.arange(count) * 100 + 90
    rows["payload_bytes"] = np.arange(count)
    return rows


def test_a_record_starts_where_the_one_before_it_ends() -> None:
    """The first one starts after the segment's header."""
    rows = some_rows(4)

    assert [90, 191, 292, 393] == ends_of(rows).tolist()
    assert [32, 90, 191, 292] == starts_of(rows, 0, 4).tolist()
    assert [191, 292] == starts_of(rows, 2, 4).tolist()
    assert [] == starts_of(rows, 2, 2).tolist()


def test_rows_are_taken_as_fancy_indexing_takes_them() -> None:
    """Adjacent ones, scattered ones, or none."""
    rows = some_rows(9)

    for chosen in ([], [3], [2, 3, 4], [0, 4, 8]):
        numbers = np.array(chosen, np.int64)
        assert rows[numbers].tolist() == take_rows(rows, numbers).tolist()


def test_only_messages_have_headers() -> None:
    """The fixed part before them is as long as the broker's records say."""
    kinds = [MESSAGE, DEAD_LETTER, SINK_ROW, FIRST_MESSAGE, SUBSCRIBE, 0]

    assert [40, 64, 40, 56, 0, 0] == HEADERS_AT[kinds].tolist()
