"""Checksums of mapped bytes: of blocks, and of single records."""

import numpy as np
import pyarrow as pa
import pytest

from braidmq.columnar.segments.verifying import (
    Blocks,
    blocks_are_cheaper,
    checksum,
    records_are_intact,
)
from braidmq.wal import format as log_format
from braidmq.wal.format import encode_record
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

RECORDS = [encode_record(2**33 + i, b"\x01" + bytes(i * 7), fence=i == 0) for i in range(5)]
DATA = pa.py_buffer(b"".join(RECORDS))
IDS = np.arange(2**33, 2**33 + 5)
ENDS = np.cumsum([len(record) for record in RECORDS])
STARTS = ENDS - [len(record) for record in RECORDS]


def test_the_checksum_is_that_of_the_log() -> None:
    """One polynomial everywhere."""
    assert log_format.checksum(DATA.to_pybytes()) == checksum(DATA)


def test_intact_records_are_intact() -> None:
    """All of them, some of them, or none."""
    assert records_are_intact(DATA, IDS, STARTS, ENDS)
    assert records_are_intact(DATA, IDS[1::2], STARTS[1::2], ENDS[1::2])
    assert records_are_intact(DATA, IDS[:0], STARTS[:0], ENDS[:0])


@pytest.mark.parametrize("at", range(DATA.size))
def test_a_flipped_bit_is_found(at: int) -> None:
    """In an id, a length, a checksum or a body."""
    data = bytearray(DATA.to_pybytes())
    data[at] ^= 4

    assert not records_are_intact(pa.py_buffer(data), IDS, STARTS, ENDS)


def test_records_are_verified_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage in any group is found."""
    monkeypatch.setattr("braidmq.columnar.segments.verifying.GROUP_RECORDS", 2)
    last = bytearray(DATA.to_pybytes())
    last[-1] ^= 1

    assert records_are_intact(DATA, IDS, STARTS, ENDS)
    assert not records_are_intact(pa.py_buffer(last), IDS, STARTS, ENDS)


def test_few_records_are_verified_singly() -> None:
    """A block is read whole, which pays only if enough of it is wanted."""
    assert blocks_are_cheaper(1, 7_000, 900_000)
    assert blocks_are_cheaper(0, 1, 100)
    assert not blocks_are_cheaper(1, 70, 9_000)
    assert blocks_are_cheaper(1, 1, SEGMENT_BLOCK_BYTES)


def test_a_record_with_another_id_or_position_is_not_intact() -> None:
    """So an index that points elsewhere is noticed."""
    assert not records_are_intact(DATA, IDS + 1, STARTS, ENDS)
    assert not records_are_intact(DATA, IDS, STARTS + 1, ENDS)
    assert not records_are_intact(DATA, IDS, STARTS, ENDS + 1)
    assert not records_are_intact(DATA, IDS, STARTS, STARTS + 16)


def test_blocks_are_verified_once_and_only_those_that_are_touched() -> None:
    """A piece touches every block that it has a byte in; an empty one touches none."""
    data = np.arange(3 * SEGMENT_BLOCK_BYTES + 5, dtype=np.uint32).astype(np.uint8)
    cut = range(0, len(data), SEGMENT_BLOCK_BYTES)
    blocks = Blocks(data, [checksum(data[i : i + SEGMENT_BLOCK_BYTES]) for i in cut])
    at = np.array([5, SEGMENT_BLOCK_BYTES, 2 * SEGMENT_BLOCK_BYTES - 1], np.int64)
    ends = np.array([6, SEGMENT_BLOCK_BYTES, 2 * SEGMENT_BLOCK_BYTES + 1], np.int64)

    assert [0, 1, 2] == blocks.unverified(at, ends).tolist()
    assert [0] == blocks.unverified(at[:2], ends[:2]).tolist()
    assert blocks.are_intact(np.array([0, 3]))
    assert [1, 2] == blocks.unverified(at, ends).tolist()
    data[SEGMENT_BLOCK_BYTES] ^= 1
    assert blocks.are_intact(np.array([2]))
    assert not blocks.are_intact(np.array([1]))
    assert [1] == blocks.unverified(at, ends).tolist()
