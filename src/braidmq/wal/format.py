"""The bytes of the log: segments, records, index rows, marks. No file, no clock.

Everything is little-endian. A segment file is a header followed by records:

    0       8         12         20           28    32
    +-------+---------+----------+------------+-----+---------+---------+--
    | magic | version | first id | created_us | crc | record  | record  | ...
    +-------+---------+----------+------------+-----+---------+---------+--

    a record
    0    8      12    16     17
    +----+------+-----+------+---------------+
    | id | len  | crc | kind | rest of body  |   crc: CRC-32C of id, len and body
    +----+------+-----+------+---------------+

    kind, u8: the first byte of the body. Bits 0-6 are the type: 0 is never written, so that a
    run of zeros is never a record; 127 is a gap record. Bit 7 is the fence. It belongs to the
    log: callers pass and receive bodies without it

The **fence** says: everything before this record had been synced before this record was
written. A power cut may keep any sectors of what was not yet synced, so a hole with valid
records after it proves nothing by itself. A fence after the hole proves that the lost bytes
were once durable: that is damage.

    a gap record's body: the ids first..last are lost, and a repair was told to accept it
    0     1          9         17
    +-----+----------+---------+
    | 127 | first id | last id |   its own id is first id; the next record's is last id + 1
    +-----+----------+---------+

    the durable mark, wal/durable
    0    8     12
    +----+-----+
    | id | crc |   crc: CRC-32C of the eight bytes before it
    +----+-----+

    an index row, one for each record; a record ends where its payload ends
  0    8              16               20               24      28    29         30       31
  +----+--------------+----------------+----------------+-------+-----+----------+--------+----
  | id | timestamp_us | payload offset | payload length | topic | qos | priority | origin | kind
  +----+--------------+----------------+----------------+-------+-----+----------+--------+----

The rest of an index file is drawn in `braidmq.wal.tables`. Specification: docs/log_format.md.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

import google_crc32c
from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le, write_i64_le

from braidmq.base.limits import RECORD_BYTES_MAX
from braidmq.base.records import GAP_KIND, Description

SEGMENT_MAGIC: Final = b"BRAIDWAL"
INDEX_MAGIC: Final = b"BRAIDIDX"
VERSION: Final = 1
HEADER_BYTES: Final = 32
RECORD_HEADER_BYTES: Final = 16
MARK_BYTES: Final = 12
ROW_BYTES: Final = 32
GAP_BODY_BYTES: Final = 17
FENCE_BIT: Final = 0x80
TYPE_MASK: Final = 0x7F
SEGMENT_BYTES_LIMIT: Final = 2**32 - 1
"""Index rows hold offsets in 32 bits."""

assert GAP_KIND <= TYPE_MASK

PRIORITY_AT: Final = 29  # in a row: after id, time, offset, length, topic and qos

_I32_MAX: Final = 2**31 - 1
_U32_SPAN: Final = 2**32

_crc32c: Final[Callable[[bytes], int]] = google_crc32c.value
_extend: Final[Callable[[int, bytes], int]] = google_crc32c.extend

_HEADER: Final = Struct(
    "<8s"  # magic
    "I"  # version
    "Q"  # first id
    "Q"  # created_us
    "I"  # crc
)
_RECORD: Final = Struct(
    "<Q"  # id
    "I"  # length of the body
    "I"  # crc
)
_PREFIX: Final = Struct(
    "<Q"  # id
    "I"  # word
)
_GAP: Final = Struct(
    "<B"  # kind
    "Q"  # first id
    "Q"  # last id
)
_MARK: Final = Struct(
    "<Q"  # id
    "I"  # crc
)
_ROW: Final = Struct(
    "<Q"  # id
    "Q"  # timestamp_us
    "I"  # payload offset in the segment file
    "I"  # payload length
    "I"  # topic number, 0 = none
    "B"  # qos
    "B"  # priority
    "B"  # origin
    "B"  # kind
)

assert _HEADER.size == HEADER_BYTES
assert _RECORD.size == RECORD_HEADER_BYTES
assert _GAP.size == GAP_BODY_BYTES
assert _MARK.size == MARK_BYTES
assert _ROW.size == ROW_BYTES

Describe = Callable[[bytes], Description]
"""Describes a body; raises UnknownRecordError for a type that it does not know."""


class Header:
    """A valid header of a segment or an index file."""

    def __init__(self, version: int, first_id: int, created_us: int) -> None:
        self.version = version
        self.first_id = first_id
        self.created_us = created_us


def encode_header(
    magic: bytes, first_id: int, created_us: int, version: int = VERSION
) -> bytes:
    """Return the 32 bytes that a segment (or, with its magic, an index) starts with."""
    unsealed = _HEADER.pack(magic, version, first_id, created_us, 0)[:-4]
    return unsealed + _crc32c(unsealed).to_bytes(4, "little")


def decode_header(data: bytes, magic: bytes) -> Header | None:
    """Return the header at the start of *data*, or None if it is not valid."""
    if len(data) < HEADER_BYTES:
        return None
    found, version, first_id, created_us, crc = _HEADER.unpack_from(data)
    if found != magic or _crc32c(data[: HEADER_BYTES - 4]) != crc:
        return None
    return Header(version, first_id, created_us)


def encode_mark(durable_id: int) -> bytes:
    """Return the content of `wal/durable`."""
    durable = durable_id.to_bytes(8, "little")
    return durable + _crc32c(durable).to_bytes(4, "little")


def decode_mark(data: bytes) -> int | None:
    """Return the durable id, or None if the mark is torn."""
    if len(data) < MARK_BYTES:
        return None
    durable_id, crc = _MARK.unpack_from(data)
    return int(durable_id) if _crc32c(data[:8]) == crc else None


def encode_gap(first_id: int, last_id: int) -> bytes:
    """Return the body of a gap record that stands for the ids first..last."""
    assert 0 < first_id <= last_id
    return _GAP.pack(GAP_KIND, first_id, last_id)


def decode_gap(body: bytes) -> tuple[int, int] | None:
    """Return (first id, last id) if *body* is a well-formed gap record, else None."""
    if len(body) != GAP_BODY_BYTES or body[0] & TYPE_MASK != GAP_KIND:
        return None
    _, first_id, last_id = _GAP.unpack(body)
    return (first_id, last_id) if 0 < first_id <= last_id else None


_NOT_A_MESSAGE: Final = Description(b"", 0, 0, 0, 0, 0)
_NO_BEGINNING: Final = 32 * b"\xff"  # no body starts with it: types end at the mask


def encode_record(record_id: int, body: bytes, *, fence: bool) -> bytes:
    """Return one whole record."""
    assert 0 < len(body) <= RECORD_BYTES_MAX
    assert 0 < body[0] <= TYPE_MASK
    if fence:
        body = _fenced(body)
    crc = _crc32c(_PREFIX.pack(record_id, len(body)) + body)
    return _RECORD.pack(record_id, len(body), crc) + body


def _fenced(body: bytes) -> bytes:
    return bytes([body[0] | FENCE_BIT]) + body[1:]


def _unfenced(body: bytes) -> bytes:
    return bytes([body[0] & TYPE_MASK]) + body[1:]


def encode_batch(  # noqa: PLR0917 - called once per batch, from one place
    first_id: int,
    bodies: list[bytes],
    offset: int,
    fence: bool,  # noqa: FBT001 - as above
    describe: Describe,
    topics: dict[bytes, int],
) -> tuple[bytes, bytes]:
    """Return the records of *bodies* and their index rows, each as one string.

    *offset* is where the first record will start in the segment file. *topics* maps topic names
    to numbers, holds ``b"": 0``, and grows by the new names; the caller removes them again if
    the batch is not written.

    Raises:
        UnknownRecordError: *describe* does not know a body's type.
    """
    crc32c = _crc32c
    prefix = _PREFIX.pack
    data = BytesWriter()
    rows = BytesWriter()
    record_id = first_id
    at = offset + RECORD_HEADER_BYTES
    # Messages of one topic and one moment have the same bytes before their payload, and equal
    # bytes there have the same description. Comparing them is cheaper than `describe`.
    beginning = _NO_BEGINNING
    what = _NOT_A_MESSAGE
    alike = 0  # the last eight bytes of a row: topic number, qos, priority, origin, kind
    start = 0
    for body in bodies:
        length = len(body)
        if not body.startswith(beginning):
            kind = body[0]
            assert 0 < kind < GAP_KIND
            what = describe(body)
            number = _number_of(what.topic, topics)
            alike = (
                number | what.qos << 32 | what.priority << 40 | what.origin << 48 | kind << 56
            )
            start = what.payload_at
            beginning = body[:start] if start else _NO_BEGINNING
        assert length <= RECORD_BYTES_MAX
        if fence:
            body = _fenced(body)  # noqa: PLW2901 - what is written, from here on
            fence = False
        head: bytes = prefix(record_id, length)
        crc = crc32c(head + body)
        data.write(head)
        write_i32_le(data, crc if crc <= _I32_MAX else crc - _U32_SPAN)
        data.write(body)
        write_i64_le(rows, record_id)
        write_i64_le(rows, what.timestamp_us)
        write_i64_le(rows, at + start | (length - start) << 32)
        write_i64_le(rows, alike)
        record_id += 1
        at += length + RECORD_HEADER_BYTES
    return data.getvalue(), rows.getvalue()


def _number_of(topic: bytes, topics: dict[bytes, int]) -> int:
    number = topics.get(topic)
    if number is None:
        number = len(topics)
        topics[topic] = number
    return number


def encode_rows(
    records: list[tuple[int, bytes]], offset: int, describe: Describe, topics: dict[bytes, int]
) -> bytes:
    """Return the index rows of *records*, the first of which starts at *offset*.

    Raises:
        UnknownRecordError: *describe* does not know a body's type.
    """
    rows: list[bytes] = []
    at = offset + RECORD_HEADER_BYTES
    for record_id, body in records:
        what = _NOT_A_MESSAGE if body[0] == GAP_KIND else describe(body)
        number = _number_of(what.topic, topics)
        rows.append(
            _ROW.pack(
                record_id,
                what.timestamp_us,
                at + what.payload_at,
                len(body) - what.payload_at,
                number,
                what.qos,
                what.priority,
                what.origin,
                body[0],
            )
        )
        at += len(body) + RECORD_HEADER_BYTES
    return b"".join(rows)


class Scan:
    """The valid records at the start of some bytes, and why the scan ended.

    `wanted` is how many bytes from `end` on are needed to judge the next record. It is 0 if the
    next record was judged and rejected: `problem` then says why. `stray_id` is the id of a
    record that is intact but out of sequence, else 0.
    """

    def __init__(self, next_id: int) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.end = 0
        self.next_id = next_id
        self.wanted = 0
        self.problem = ""
        self.stray_id = 0


def scan(data: bytes, next_id: int) -> Scan:
    """Return the records that *data* starts with; the first must have the id *next_id*.

    An announced length is compared with its limit before it is used: a torn length costs no
    memory.
    """
    found = Scan(next_id)
    records = found.records
    crc32c = _crc32c
    unpack = _RECORD.unpack_from
    size = len(data)
    at = 0
    due = next_id
    while True:
        if size - at < RECORD_HEADER_BYTES:
            found.wanted = RECORD_HEADER_BYTES
            break
        record_id, length, crc = unpack(data, at)
        if not 0 < length <= RECORD_BYTES_MAX:
            found.problem = f"impossible length {length}"
            break
        start = at + RECORD_HEADER_BYTES
        end = start + length
        if end > size:
            found.wanted = end - at
            break
        body = data[start:end]
        if crc32c(data[at : at + 12] + body) != crc:
            found.problem = "checksum mismatch"
            break
        if record_id != due:
            found.problem = f"id {record_id} where {due} is due"
            found.stray_id = record_id
            break
        if body[0] > TYPE_MASK:
            body = _unfenced(body)
        kind = body[0]
        due += 1
        # Type 0 is never written, and a gap record decides which id is next.
        if kind in (0, GAP_KIND):
            gap = decode_gap(body)
            if gap is None or gap[0] != record_id:
                due = record_id
                found.problem = f"malformed record of type {kind}"
                break
            due = gap[1] + 1
        records.append((record_id, body))
        at = end
    found.end = at
    found.next_id = due
    return found


def record_at(data: bytes, at: int) -> tuple[int, int, bool] | None:
    """Return (id, length of the whole record, fence) if *at* holds an intact one, else None."""
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    record_id, length, crc = _RECORD.unpack_from(data, at)
    start = at + RECORD_HEADER_BYTES
    if not 0 < length <= min(RECORD_BYTES_MAX, len(data) - start):
        return None
    if data[start] & TYPE_MASK == 0:
        return None
    if _crc32c(data[at : at + 12] + data[start : start + length]) != crc:
        return None
    return record_id, RECORD_HEADER_BYTES + length, data[start] >= FENCE_BIT


class SelectedRows:
    """The records that a read wants of one block of rows, and where they are."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.body_bytes = 0
        self.reached_id = 0
        self.full = False


def select_rows(  # noqa: PLR0917 - called once per block, from one place
    rows: bytes,
    before: int,
    topic: int,
    after_id: int,
    up_to: int,
    count_max: int,
    bytes_max: int,
    priority: int = -1,
) -> SelectedRows:
    """Return the records of *rows* with after_id < id <= up_to and the topic, within bounds.

    *before* is the offset where the first row's record starts; *topic* -1 selects every topic,
    *priority* -1 every priority. The first match is selected even if it is larger than
    *bytes_max*, or a reader could never get past it. `reached_id` is the last id that was
    judged.
    """
    chosen = SelectedRows()
    # Slice whole columns in C: only the rows of the wanted topic are then looked at one by one.
    words = memoryview(rows).cast("I")
    offsets: list[int] = words[4::8].tolist()
    lengths: list[int] = words[5::8].tolist()
    ids: list[int] = memoryview(rows).cast("Q")[::4].tolist()
    if topic == -1:
        wanted = list(range(len(ids)))
    else:
        topics: list[int] = words[6::8].tolist()
        wanted = [i for i, number in enumerate(topics) if number == topic]
    if priority != -1:
        priorities = rows[PRIORITY_AT::ROW_BYTES]
        wanted = [i for i in wanted if priorities[i] == priority]
    chosen.reached_id = min(ids[-1], up_to)
    out_ids = chosen.ids
    starts = chosen.starts
    ends = chosen.ends
    count = 0
    used = 0
    # A record has no offset of its own in a row: it starts where the one before it ends.
    for i in wanted:
        record_id = ids[i]
        if record_id <= after_id:
            continue
        if record_id > up_to:
            break
        start = offsets[i - 1] + lengths[i - 1] if i else before
        end = offsets[i] + lengths[i]
        size = end - start - RECORD_HEADER_BYTES
        if count == count_max or (used + size > bytes_max and count):
            chosen.full = True
            chosen.reached_id = record_id - 1
            break
        out_ids.append(record_id)
        starts.append(start)
        ends.append(end)
        count += 1
        used += size
    chosen.body_bytes = used
    return chosen


def cut_records(
    data: bytes, base: int, ids: list[int], starts: list[int], ends: list[int]
) -> list[tuple[int, bytes]]:
    """Return the records at starts..ends of a file whose bytes from *base* on are *data*.

    Stops before the first one that is not the intact record of its id: the result is then
    shorter than *ids*.
    """
    records: list[tuple[int, bytes]] = []
    crc32c = _crc32c
    for i in range(len(ids)):
        start = starts[i] - base
        end = ends[i] - base
        if end > len(data) or end - start <= RECORD_HEADER_BYTES:
            break
        record_id: int = read_i64_le(data, start)
        length: int = read_i32_le(data, start + 8)
        crc: int = read_i32_le(data, start + 12)
        if crc < 0:
            crc += _U32_SPAN
        body = data[start + RECORD_HEADER_BYTES : end]
        if (
            record_id != ids[i]
            or length != len(body)
            or crc32c(data[start : start + 12] + body) != crc
        ):
            break
        if body[0] > TYPE_MASK:
            body = _unfenced(body)
        records.append((record_id, body))
    return records


def checksum(data: bytes, so_far: int = 0) -> int:
    """Return the CRC-32C of *data* following bytes whose checksum is *so_far*."""
    return _extend(so_far, data)
