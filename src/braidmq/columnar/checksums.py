"""Checksums of bytes that are mapped: of whole blocks, or of single records.

Both prove the same. A block is quicker by the byte, a record when few of a block are wanted.
"""

from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from braidmq.columnar.layout import Bytes, Flags, Numbers, gather_u32
from braidmq.wal.format import RECORD_HEADER_BYTES
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

RECORDS_PER_BLOCK_MIN: Final = 256
"""With fewer wanted records in a block than this, they are verified one by one."""

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, bits reversed
_ALL_ONES: Final = np.uint32(0xFFFFFFFF)
_CRC_AT: Final = 12
_GROUP_RECORDS: Final = 4_096
_NEAR: Final = 4
"""Records lie near each other when there is not this much more between them."""


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE: Final = _table()


def checksum(data: Bytes) -> int:
    """Return the CRC-32C of *data*, which is not copied."""
    return int(google_crc32c.value(data))


def _prefix_sums(ids: Numbers, lengths: Numbers) -> NDArray[np.uint32]:
    """Return the checksum of each record's first twelve bytes, its id and length."""
    prefixes = np.empty((len(ids), 3), "<u4")
    prefixes[:, 0] = ids & 0xFFFFFFFF
    prefixes[:, 1] = ids >> 32
    prefixes[:, 2] = lengths
    sums = np.full(len(ids), _ALL_ONES)
    for column in prefixes.view(np.uint8).T:
        sums = _TABLE[(sums ^ column) & 0xFF] ^ (sums >> 8)
    return sums ^ _ALL_ONES


def records_are_intact(data: Bytes, ids: Numbers, starts: Numbers, ends: Numbers) -> bool:
    """Tell whether the records with these ids lie at starts..ends of *data*, unharmed."""
    bodies = starts + RECORD_HEADER_BYTES
    if np.any(ends <= bodies) or (len(ends) and int(ends.max()) > len(data)):
        return False
    prefixes = _prefix_sums(ids, ends - bodies)
    kept = gather_u32(data, starts + _CRC_AT)
    for first in range(0, len(ids), _GROUP_RECORDS):
        group = slice(first, first + _GROUP_RECORDS)
        found = _body_sums(data, prefixes[group], bodies[group], ends[group])
        if found != kept[group].tolist():
            return False
    return True


def _body_sums(
    data: Bytes, prefixes: NDArray[np.uint32], starts: Numbers, ends: Numbers
) -> list[int]:
    """Return the checksums of bodies behind prefixes whose checksums are given."""
    extend = google_crc32c.extend
    base, end = int(starts[0]), int(ends[-1])
    pieces = zip(
        prefixes.tolist(), (starts - base).tolist(), (ends - base).tolist(), strict=True
    )
    if end - base < _NEAR * int((ends - starts).sum()):
        # To slice bytes is so much quicker that it pays to copy what lies near.
        near = data[base:end].tobytes()
        return [extend(so_far, near[start:end]) for so_far, start, end in pieces]
    far = data[base:end]
    return [extend(so_far, far[start:end]) for so_far, start, end in pieces]


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
