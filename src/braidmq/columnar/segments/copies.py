"""Few records of many, copied beside each other: verified together, and used from the cache.

    in the segment               in the copy, when its checksum is taken
    0    8        12    16       0     4       12      16
    +----+--------+-----+------+ +-----+-------+-------+------+
    | id | length | crc | body | | end | zeros | begin | body |
    +----+--------+-----+------+ +-----+-------+-------+------+

    end     what the record before must have left, its crc (0 for the first), with all bits
            turned round
    begin   CRC-32C of the id, with all bits turned round, xor length

A CRC-32C is a state that bytes are mixed into, and four bytes that are as the state is make it
zero; zeros leave it so. From there the four bytes before a body lead to the state behind the
record's id and length. So the copy has the checksum of its last record if each of them has its
own. One that has not leaves another state, and no intact record behind it leads back.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.base.limits import MIB
from braidmq.columnar.segments.layout import (
    MESSAGE_HEAD,
    RECORD_HEAD,
    Numbers,
    Rows,
    gather_bytes,
    gather_structs,
    near_pieces,
    scatter_structs,
)
from braidmq.wal.format import RECORD_HEADER_BYTES

GROUP_RECORDS: Final = 65_536
GROUP_BYTES: Final = 4 * MIB
"""Records are copied together up to here: many, and yet in the cache."""

_ID_BYTES: Final = 8
_LOW_BITS: Final = 16
_ALL_BITS: Final = np.uint32(0xFFFF_FFFF)

Sums = NDArray[np.uint32]

_BRIDGE: Final = np.dtype([("end", "<u4"), ("zeros", "<u8"), ("begin", "<u4")])
assert _BRIDGE.itemsize == RECORD_HEADER_BYTES


class Copy:
    """Records that lie at starts..ends of *buffer*, in order, each with a body.

    `moved` says how far it is from a body there to the same body in `buffer`.
    """

    def __init__(self, buffer: pa.Buffer, starts: Numbers, ends: Numbers) -> None:
        _, places, self.buffer = gather_bytes(buffer, starts, ends).buffers()
        copied = np.frombuffer(places, np.int32, len(starts))
        self._starts: Numbers = copied.astype(np.int64)
        self._heads = gather_structs(self.buffer, self._starts, RECORD_HEAD)
        self.moved: Numbers = self._starts - starts

    def message_heads(self) -> Rows:
        """Return the heads of records that are long enough for a message; ids are not right."""
        return gather_structs(self.buffer, self._starts, MESSAGE_HEAD)

    def settle(self, ids: Numbers) -> bool:
        """Tell, once, whether they are the records with these ids, and have their checksums."""
        sums = self._heads["crc"]
        if not np.array_equal(self._heads["id"], ids):
            return False
        bridges = np.zeros(len(ids), _BRIDGE)
        bridges["end"] = _ALL_BITS
        bridges["end"][1:] ^= sums[:-1]
        bridges["begin"] = _sums_of(ids) ^ self._heads["length"] ^ _ALL_BITS
        scatter_structs(self.buffer, self._starts, bridges)
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
