"""Where the parts of records are, computed for whole arrays of records. No file.

    an index row, as numpy sees it
  0    8              16               20               24      28    29         30       31
  +----+--------------+----------------+----------------+-------+-----+----------+--------+----
  | id | timestamp_us | payload offset | payload length | topic | qos | priority | origin | kind
  +----+--------------+----------------+----------------+-------+-----+----------+--------+----

    the record that it points into; it starts where the one before it ends
    0    8     12    16     17    18         19       20             28           36
    +----+-----+-----+------+-----+----------+--------+--------------+------------+--
    | id | len | crc | kind | qos | priority | origin | timestamp_us | expires_us |
    +----+-----+-----+------+-----+----------+--------+--------------+------------+--
    36               40                 (40 or 64, by kind)
    +----------------+------------------+---------+------------------+-------+---------+
    | headers length | (what it settles)| headers | topic length, BE | topic | payload |
    +----------------+------------------+---------+------------------+-------+---------+

`braidmq.wal.format` and `braidmq.broker.records` write them.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from braidmq.broker.records import DEAD_LETTER, FIRST_MESSAGE, MESSAGE, SINK_ROW, Head
from braidmq.wal.format import HEADER_BYTES, RECORD_HEADER_BYTES, ROW_BYTES

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
FileOffsets = NDArray[np.int64] | NDArray[np.uint32]
"""Offsets in a segment, as computed (int64) or as index rows hold them (uint32)."""
Flags = NDArray[np.bool_]
Rows = NDArray[np.void]
"""Index rows: a structured array of ROW."""

NOTHING: Final[Numbers] = np.zeros(0, np.int64)

ROW: Final = np.dtype(
    [
        ("id", "<u8"),
        ("timestamp_us", "<u8"),
        ("payload_at", "<u4"),
        ("payload_bytes", "<u4"),
        ("topic", "<u4"),
        ("qos", "u1"),
        ("priority", "u1"),
        ("origin", "u1"),
        ("kind", "u1"),
    ]
)
assert ROW.itemsize == ROW_BYTES
_PAYLOAD_WORD: Final = np.dtype(ROW.descr[:2]).itemsize // 8  # after id and timestamp

RECORD_HEAD: Final = np.dtype(
    [("id", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("kind", "u1")]
)
MESSAGE_HEAD: Final = np.dtype(
    [
        *RECORD_HEAD.descr,
        ("qos", "u1"),
        ("priority", "u1"),
        ("origin", "u1"),
        ("timestamp_us", "<u8"),
        ("expires_us", "<u8"),
        ("headers_bytes", "<u4"),
    ]
)
TOPIC_LENGTH: Final = np.dtype([("length", ">u2")])
TOPIC_LENGTH_BYTES: Final = TOPIC_LENGTH.itemsize

assert RECORD_HEAD.itemsize == RECORD_HEADER_BYTES + 1


def _heads() -> Numbers:
    heads = np.zeros(256, np.int64)
    for kind in (MESSAGE, DEAD_LETTER, SINK_ROW, FIRST_MESSAGE):
        heads[kind] = RECORD_HEADER_BYTES + Head(bytes([kind]) + bytes(63)).headers_at
    return heads


HEADERS_AT: Final = _heads()
"""By kind: where a message's headers start in its record; 0 if the kind is not a message."""


def rows_of(buffer: pa.Buffer, count: int, at: int = 0) -> Rows:
    """Return *count* index rows that start at *at*, without copying them."""
    return np.frombuffer(buffer, ROW, count, at)


def is_run(chosen: Numbers) -> bool:
    """Tell whether row numbers, which are in order, are consecutive; False for none."""
    return len(chosen) > 0 and int(chosen[-1]) - int(chosen[0]) == len(chosen) - 1


def take_rows(rows: Rows, chosen: Numbers) -> Rows:
    """Return the chosen rows, which are in order."""
    if is_run(chosen):
        return rows[int(chosen[0]) : int(chosen[-1]) + 1]
    # Taken as 64-bit words: numpy would copy structures field by field.
    words = rows.view(np.uint64).reshape(-1, ROW_BYTES // 8)
    taken: Rows = words.take(chosen, axis=0).view(ROW)[:, 0]
    return taken


def starts_of(rows: Rows, first: int, last: int) -> Numbers:
    """Return where the records of rows[first:last] start in the segment file."""
    starts = np.empty(last - first, np.int64)
    if first < last:
        starts[0] = HEADER_BYTES if first == 0 else ends_of(rows[first - 1 : first])[0]
        starts[1:] = ends_of(rows[first : last - 1])
    return starts


def ends_of(rows: Rows) -> Numbers:
    """Return where the records of *rows* end in the segment file."""
    ends: Numbers = rows["payload_at"].astype(np.int64)
    ends += rows["payload_bytes"]
    return ends


def starts_at(rows: Rows, chosen: Numbers) -> Numbers:
    """Return where the records of the chosen rows, which are in order, start."""
    starts = ends_at(rows, chosen - 1)
    if len(chosen) and not chosen[0]:
        starts[0] = HEADER_BYTES
    return starts


def ends_at(rows: Rows, chosen: Numbers) -> Numbers:
    """Return where the records of the chosen rows end."""
    # Offset and length are adjacent: take both with one 64-bit word.
    places = rows.view(np.uint64)[chosen * (ROW_BYTES // 8) + _PAYLOAD_WORD]
    ends: Numbers = (places & 0xFFFF_FFFF).astype(np.int64)
    ends += (places >> 32).astype(np.int64)
    return ends


def gather_structs(buffer: pa.Buffer, at: Numbers, kind: np.dtype[np.void]) -> Rows:
    """Return the structure at each offset of *at*; all of them are within *buffer*."""
    count = buffer.size - kind.itemsize + 1
    if count <= 0 or not len(at):
        return np.zeros(0, kind)
    found: Rows = _plain_at_every_byte(buffer, kind)[at].view(kind)
    return found


def scatter_structs(buffer: pa.Buffer, at: Numbers, structs: Rows) -> None:
    """Write each of *structs* at its offset of *at*; all of them are within *buffer*."""
    plain = _plain_at_every_byte(buffer, structs.dtype)
    plain[at] = structs.view(plain.dtype)


def _plain_at_every_byte(buffer: pa.Buffer, kind: np.dtype[np.void]) -> Rows:
    """Return a view of *buffer* with an item at every byte, of which few will be used.

    The items are plain bytes: numpy would copy structures field by field.
    """
    plain = np.dtype((np.void, kind.itemsize))
    return np.ndarray((buffer.size - kind.itemsize + 1,), plain, buffer, 0, (1,))


_EVEN: Final = pa.array(np.arange(0, 2**17, 2, dtype=np.int64))


def gather_bytes(buffer: pa.Buffer, starts: FileOffsets, ends: FileOffsets) -> pa.Array:
    """Return the bytes at starts..ends of *buffer*, which are in order, as a binary array.

    There is no loop per value: an Arrow array is laid over the buffer without copying, in which
    every second value is what lies between two wanted ones; then the wanted ones are taken.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    base = int(starts[0])
    assert int(ends[-1]) - base <= SPAN_BYTES_MAX
    offsets = np.empty(2 * count, np.int32)
    # No intermediate arrays: this runs for every message.
    np.subtract(starts, starts.dtype.type(base), out=offsets[0::2], casting="unsafe")
    np.subtract(ends, ends.dtype.type(base), out=offsets[1::2], casting="unsafe")
    laid = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), buffer.slice(base)]
    )
    if count <= len(_EVEN):
        return laid.take(_EVEN.slice(0, count))
    return laid.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def near_groups(
    starts: Numbers, ends: Numbers, *, rows: int, record_bytes: int
) -> Iterator[slice]:
    """Yield records, in order, in groups that can be gathered with 32-bit offsets.

    Each group has at least one record, at most *rows*, and at most *record_bytes* unless its
    only record is larger.
    """
    total = np.cumsum(ends - starts)
    at = 0
    while at < len(starts):
        before = int(total[at - 1]) if at else 0
        fitting = int(np.searchsorted(total, before + record_bytes, side="right"))
        near = int(np.searchsorted(ends, starts[at] + SPAN_BYTES_MAX, side="right"))
        behind = max(min(fitting, near, at + rows), at + 1)
        yield slice(at, behind)
        at = behind


SPAN_BYTES_MAX: Final = 2**31 - 1
"""Offsets of a binary array are i32, so what is gathered together must lie within this span."""
