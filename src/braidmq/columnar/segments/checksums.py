"""Checksums of mapped bytes: of whole blocks, or of single records.

Either one proves that bytes are intact. Verifying blocks is faster per byte; verifying records
is faster if only a few of a block are wanted.
"""

from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from braidmq.columnar.segments.verifying import copies
from braidmq.columnar.segments.layout import Bytes, Flags, Numbers
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

RECORD_COST_BYTES: Final = 600
"""Measured: a record by itself costs this many bytes of a block, plus twice its own size."""


def checksum(data: Bytes | pa.Buffer) -> int:
    """Return the CRC-32C of *data*, which is not copied."""
    return int(google_crc32c.value(data))


def records_are_intact(buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers) -> bool:
    """Tell whether the records with these ids are intact at starts..ends of *buffer*."""
    return None not in copies(buffer, ids, starts, ends)


def blocks_are_cheaper(blocks: int, records: int, record_bytes: int) -> bool:
    """Tell whether verifying the blocks costs less than verifying the records in them."""
    alone = 2 * record_bytes + RECORD_COST_BYTES * records
    return blocks * SEGMENT_BLOCK_BYTES <= alone


class Blocks:
    """The blocks of a sealed segment, each verified at most once."""

    def __init__(self, data: Bytes, sums: list[int]) -> None:
        self._data = data
        self._sums = sums
        self.verified: Flags = np.zeros(len(sums), np.bool_)

    def unverified(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the numbers of the blocks under starts..ends that were not yet verified."""
        first = starts // SEGMENT_BLOCK_BYTES
        behind = -(-ends // SEGMENT_BLOCK_BYTES)
        # A sweep without a loop: +1 where a range starts, -1 behind its end; a block is covered
        # where the running sum is above zero.
        size = len(self._sums) + 1
        depth = np.bincount(first, minlength=size) - np.bincount(
            np.maximum(behind, first), minlength=size
        )
        wanted: Numbers = np.nonzero((np.cumsum(depth)[:-1] > 0) & ~self.verified)[0]
        return wanted

    def are_intact(self, numbers: Numbers) -> bool:
        """Verify blocks; return whether all of them are intact."""
        for number in numbers.tolist():
            start = number * SEGMENT_BLOCK_BYTES
            block = self._data[start : start + SEGMENT_BLOCK_BYTES]
            if checksum(block) != self._sums[number]:
                return False
            self.verified[number] = True
        return True
