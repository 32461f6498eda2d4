"""Headers of many messages at once: the loop runs per header of one message, not per message.

    a block, as `braidmq.broker.topics` writes it
    repeated: u16 key length | key | u16 value length | value     little-endian, UTF-8

The header with the empty key holds a Vibe publisher's own id of the message. The publisher did
not send it as a header, so it is not shown as one.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from braidmq.columnar.segments.layout import Bytes, Flags, Numbers, gather_bytes, gather_structs

HEADERS_TYPE: Final = pa.list_(
    pa.field(
        "element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    )
)
"""Spark's array<struct<key:string,value:binary>>."""

_LENGTH: Final = np.dtype([("length", "<u2")])


class MalformedHeadersError(Exception):
    """A block is malformed; this cannot happen in a record that the broker wrote."""


class Headers:
    """The headers of *count* messages, whose blocks are at starts..ends of a segment.

    Raises:
        MalformedHeadersError: A block is malformed.
    """

    def __init__(
        self, buffer: pa.Buffer, starts: Numbers, ends: Numbers, count: int | None = None
    ) -> None:
        self.count = len(starts) if count is None else count
        self._buffer = buffer
        self._data: Bytes = np.frombuffer(buffer, np.uint8)
        found = self._parse(starts, ends)
        order = np.argsort(found[0], kind="stable")
        # Of each header: its message, and where its key and value start and end. The rounds of
        # `_parse` are interleaved; a stable sort puts each message's headers back in order.
        self._rows, self._key_at, self._key_end, self._value_at, self._value_end = (
            column[order] for column in found
        )

    def _parse(self, starts: Numbers, ends: Numbers) -> list[Numbers]:
        rows = np.nonzero(ends > starts)[0]
        at = starts[rows]
        rounds: list[list[Numbers]] = []
        # Round n parses header n of every message that has one.
        while len(rows):
            key_at, key_end = self._text(at, ends[rows])
            value_at, value_end = self._text(key_end, ends[rows])
            shown = key_end > key_at
            rounds.append([c[shown] for c in (rows, key_at, key_end, value_at, value_end)])
            more = value_end < ends[rows]
            rows, at = rows[more], value_end[more]
        if not rounds:
            return [np.zeros(0, np.int64)] * 5
        return [np.concatenate(column) for column in zip(*rounds, strict=True)]

    def _text(self, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        start = at + _LENGTH.itemsize
        if np.any(start > ends):
            raise MalformedHeadersError
        end = start + gather_structs(self._buffer, at, _LENGTH)["length"]
        if np.any(end > ends):
            raise MalformedHeadersError
        return start, end

    def array(self) -> pa.Array:
        """Return a list of keys and values for each message, null if it has no headers.

        Raises:
            MalformedHeadersError: A key is not UTF-8.
        """
        try:
            keys = gather_bytes(self._buffer, self._key_at, self._key_end).cast(pa.string())
        except pa.ArrowInvalid:
            raise MalformedHeadersError from None
        values = gather_bytes(self._buffer, self._value_at, self._value_end)
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
        counts = np.bincount(self._rows, minlength=self.count)
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(
            pa.array(offsets), pairs, type=HEADERS_TYPE, mask=pa.array(counts == 0)
        )

    def named(self, name: bytes) -> pa.Array:
        """Return the value of the header *name* for each message, or null; as binary."""
        if not len(self._rows):
            return pa.nulls(self.count, pa.binary())
        # Compare all keys of the right length byte by byte, dropping those that differ: a loop
        # over the bytes of one name, not over the headers.
        same: Flags = (self._key_end - self._key_at) == len(name)
        for i, byte in enumerate(name):
            same[same] = self._data[self._key_at[same] + i] == byte
        chosen = np.nonzero(same)[0]
        values = gather_bytes(self._buffer, self._value_at[chosen], self._value_end[chosen])
        places = np.full(self.count, -1, np.int64)
        places[self._rows[chosen]] = np.arange(len(chosen))
        return values.take(pa.array(places, mask=places < 0))
