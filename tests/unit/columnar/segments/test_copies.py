"""Records copied out of a segment: verified together, and in one place."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.columnar.segments.verifying import copies
from braidmq.wal.format import RECORD_HEADER_BYTES, encode_record

HOLE = b"between"


def spaced(texts: list[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return records with holes between them, and where they start and end."""
    data = b""
    positions = []
    for number, text in enumerate(texts):
        record = encode_record(number + 1, b"\x01" + text, fence=number == 1)
        positions.append((len(data), len(data) + len(record)))
        data += record + HOLE
    starts, ends = np.array(positions, np.int64).reshape(-1, 2).T
    return data, starts, ends


def are_intact(data: bytes, starts: np.ndarray, ends: np.ndarray) -> bool:
    ids = np.arange(1, len(starts) + 1)
    return None not in copies(pa.py_buffer(data), ids, starts, ends)


@given(st.lists(st.binary(max_size=99), min_size=1, max_size=20))
def test_bodies_are_copied_and_verified(bodies: list[bytes]) -> None:
    """Of any number and length; `moved` says where they are now."""
    data, starts, ends = spaced(bodies)

    [found] = copies(pa.py_buffer(data), np.arange(1, len(starts) + 1), starts, ends)

    assert found is not None
    group, copy = found
    assert slice(0, len(bodies)) == group
    copied = copy.buffer.to_pybytes()
    assert len(copied) == int((ends - starts).sum())
    for body, end, moved in zip(bodies, ends, copy.moved, strict=True):
        at = end + moved
        assert data[end - len(body) : end] == copied[at - len(body) : at]


@given(st.data())
def test_damage_anywhere_in_a_record_is_found(data: st.DataObject) -> None:
    """A changed byte of any record; between records it does not matter."""
    bodies = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=9))
    log, starts, ends = spaced(bodies)
    at = data.draw(st.integers(0, len(log) - 1))
    changed = bytearray(log)
    changed[at] ^= data.draw(st.integers(1, 255))

    is_between = not bool(np.any((starts <= at) & (at < ends)))

    assert is_between == are_intact(bytes(changed), starts, ends)


def test_swapped_checksums_are_found() -> None:
    """All the bytes are there, but not where they belong."""
    data, starts, ends = spaced([b"one", b"two"])
    changed = bytearray(data)
    first, second = (slice(start + 12, start + 16) for start in starts.tolist())
    changed[first], changed[second] = changed[second], changed[first]

    assert are_intact(data, starts, ends)
    assert not are_intact(bytes(changed), starts, ends)


@pytest.mark.parametrize(
    "wrong", ["other ids", "out of order", "empty", "backwards", "too long", "past the end"]
)
def test_impossible_positions_are_refused_before_anything_is_read(wrong: str) -> None:
    """They come from an index that is not verified."""
    data, starts, ends = spaced([b"one", b"two", b"three"])
    ids = np.arange(1, 4)
    if wrong == "other ids":
        ids = ids + 1
    elif wrong == "out of order":
        starts, ends = starts[[1, 0, 2]], ends[[1, 0, 2]]
        ids = ids[[1, 0, 2]]
    elif wrong == "empty":
        ends = starts + RECORD_HEADER_BYTES
    elif wrong == "backwards":
        ends = np.array([ends[0], starts[1] - len(HOLE), ends[2]])
    elif wrong == "too long":
        ends = ends + len(HOLE)
    else:
        ends = ends + 2**40

    assert [None] == list(copies(pa.py_buffer(data), ids, starts, ends))


def test_no_records_need_no_copy() -> None:
    """Nothing is found, and nothing is wrong."""
    none = np.zeros(0, np.int64)

    assert [] == list(copies(pa.py_buffer(b""), none, none, none))


def test_a_record_as_long_as_a_segment_is_copied_alone() -> None:
    """A group has at least one record."""
    bodies = [b"a", bytes(5 * 1024 * 1024), b"b"]
    data, starts, ends = spaced(bodies)

    found = list(copies(pa.py_buffer(data), np.arange(1, 4), starts, ends))

    assert [slice(0, 1), slice(1, 2), slice(2, 3)] == [each and each[0] for each in found]
