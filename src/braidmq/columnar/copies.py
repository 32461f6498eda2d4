"""Few records of many, copied beside each other: verified together, and used from the cache.

    in the segment                      copied
    0            12    16               0            12
    +------------+-----+------+         +------------+------+----------------+
    | id, length | crc | body |         | id, length | body | crc xor _RETURN |
    +------------+-----+------+         +------------+------+----------------+

A CRC-32C that reads a record's own checksum behind the record comes to a state that is always
the same; _RETURN makes that the state which it began in. Copied so, any number of records have
together the checksum of no bytes at all, 0, if each of them has its own. One that has not
leaves another state, and no intact record behind it leads back.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from braidmq.base.limits import MIB
from braidmq.columnar.layout import (
    MESSAGE_HEAD,
    RECORD_HEAD,
    Numbers,
    Rows,
    gather_structs,
    near_pieces,
)
from braidmq.wal.format import RECORD_HEADER_BYTES

GROUP_RECORDS: Final = 65_536
GROUP_BYTES: Final = 4 * MIB
"""Records are copied together up to here: many, and yet in the cache."""

_RETURN: Final = 0x9BE0_9BAB
_CRC_BYTES: Final = 4
_CRC_AT: Final = RECORD_HEADER_BYTES - _CRC_BYTES
_PIECES: Final = 4
"""A record's head, checksum and body, and what is between it and the next one."""

assert google_crc32c.extend(_RETURN, bytes(_CRC_BYTES)) == 0


def _without_checksum(head: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype([field for field in head.descr if field[0] != "crc"])


_COPIED_RECORD_HEAD: Final = _without_checksum(RECORD_HEAD)
_COPIED_MESSAGE_HEAD: Final = _without_checksum(MESSAGE_HEAD)


@cache
def _order(records: int) -> pa.Array:
    """Return which pieces are copied: of each record the head, the body, the checksum."""
    pieces = np.arange(_PIECES * records, dtype=np.int32).reshape(-1, _PIECES)
    return pa.array(pieces[:, [0, 2, 1]].reshape(-1))


class Copy:
    """Records that lie at starts..ends of *buffer*, in order, each with a body.

    `moved` says how far it is from a body there to the same body in `buffer`.
    """

    def __init__(self, buffer: pa.Buffer, starts: Numbers, ends: Numbers) -> None:
        count = len(starts)
        base = int(starts[0])
        offsets = np.empty((count, _PIECES), np.int32)
        np.subtract(starts, base, out=offsets[:, 0], casting="unsafe")
        np.add(offsets[:, 0], _CRC_AT, out=offsets[:, 1])
        np.add(offsets[:, 0], RECORD_HEADER_BYTES, out=offsets[:, 2])
        np.subtract(ends, base, out=offsets[:, 3], casting="unsafe")
        laid = pa.Array.from_buffers(
            pa.binary(),
            _PIECES * count - 1,
            [None, pa.py_buffer(offsets), buffer.slice(base)],
        )
        _, places, self.buffer = laid.take(_order(GROUP_RECORDS).slice(0, 3 * count)).buffers()
        copied = np.frombuffer(places, np.int32, 3 * count + 1)
        self._starts: Numbers = copied[:-1:3].astype(np.int64)
        self._sums_at = copied[2::3]
        self.moved: Numbers = self._starts - starts - _CRC_BYTES

    def ids_and_lengths(self) -> Rows:
        """Return what the records say of themselves."""
        return gather_structs(self.buffer, self._starts, _COPIED_RECORD_HEAD)

    def message_heads(self) -> Rows:
        """Return the heads of records, all of which are long enough for a message."""
        return gather_structs(self.buffer, self._starts, _COPIED_MESSAGE_HEAD)

    def settle(self) -> bool:
        """Tell, once, whether the records have their checksums."""
        size = self.buffer.size - _CRC_BYTES + 1
        words: np.ndarray[tuple[int], np.dtype[np.uint32]] = np.ndarray(
            (size,), "<u4", self.buffer, 0, (1,)
        )
        words[self._sums_at] ^= np.uint32(_RETURN)
        return int(google_crc32c.value(self.buffer)) == 0


def copies(
    buffer: pa.Buffer, ids: Numbers, starts: Numbers, ends: Numbers
) -> Iterator[tuple[slice, Copy] | None]:
    """Yield the records with these ids, which lie at starts..ends, in groups, verified.

    None is yielded instead of a group with a record that is damaged, elsewhere or another.
    """
    sizes = ends - starts
    if (
        np.any(sizes <= RECORD_HEADER_BYTES)
        or np.any(starts[1:] < ends[:-1])
        or int(ends[-1:].max(initial=0)) > buffer.size
    ):
        yield None
        return
    for group in near_pieces(starts, ends, rows=GROUP_RECORDS, record_bytes=GROUP_BYTES):
        copy = Copy(buffer, starts[group], ends[group])
        said = copy.ids_and_lengths()
        if (
            np.array_equal(said["id"], ids[group])
            and np.array_equal(said["length"], sizes[group] - RECORD_HEADER_BYTES)
            and copy.settle()
        ):
            yield group, copy
        else:
            yield None
