"""Indexes that can be trusted: whatever happens to one, the rows are the segment's."""

from pathlib import Path

import pyarrow as pa
import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.columnar.segments.indexes import growing_index, rebuilt_index, sealed_index
from braidmq.columnar.segments.segments import MappedFile
from braidmq.wal.format import HEADER_BYTES, ROW_BYTES, encode_record
from tests.unit.columnar.logs import (
    NOTE,
    dead_letter,
    flip,
    message,
    offsets_of,
    plain_rows,
    segment_files,
    sink_row,
    write_log,
)

BODIES = [
    message("a", b"one", 10, origin=2),
    NOTE,
    message("b", b"two", 11, kept={"key": "k"}),
    message("a", b"", 12),
    dead_letter("dlq.a", b"three", 13),
    sink_row("b", b"four", 14, {"k": "v"}),
]


def small_log(root: Path, *, sealed: bool) -> Path:
    bodies = BODIES + ([message("z", b"z" * 5000)] if sealed else [])
    return write_log(root, bodies, segment_bytes=4096 if sealed else 2**20)


@pytest.mark.parametrize("sealed", [True, False])
def test_no_flipped_bit_of_an_index_changes_what_is_read(tmp_path: Path, sealed: bool) -> None:
    """Checksums or the records reveal it; the index is rebuilt in memory."""
    small_log(tmp_path, sealed=sealed)
    path = tmp_path / "wal/00000000000000000001.idx"
    intact = path.read_bytes()
    everything = plain_rows(tmp_path)
    of_a = [row for row in everything if row["topic"] == "a"]

    for at in range(len(intact)):
        flip(path, at)
        assert everything == columnar.read(tmp_path, headers=True).to_pylist(), at
        found = columnar.read(tmp_path, headers=True, topics=["a"]).to_pylist()
        assert of_a == found, at
        path.write_bytes(intact)


@pytest.mark.parametrize("sealed", [True, False])
def test_an_index_may_end_anywhere_or_be_of_another_segment(
    tmp_path: Path, sealed: bool
) -> None:
    """A torn, empty, missing or stale index is rebuilt."""
    small_log(tmp_path / "one", sealed=sealed)
    path = tmp_path / "one/wal/00000000000000000001.idx"
    intact = path.read_bytes()
    expected = columnar.read(tmp_path / "one")

    for length in range(0, len(intact), 5):
        path.write_bytes(intact[:length])
        assert expected == columnar.read(tmp_path / "one"), length
    path.unlink()
    assert expected == columnar.read(tmp_path / "one")
    write_log(tmp_path / "two", [message("b", b"x" * 900) for _ in range(7)])
    stale = (tmp_path / "two/wal/00000000000000000001.idx").read_bytes()
    path.write_bytes(stale)
    assert expected == columnar.read(tmp_path / "one")


def test_a_growing_index_shows_no_row_beyond_the_mark(tmp_path: Path) -> None:
    """Rows that are already written but not yet durable are left out."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    segment = MappedFile(segment_files(tmp_path)[0]).buffer
    buffer = MappedFile(tmp_path / "wal/00000000000000000001.idx").buffer
    created_us = int.from_bytes(segment.slice(20, 8).to_pybytes(), "little")

    index = growing_index(buffer, segment, first_id=1, last_id=3, created_us=created_us)

    assert index is not None
    assert [1, 2, 3] == index.rows["id"].tolist()
    assert [b"", b"a", b"b"] == list(index.topics)
    other = growing_index(buffer, segment, first_id=1, last_id=3, created_us=created_us + 1)
    assert other is None
    beyond = growing_index(buffer, segment, first_id=1, last_id=7, created_us=created_us)
    assert beyond is None


def test_a_sealed_index_must_fit_its_segment(tmp_path: Path) -> None:
    """One with another size or another last id belongs to another segment."""
    small_log(tmp_path, sealed=True)
    segment = MappedFile(segment_files(tmp_path)[0]).buffer
    buffer = MappedFile(tmp_path / "wal/00000000000000000001.idx").buffer
    created_us = int.from_bytes(segment.slice(20, 8).to_pybytes(), "little")
    facts = {
        "first_id": 1,
        "last_id": 7,
        "created_us": created_us,
        "segment_bytes": segment.size,
    }

    assert sealed_index(buffer, **facts) is not None
    for name, value in facts.items():
        assert sealed_index(buffer, **{**facts, name: value + 1}) is None


def test_a_rebuilt_index_has_the_rows_that_were_written(tmp_path: Path) -> None:
    """Byte for byte as the log itself wrote them."""
    small_log(tmp_path, sealed=True)
    segment = MappedFile(segment_files(tmp_path)[0]).buffer
    written = (tmp_path / "wal/00000000000000000001.idx").read_bytes()

    index = rebuilt_index(segment, first_id=1, last_id=7, sealed=True)

    assert written[HEADER_BYTES : HEADER_BYTES + 7 * ROW_BYTES] == index.rows.tobytes()
    assert [b"", b"a", b"b", b"dlq.a", b"z"] == list(index.topics)
    with pytest.raises(DamagedLogError):
        rebuilt_index(segment, first_id=1, last_id=8, sealed=True)
    with pytest.raises(DamagedLogError):
        rebuilt_index(segment.slice(0, segment.size - 1), first_id=1, last_id=7, sealed=True)


def test_a_record_of_an_unknown_type_is_damage(tmp_path: Path) -> None:
    """This version skips nothing that it does not understand."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    data = segment_files(tmp_path)[0].read_bytes()
    segment = pa.py_buffer(data + encode_record(7, b"\x63what", fence=True))

    with pytest.raises(DamagedLogError, match="unknown record type 99"):
        rebuilt_index(segment, first_id=1, last_id=7, sealed=False)
    assert 6 == len(rebuilt_index(segment, first_id=1, last_id=6, sealed=False).rows)


def test_thousands_of_rows_are_checked_block_by_block(tmp_path: Path) -> None:
    """A damaged row in a late block of a long index is found when it is read, not before."""
    write_log(
        tmp_path,
        [message(f"t{i % 3}", b"x") for i in range(9_000)],
        segment_bytes=2**18,
        batch=9_000,
    )
    path = tmp_path / "wal/00000000000000000001.idx"
    flip(path, HEADER_BYTES + 8_500 * ROW_BYTES + 24)
    before = columnar.read(tmp_path, end=4_000, topics=["t1"])

    assert list(range(2, 4_000, 3)) == offsets_of(before)
    assert 3_000 == columnar.read(tmp_path, topics=["t1"]).num_rows
