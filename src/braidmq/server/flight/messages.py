"""Messages of gRPC, judged while they arrive: how long they are, and that nothing is packed.

    prefix                     protobuf, its top level only
    +------------+--------+    +-----+--------+-------+-----+--------+-------+---
    | compressed | length |    | tag | length | value | tag | length | value | ...
    +------------+--------+    +-----+--------+-------+-----+--------+-------+---
      u8           u32           varints        |
                                                `-- of field 2 a flatbuffer, if it is one:
                                                    Message -> RecordBatch -> compression

gRPC takes a whole message in before a handler can refuse it, and Arrow unpacks a batch before a
handler can see it. So both are decided here, before the last byte of a message is passed on:
half a message is of no use to either.

Which request a message is, is not known: its method is in headers that only gRPC reads. But
all have one shape. Field 2 is the header of a batch (FlightData), or JSON (Action and others),
which is no flatbuffer: its first four bytes, taken as an offset, lie far outside. Arrow reads
fields by their number, whatever their type, so a type that has two readings is refused.
"""

import struct
from typing import Final

from braidmq.base.limits import KIB, MIB
from braidmq.base.refusals import by_bound
from braidmq.columnar.flight.requests import REQUEST_BYTES_MAX, STAGE_BATCH_BYTES_MAX
from braidmq.transport.relay import RefusedBytesError

MESSAGE_BYTES_MAX: Final = STAGE_BATCH_BYTES_MAX + MIB
"""A message of gRPC: the largest batch of a stage, and what describes it."""

FIELD_BYTES_MAX: Final = REQUEST_BYTES_MAX + 64 * KIB
"""A field of one other than the body of a batch: a request, and an error's room beyond it."""

HEADER_BYTES_MAX: Final = MIB
"""The description of a batch: 16 bytes or so for each of its columns' buffers."""

FLIGHT_MESSAGE: Final = "flight_message"
"""The reason of a refusal for what a message is or holds."""

FLIGHT_COMPRESSED: Final = "flight_compressed"
"""The reason of a refusal for a message that would have to be unpacked."""

_PREFIX_BYTES: Final = 5
_VARINT_BYTES_MAX: Final = 5  # of what fits into 32 bits
_VARINT: Final = 0
_BYTES: Final = 2
_HEADER: Final = 2  # the numbers of fields of FlightData
_BODY: Final = 1000
_DICTIONARY_BATCH: Final = 2  # the types of Arrow's Message
_RECORD_BATCH: Final = 3
_EXPERIMENTAL: Final = b"ARROW:experimental_compression"
"""How Arrow 0.17 said that a batch is packed; it is still read."""


class MessageError(RefusedBytesError):
    """A message is too large, packed, or of no known shape."""


def _shapeless(problem: str) -> MessageError:
    return MessageError(FLIGHT_MESSAGE, f"a message is not one of Flight: {problem}")


class Messages:
    """The messages of one stream, one after the other."""

    __slots__ = ("_fields", "_left", "_prefix", "ended", "unfinished_bytes")

    def __init__(self) -> None:
        self._prefix = bytearray()
        self._left = 0
        self._fields: _Fields | None = None
        self.ended = 0
        """How many have come to their end."""

        self.unfinished_bytes = 0
        """How much has arrived of one that has not ended, and is held for it."""

    def take(self, data: memoryview) -> None:
        """Take the next bytes of the stream.

        Raises:
            MessageError: One is refused.
        """
        at = 0
        while at < len(data):
            if self._fields is None:
                missing = _PREFIX_BYTES - len(self._prefix)
                self._prefix += data[at : at + missing]
                at += missing
                if len(self._prefix) < _PREFIX_BYTES:
                    self.unfinished_bytes = len(self._prefix)
                    return
                self._begin()
            else:
                part = data[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                self._fields.take(part)
                self.unfinished_bytes += len(part)
            if not self._left:
                self._end()

    def _begin(self) -> None:
        is_compressed, self._left = struct.unpack(">BI", self._prefix)
        if is_compressed:
            raise MessageError(
                FLIGHT_COMPRESSED, "a message is compressed by gRPC; send it as it is"
            )
        if self._left > MESSAGE_BYTES_MAX:
            problem = f"a message of {self._left} bytes"
            raise MessageError(FLIGHT_MESSAGE, by_bound(problem, MESSAGE_BYTES_MAX, "bytes"))
        self._fields = _Fields(self._left)

    def _end(self) -> None:
        assert self._fields is not None
        self._fields.end()
        self._fields = None
        self._prefix.clear()
        self.unfinished_bytes = 0
        self.ended += 1


class _Fields:
    """The top level of one message: its fields in any order, each perhaps more than once."""

    __slots__ = ("_header", "_is_length", "_left", "_number", "_shift", "_value", "_wanted")

    def __init__(self, size: int) -> None:
        self._left = size  # of the message
        self._number = 0  # of the field whose length or value comes now
        self._is_length = False  # that, and not a number, comes after the tag
        self._value = self._shift = 0  # of the varint that comes now
        self._wanted = 0  # bytes of the field's value that are still to come
        self._header: bytearray | None = None

    def take(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            if self._wanted:
                part = data[at : at + self._wanted]
                at += len(part)
                self._left -= len(part)
                self._wanted -= len(part)
                if self._header is not None:
                    self._collect(part)
            else:
                self._take_byte(data[at])
                at += 1

    def end(self) -> None:
        if self._wanted or self._shift or self._number:
            raise _shapeless("its last field has no end")

    def _take_byte(self, byte: int) -> None:
        self._left -= 1
        self._value |= (byte & 0x7F) << self._shift
        self._shift += 7
        if byte & 0x80:
            if self._shift == 7 * _VARINT_BYTES_MAX:
                raise _shapeless("a number is too long")
            return
        value, self._value, self._shift = self._value, 0, 0
        if not self._number:
            self._begin(value)
        else:
            if self._is_length:
                self._begin_value(value)
            self._number = 0

    def _begin(self, tag: int) -> None:
        self._number, kind = tag >> 3, tag & 7
        self._is_length = kind == _BYTES
        # Arrow takes a number in field 1 for the length of a message, which has fields as well:
        # where it ends, one begins for either reading.
        is_known = self._is_length or (kind == _VARINT and self._number == 1)
        if not self._number or not is_known or tag >> 32:
            raise _shapeless(f"field {self._number} is of type {kind}")

    def _begin_value(self, size: int) -> None:
        if size > self._left:
            raise _shapeless(f"field {self._number} exceeds it")
        if self._number != _BODY and size > FIELD_BYTES_MAX:
            problem = f"a field of {size} bytes in a message"
            raise MessageError(FLIGHT_MESSAGE, by_bound(problem, FIELD_BYTES_MAX, "bytes"))
        self._wanted = size
        self._header = bytearray() if self._number == _HEADER and size >= 4 else None  # noqa: PLR2004 - an offset

    def _collect(self, part: memoryview) -> None:
        header = self._header
        assert header is not None
        began = len(header)
        size = began + len(part) + self._wanted
        header += part
        if began < 4 <= len(header):  # noqa: PLR2004 - an offset
            if struct.unpack_from("<I", header)[0] > size - 4:
                self._header = None  # a text
                return
            if size > HEADER_BYTES_MAX:
                problem = f"the header of a batch with {size} bytes"
                bound = by_bound(problem, HEADER_BYTES_MAX, "bytes")
                raise MessageError(FLIGHT_MESSAGE, bound)
        if not self._wanted and self._header is not None:
            self._header = None
            if _Flatbuffer(bytes(header)).is_compressed():
                problem = "a batch is compressed; send it as it is, without codec"
                raise MessageError(FLIGHT_COMPRESSED, problem)


class _Flatbuffer:
    """A message of Arrow, of which no offset is trusted."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def is_compressed(self) -> bool:
        """Return whether the buffers of its batch are compressed."""
        message = self._read("<I", 0)
        kind_at, header = self._field(message, 1), self._table(self._field(message, 2))
        kind = self._read("<B", kind_at) if kind_at else 0
        if kind == _DICTIONARY_BATCH and header:
            header = self._table(self._field(header, 1))
        elif kind != _RECORD_BATCH:
            return False
        if header and self._field(header, 3):
            return True
        return _EXPERIMENTAL in self._data

    def _field(self, table: int, number: int) -> int:
        """Return where a table's field is; 0 if it has none."""
        fields = table - self._read("<i", table)
        entry = 4 + 2 * number
        if entry + 2 > self._read("<H", fields):
            return 0
        offset = self._read("<H", fields + entry)
        return table + offset if offset else 0

    def _table(self, at: int) -> int:
        """Return where the table is that a field refers to; 0 if there is no field."""
        return at + self._read("<I", at) if at else 0

    def _read(self, form: str, at: int) -> int:
        if not 0 <= at <= len(self._data) - struct.calcsize(form):
            raise _shapeless("the header of a batch points outside")
        found: int = struct.unpack_from(form, self._data, at)[0]
        return found
