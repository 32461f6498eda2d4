"""Checksums of mapped bytes: blocks, and records by themselves."""

import numpy as np
import pytest

from braidmq.columnar.checksums import Blocks, checksum, records_are_intact
from braidmq.wal import format as log_format
from braidmq.wal.format import encode_record
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

RECORDS = [encode_record(2**33 + i, b"\x01" + bytes(i * 7), fence=i == 0) for i in range(5)]
DATA = np.frombuffer(b"".join(RECORDS), np.uint8)
IDS = np.arange(2**33, 2**33 + 5)
ENDS = np.cumsum([len(record) for record in RECORDS])
STARTS = ENDS - [len(record) for record in RECORDS]


def test_the_checksum_is_that_of_the_log() -> None:
    """One polynomial everywhere."""
    assert log_format.checksum(DATA.tobytes()) == checksum(DATA)


def test_intact_records_are_intact() -> None:
    """All of them, some of them, none of them."""
    assert records_are_intact(DATA, IDS, STARTS, ENDS)
    assert records_are_intact(DATA, IDS[1::2], STARTS[1::2], ENDS[1::2])
    assert records_are_intact(DATA, IDS[:0], STARTS[:0], ENDS[:0])


@pytest.mark.parametrize("at", range(12, len(RECORDS[0]) + 30))
def test_a_flipped_bit_is_found(at: int) -> None:
    """In a body or a checksum; ids and lengths are the caller's, and need not be read."""
    data = DATA.copy()
    data[at] ^= 4
    start = STARTS[STARTS <= at].max()
    in_prefix = at - start < 12

    assert in_prefix == records_are_intact(data, IDS, STARTS, ENDS)


def test_another_id_or_place_is_no_intact_record() -> None:
    """An index that points elsewhere is found out."""
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
