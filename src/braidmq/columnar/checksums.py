"""Checksums of bytes that are mapped: of whole blocks, or of single records.

Both prove the same. A block is quicker by the byte, a record when few of a block are wanted.
"""

from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from braidmq.base.limits import MIB
from braidmq.columnar.combining import Sums, combined
from braidmq.columnar.layout import (
    RECORD_HEAD,
    Bytes,
    Flags,
    Numbers,
    gather_bytes,
    gather_structs,
    near_pieces,
)
from braidmq.wal.format import RECORD_HEADER_BYTES
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

RECORD_COST_BYTES: Final = 600
"""To verify a record by itself takes as long as so many bytes of a block, and its own twice."""

GROUP_RECORDS: Final = 65_536
GROUP_BYTES: Final = 4 * MIB
"""Records are verified together up to here: many, and yet in the cache."""

_CRC_AT: Final = 12


def checksum(data: Bytes | pa.Buffer) -> int:
    """Return the CRC-32C of *data*, which is not copied."""
    return int(google_crc32c.value(data))


def records_are_intact(buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers) -> bool:
    """Tell whether the records with these ids lie at starts..ends of *buffer*, unharmed.

    They are judged together: the checksum of all of them must be what theirs add up to.
    """
    lengths = ends - starts - RECORD_HEADER_BYTES
    if np.any(lengths <= 0) or (len(ends) and int(ends.max()) > buffer.size):
        return False
    heads = gather_structs(buffer, starts, RECORD_HEAD)
    if not (np.array_equal(heads["id"], ids) and np.array_equal(heads["length"], lengths)):
        return False
    return bodies_add_up(buffer, starts, ends, heads["crc"].copy())


def bodies_add_up(buffer: pa.Buffer, starts: Numbers, ends: Numbers, kept: Sums) -> bool:
    """Tell whether records have the checksums *kept*, whatever their ids and lengths are."""
    lengths = ends - starts - RECORD_HEADER_BYTES
    return all(
        _sum_of(buffer, starts[group], ends[group])
        == combined(kept[group], lengths[group] + _CRC_AT)
        for group in near_pieces(starts, ends, rows=GROUP_RECORDS, record_bytes=GROUP_BYTES)
    )


def _sum_of(buffer: pa.Buffer, starts: Numbers, ends: Numbers) -> int:
    """Return the checksum of records in a row, their own checksums left out."""
    pieces = np.empty((2, len(starts), 2), np.int64)
    pieces[0, :, 0] = starts
    pieces[1, :, 0] = starts + _CRC_AT
    pieces[0, :, 1] = starts + RECORD_HEADER_BYTES
    pieces[1, :, 1] = ends
    gathered = gather_bytes(buffer, pieces[0].reshape(-1), pieces[1].reshape(-1))
    return checksum(gathered.buffers()[2])


def blocks_are_cheaper(blocks: int, records: int, record_bytes: int) -> bool:
    """Tell whether to verify so many blocks is less work than so many records in them."""
    alone = 2 * record_bytes + RECORD_COST_BYTES * records
    return blocks * SEGMENT_BLOCK_BYTES <= alone


class Blocks:
    """The blocks of a sealed segment, each verified once."""

    def __init__(self, data: Bytes, sums: list[int]) -> None:
        self._data = data
        self._sums = sums
        self.verified: Flags = np.zeros(len(sums), np.bool_)

    def unverified(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the numbers of the blocks below starts..ends that are still to be verified."""
        first = starts // SEGMENT_BLOCK_BYTES
        behind = -(-ends // SEGMENT_BLOCK_BYTES)
        # One more where a piece begins, one less behind its end: above zero is covered.
        size = len(self._sums) + 1
        depth = np.bincount(first, minlength=size) - np.bincount(
            np.maximum(behind, first), minlength=size
        )
        wanted: Numbers = np.nonzero((np.cumsum(depth)[:-1] > 0) & ~self.verified)[0]
        return wanted

    def are_intact(self, numbers: Numbers) -> bool:
        """Verify blocks; return whether all of them are what was written."""
        for number in numbers.tolist():
            start = number * SEGMENT_BLOCK_BYTES
            block = self._data[start : start + SEGMENT_BLOCK_BYTES]
            if checksum(block) != self._sums[number]:
                return False
            self.verified[number] = True
        return True
