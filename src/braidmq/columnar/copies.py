"""Few records of many, copied beside each other: verified together, and used from the cache.

    in the segment                      copied
    0            12    16               0        4
    +------------+-----+------+         +--------+------+
    | id, length | crc | body |         | bridge | body |
    +------------+-----+------+         +--------+------+

    bridge = crc of the record before it (0 for the first) xor CRC-32C of the id xor length

A CRC-32C is a state that bytes are mixed into. The bridge leads it from the state that the
record before must have left to the one behind this record's id and length: four bytes, read
behind a state, undo it where they are the same. So the copy has the checksum of its last
record if each of them has its own. One that has not leaves another state, and no intact record
behind it leads back.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.base.limits import MIB
from braidmq.columnar.layout import (
    MESSAGE_HEAD,
    RECORD_HEAD,
    Numbers,
    Rows,
    gather_bytes,
    gather_structs,
    near_pieces,
)
from braidmq.wal.format import RECORD_HEADER_BYTES

GROUP_RECORDS: Final = 65_536
GROUP_BYTES: Final = 4 * MIB
"""Records are copied together up to here: many, and yet in the cache."""

_CRC_BYTES: Final = 4
_CRC_AT: Final = RECORD_HEADER_BYTES - _CRC_BYTES
_ID_BYTES: Final = 8
_LOW_BITS: Final = 16

Sums = NDArray[np.uint32]

_COPIED_HEAD: Final = np.dtype(
    [field for field in MESSAGE_HEAD.descr if field[0] not in {"id", "length"}]
)


class Copy:
    """Records that lie at starts..ends of *buffer*, in order, each with a body.

    `moved` says how far it is from a body there to the same body in `buffer`.
    """

    def __init__(self, buffer: pa.Buffer, starts: Numbers, ends: Numbers) -> None:
        self._heads = gather_structs(buffer, starts, RECORD_HEAD)
        sums_at = starts + _CRC_AT
        _, places, self.buffer = gather_bytes(buffer, sums_at, ends).buffers()
        copied = np.frombuffer(places, np.int32, len(starts))
        self._starts: Numbers = copied.astype(np.int64)
        self.moved: Numbers = self._starts - sums_at

    def message_heads(self) -> Rows:
        """Return the heads, without ids, of records that are long enough for a message."""
        return gather_structs(self.buffer, self._starts, _COPIED_HEAD)

    def settle(self, ids: Numbers) -> bool:
        """Tell, once, whether they are the records with these ids, and have their checksums."""
        sums = self._heads["crc"]
        if not np.array_equal(self._heads["id"], ids):
            return False
        bridges = _sums_of(ids) ^ self._heads["length"]
        bridges[1:] ^= sums[:-1]
        size = self.buffer.size - _CRC_BYTES + 1
        words: Sums = np.ndarray((size,), "<u4", self.buffer, 0, (1,))
        words[self._starts] = bridges
        return int(google_crc32c.value(self.buffer)) == int(sums[-1])


def _sums_of(ids: Numbers) -> Sums:
    """Return the CRC-32C of each id as a record has it; they are in order and not far apart."""
    high = ids >> _LOW_BITS
    first, last = int(high[0]), int(high[-1])
    of_high = np.array(
        [_sum_of(number << _LOW_BITS) for number in range(first, last + 1)], np.uint32
    )
    found: Sums = of_high[high - first] ^ _changes_by_low_bits()[ids & ((1 << _LOW_BITS) - 1)]
    return found


def _sum_of(number: int) -> int:
    return int(google_crc32c.value(number.to_bytes(_ID_BYTES, "little")))


@cache
def _changes_by_low_bits() -> Sums:
    """Return how the checksum of a number changes with its lowest bits: each by itself."""
    changes = np.zeros(1, np.uint32)
    for bit in range(_LOW_BITS):
        change = np.uint32(_sum_of(1 << bit) ^ _sum_of(0))
        changes = np.concatenate([changes, changes ^ change])
    return changes


def copies(
    buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers
) -> Iterator[tuple[slice, Copy] | None]:
    """Yield the records with these ids, which lie at starts..ends, in groups, verified.

    None is yielded instead of a group with a record that is damaged, elsewhere or another.
    """
    if (
        np.any(ends - starts <= RECORD_HEADER_BYTES)
        or np.any(starts[1:] < ends[:-1])
        or int(ends[-1:].max(initial=0)) > buffer.size
    ):
        yield None
        return
    for group in near_pieces(starts, ends, rows=GROUP_RECORDS, record_bytes=GROUP_BYTES):
        copy = Copy(buffer, starts[group], ends[group])
        yield (group, copy) if copy.settle(ids[group]) else None
