"""Verifying mapped bytes before they are used: by blocks, or by records.

Either one proves that bytes are intact. Verifying blocks is faster per byte; verifying records
is faster if only a few of a block are wanted. Those are copied side by side, verified together,
and then used from the cache:

    in the segment               in the copy, when its checksum is taken
    0    8        12    16       0     4       12      16
    +----+--------+-----+------+ +-----+-------+-------+------+
    | id | length | crc | body | | end | zeros | begin | body |
    +----+--------+-----+------+ +-----+-------+-------+------+

    end     the inverted crc of the record before (of 0 for the first)
    begin   the inverted CRC-32C of the id, xor the length

Calling the CRC function once per record would be a loop in Python. Instead the 16 bytes of each
record's header are overwritten so that one call over the whole copy verifies all records:

A CRC-32C is a 32-bit state into which bytes are mixed. Feeding it four bytes equal to the state
makes it zero, and zeros keep it zero. From there, the four bytes of `begin` lead to the state
that the record's id and length would have left, and the body follows. So if each record has its
own checksum, the copy has the checksum of the last one. A record that has not leaves another
state, and no intact record after it leads back, since mixing is reversible.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.base.limits import MIB
from braidmq.columnar.segments.layout import (
    HEADERS_AT,
    MESSAGE_HEAD,
    RECORD_HEAD,
    ROW,
    TOPIC_LENGTH_BYTES,
    Bytes,
    Flags,
    Numbers,
    Rows,
    gather_bytes,
    gather_structs,
    near_groups,
    scatter_structs,
)
from braidmq.wal.format import RECORD_HEADER_BYTES, TYPE_MASK
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES

GROUP_RECORDS: Final = 65_536
GROUP_BYTES: Final = 4 * MIB
"""Bounds of one copy: many records, and yet few enough to stay in the CPU's cache."""

RECORD_COST_BYTES: Final = 600
"""Measured: a record by itself costs this many bytes of a block, plus twice its own size."""

_ID_BYTES: Final = 8
_LOW_BITS: Final = 16
_ALL_BITS: Final = np.uint32(0xFFFF_FFFF)

Sums = NDArray[np.uint32]

_BRIDGE: Final = np.dtype([("end", "<u4"), ("zeros", "<u8"), ("begin", "<u4")])
assert _BRIDGE.itemsize == RECORD_HEADER_BYTES


def checksum(data: Bytes | pa.Buffer) -> int:
    """Return the CRC-32C of *data*, which is not copied."""
    return int(google_crc32c.value(data))


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
        # A sweep without a loop: +1 where a range starts, -1 after its end; a block is covered
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


def blocks_are_cheaper(blocks: int, records: int, record_bytes: int) -> bool:
    """Tell whether verifying the blocks costs less than verifying the records in them."""
    alone = 2 * record_bytes + RECORD_COST_BYTES * records
    return blocks * SEGMENT_BLOCK_BYTES <= alone


class Copy:
    """A copy of the records at starts..ends of *buffer*, in order, each with a body.

    `moved` is the distance from each body in the segment to the same body in the copy.
    """

    def __init__(self, buffer: pa.Buffer, starts: Numbers, ends: Numbers) -> None:
        _, places, self.buffer = gather_bytes(buffer, starts, ends).buffers()
        copied = np.frombuffer(places, np.int32, len(starts))
        self._starts: Numbers = copied.astype(np.int64)
        self._heads = gather_structs(self.buffer, self._starts, RECORD_HEAD)
        self.moved: Numbers = self._starts - starts

    def message_heads(self) -> Rows:
        """Return the heads of the records as messages; `settle` has overwritten their ids."""
        return gather_structs(self.buffer, self._starts, MESSAGE_HEAD)

    def settle(self, ids: Numbers) -> bool:
        """Tell whether the records of *ids* are intact; call it once: it is destructive."""
        sums = self._heads["crc"]
        if not np.array_equal(self._heads["id"], ids):
            return False
        bridges = np.zeros(len(ids), _BRIDGE)
        bridges["end"] = _ALL_BITS
        bridges["end"][1:] ^= sums[:-1]
        bridges["begin"] = _sums_of(ids) ^ self._heads["length"] ^ _ALL_BITS
        scatter_structs(self.buffer, self._starts, bridges)
        return checksum(self.buffer) == int(sums[-1])


def _sums_of(ids: Numbers) -> Sums:
    """Return the CRC-32C of each id; the ids are in order and not far apart."""
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
    """Return how the lowest bits change a number's checksum.

    CRC is linear: each bit contributes by itself, and the contributions are xored.
    """
    changes = np.zeros(1, np.uint32)
    for bit in range(_LOW_BITS):
        change = np.uint32(_sum_of(1 << bit) ^ _sum_of(0))
        changes = np.concatenate([changes, changes ^ change])
    return changes


def copies(
    buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers
) -> Iterator[tuple[slice, Copy] | None]:
    """Yield verified copies of the records with these ids at starts..ends, in groups.

    None stands for a group in which a record is damaged or not the one with its id.
    """
    if (
        np.any(ends - starts <= RECORD_HEADER_BYTES)
        or np.any(starts[1:] < ends[:-1])
        or int(ends[-1:].max(initial=0)) > buffer.size
    ):
        yield None
        return
    for group in near_groups(starts, ends, rows=GROUP_RECORDS, record_bytes=GROUP_BYTES):
        copy = Copy(buffer, starts[group], ends[group])
        yield (group, copy) if copy.settle(ids[group]) else None


def records_are_intact(buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers) -> bool:
    """Tell whether the records with these ids are intact at starts..ends of *buffer*."""
    return None not in copies(buffer, ids, starts, ends)


class RecordRows(NamedTuple):
    """The rows of records, and the copy of the records if they fit into a single one."""

    rows: Rows
    copy: Copy | None


def rows_of_records(
    buffer: pa.Buffer,
    starts: Numbers,
    ends: Numbers,
    *,
    ids: Numbers,
    topics: NDArray[np.unsignedinteger[Any]],
    name_bytes: Numbers,
) -> RecordRows | None:
    """Return the verified rows of the messages at starts..ends of a segment.

    They are made from the records, so the records' own checksums cover them. If only a few rows
    of many are wanted, this is faster than verifying the index blocks around them. *name_bytes*
    are the lengths of the topic names by number. None if any of these is not an intact message
    with its id: index and segment disagree.
    """
    rows = np.empty(len(starts), ROW)
    rows["id"] = ids
    rows["topic"] = topics
    only: Copy | None = None
    if np.any(ends - starts < MESSAGE_HEAD.itemsize):
        return None
    for found in copies(buffer, ids, starts, ends):
        if found is None:
            return None
        group, copy = found
        if not _describe(rows[group], copy, starts[group], ends[group], name_bytes):
            return None
        only = copy if group == slice(0, len(starts)) else None
    return RecordRows(rows, only)


def _describe(
    rows: Rows, copy: Copy, starts: Numbers, ends: Numbers, name_bytes: Numbers
) -> bool:
    """Fill in *rows*, whose ids and topics are known; tell whether all are messages."""
    heads = copy.message_heads()
    kinds = heads["kind"] & TYPE_MASK
    headers_at = HEADERS_AT[kinds]
    payloads_at = starts + headers_at + heads["headers_bytes"] + TOPIC_LENGTH_BYTES
    payloads_at += name_bytes[rows["topic"]]
    if not (np.all(headers_at > 0) and np.all(payloads_at <= ends)):
        return False
    for name in ("timestamp_us", "qos", "priority", "origin"):
        rows[name] = heads[name]
    rows["kind"] = kinds
    rows["payload_at"] = payloads_at
    rows["payload_bytes"] = ends - payloads_at
    return True


def rows_of_sizes(ids: Numbers, sizes: NDArray[np.uint32]) -> Rows:
    """Return rows that hold only these ids and payload lengths."""
    rows = np.zeros(len(ids), ROW)
    rows["id"] = ids
    rows["payload_bytes"] = sizes
    return rows
