"""The bytes after an index's rows, appended when its segment is sealed. No file.

0      32                topics_at                row_sums_at  block_sums_at
+------+-----+-----+-----+--------+---------------+------------+-------------+---------+
|header| row | row | ... | topics | topic numbers | row sums   | block sums  | trailer |
+------+-----+-----+-----+--------+---------------+------------+-------------+---------+

header      as a segment's, with the index's magic and the same first id and created_us
topics      for each number 1, 2, 3 ... in turn: length u16, name
numbers     the topic column once more, so that a reader of one topic finds its rows in few
            bytes: u8 each with up to 255 topics, u16 with up to 65,535, else u32
row sums    u32 each, CRC-32C of every 4096 rows (the last block may be shorter)
block sums  u32 each, CRC-32C of every MiB of the segment file (the last may be shorter)

the trailer
0      8         16              24          32            40
+------+---------+---------------+-----------+-------------+---------------+
| rows | last id | segment bytes | topics_at | row_sums_at | block_sums_at |
+------+---------+---------------+-----------+-------------+---------------+
48            52          56           60    64      72
+-------------+-----------+------------+-----+-------+
| topic count | gap count | tables crc | crc | magic |
+-------------+-----------+------------+-----+-------+

gap count   bits 0-30; bit 31 says that a CLOCK record is in the segment: timestamps may go back
tables crc  CRC-32C of topics, topic numbers, row sums and block sums
crc         CRC-32C of the 60 bytes before it
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from braidmq.base.limits import MIB
from braidmq.wal.format import (
    HEADER_BYTES,
    INDEX_MAGIC,
    ROW_BYTES,
    VERSION,
    checksum,
    decode_header,
)

TRAILER_MAGIC: Final = b"BRAIDEN2"
"""An index without topic numbers ended in BRAIDEND; it is rebuilt when it is met."""
TRAILER_BYTES: Final = 72
BLOCK_ROWS: Final = 4096
"""Rows that are read and verified together."""
ROW_BLOCK_BYTES: Final = BLOCK_ROWS * ROW_BYTES
SEGMENT_BLOCK_BYTES: Final = MIB

_TRAILER: Final = Struct(
    "<Q"  # rows
    "Q"  # last id
    "Q"  # segment bytes
    "Q"  # topics_at
    "Q"  # row_sums_at
    "Q"  # block_sums_at
    "I"  # topic count
    "I"  # gap count
    "I"  # tables crc
    "I"  # crc
    "8s"  # magic
)
_CRC_AT: Final = 60
_STEPS_BIT: Final = 1 << 31

assert _TRAILER.size == TRAILER_BYTES


@dataclass(slots=True)
class Trailer:
    """The facts that a sealed index ends with, about itself and its segment."""

    rows: int
    last_id: int
    segment_bytes: int
    gap_count: int
    has_steps: bool = False
    topics_at: int = 0
    row_sums_at: int = 0
    block_sums_at: int = 0
    topic_count: int = 0
    tables_crc: int = 0


def is_index_of(data: bytes, first_id: int, created_us: int) -> bool:
    """Tell whether *data* starts with the header of the index of this segment."""
    header = decode_header(data, INDEX_MAGIC)
    return (
        header is not None
        and header.version == VERSION
        and (header.first_id, header.created_us) == (first_id, created_us)
    )


def number_bytes(topic_count: int) -> int:
    """Return how many bytes a topic number takes if there are *topic_count* topics."""
    return 1 if topic_count < 1 << 8 else 2 if topic_count < 1 << 16 else 4


def encode_tables(
    trailer: Trailer,
    topics: list[bytes],
    numbers: bytes,
    row_sums: list[int],
    block_sums: list[int],
) -> bytes:
    """Return everything after the rows; *topics* are the names in order of their numbers."""
    assert len(numbers) == trailer.rows * number_bytes(len(topics))
    names = b"".join([len(name).to_bytes(2, "little") + name for name in topics])
    row_bytes = Struct(f"<{len(row_sums)}I").pack(*row_sums)
    block_bytes = Struct(f"<{len(block_sums)}I").pack(*block_sums)
    tables = names + numbers + row_bytes + block_bytes
    topics_at = HEADER_BYTES + trailer.rows * ROW_BYTES
    row_sums_at = topics_at + len(names) + len(numbers)
    fields = _TRAILER.pack(
        trailer.rows,
        trailer.last_id,
        trailer.segment_bytes,
        topics_at,
        row_sums_at,
        row_sums_at + len(row_bytes),
        len(topics),
        trailer.gap_count | (_STEPS_BIT if trailer.has_steps else 0),
        checksum(tables),
        0,
        TRAILER_MAGIC,
    )[:_CRC_AT]
    return tables + fields + checksum(fields).to_bytes(4, "little") + TRAILER_MAGIC


def decode_trailer(data: bytes, file_bytes: int) -> Trailer | None:
    """Return the trailer in *data*, the last bytes of an index, or None if it is not valid.

    Its offsets must fit a file of *file_bytes*: the rest is then read without further checks.
    """
    if len(data) != TRAILER_BYTES or data[-8:] != TRAILER_MAGIC:
        return None
    rows, last_id, segment_bytes, topics_at, row_sums_at, block_sums_at, *rest = (
        _TRAILER.unpack(data)
    )
    topic_count, gaps, tables_crc, crc, _ = rest
    if checksum(data[:_CRC_AT]) != crc or topics_at != HEADER_BYTES + rows * ROW_BYTES:
        return None
    numbers_at = row_sums_at - rows * number_bytes(topic_count)
    # Each table's length follows from the counts, so offsets that disagree are invalid.
    if numbers_at < topics_at or block_sums_at != row_sums_at + 4 * -(-rows // BLOCK_ROWS):
        return None
    blocks = -(-segment_bytes // SEGMENT_BLOCK_BYTES)
    if file_bytes != block_sums_at + 4 * blocks + TRAILER_BYTES:
        return None
    return Trailer(
        rows,
        last_id,
        segment_bytes,
        gaps & ~_STEPS_BIT,
        has_steps=bool(gaps & _STEPS_BIT),
        topics_at=topics_at,
        row_sums_at=row_sums_at,
        block_sums_at=block_sums_at,
        topic_count=topic_count,
        tables_crc=tables_crc,
    )


class Tables(NamedTuple):
    """The tables of a sealed index."""

    topics: dict[bytes, int]
    numbers: bytes
    row_sums: list[int]
    block_sums: list[int]


def decode_tables(data: bytes, trailer: Trailer) -> Tables | None:
    """Return the tables in *data*, the bytes from topics_at to the trailer, or None."""
    if checksum(data) != trailer.tables_crc:
        return None
    numbers_end = trailer.row_sums_at - trailer.topics_at
    names_end = numbers_end - trailer.rows * number_bytes(trailer.topic_count)
    sums_end = trailer.block_sums_at - trailer.topics_at
    # The checksum has matched, so lengths are only checked once, at the end of the names.
    topics: dict[bytes, int] = {b"": 0}
    at = 0
    for number in range(1, trailer.topic_count + 1):
        end = at + 2 + int.from_bytes(data[at : at + 2], "little")
        topics[data[at + 2 : end]] = number
        at = end
    row_sums = memoryview(data[numbers_end:sums_end]).cast("I").tolist()
    block_sums = memoryview(data[sums_end:]).cast("I").tolist()
    if at != names_end:
        return None
    return Tables(topics, data[names_end:numbers_end], row_sums, block_sums)
