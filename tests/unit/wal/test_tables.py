"""The tables after an index's rows."""

from hypothesis import given
from hypothesis import strategies as st

from braidmq.wal.format import HEADER_BYTES, ROW_BYTES, checksum
from braidmq.wal.index import BlockSums, TopicNumbers
from braidmq.wal.tables import (
    TRAILER_BYTES,
    Trailer,
    decode_tables,
    decode_trailer,
    encode_tables,
    number_bytes,
)
from tests.unit.wal.bodies import flip_bit


def sample() -> tuple[bytes, int]:
    """Return tables for an index of 5000 rows, and the size of its file."""
    numbers = bytes(i % 4 for i in range(5000))
    data = encode_tables(Trailer(5000, 9, 99, 1), [b"a", b"", b"ccc"], numbers, [1, 2], [3])
    return data, HEADER_BYTES + 5000 * ROW_BYTES + len(data)


def test_tables_survive_encoding() -> None:
    """Trailer and tables decode to what was encoded."""
    data, size = sample()
    trailer = decode_trailer(data[-TRAILER_BYTES:], size)
    assert trailer is not None
    tables = decode_tables(data[:-TRAILER_BYTES], trailer)
    assert tables is not None

    found = (trailer.rows, trailer.last_id, trailer.segment_bytes, trailer.gap_count)
    assert (5000, 9, 99, 1) == found
    assert ([1, 2], [3]) == (tables.row_sums, tables.block_sums)
    assert 3 == tables.topics[b"ccc"]
    assert bytes(i % 4 for i in range(5000)) == tables.numbers


def test_tables_with_a_flipped_bit_are_rejected() -> None:
    """Wherever the bit is, in the trailer or in a table."""
    data, size = sample()
    for bit in range(len(data) * 8):
        flipped = flip_bit(data, bit)
        trailer = decode_trailer(flipped[-TRAILER_BYTES:], size)
        if trailer is not None:
            assert bit // 8 < len(data) - TRAILER_BYTES
            assert None is decode_tables(flipped[:-TRAILER_BYTES], trailer)


def test_a_trailer_must_fit_its_file() -> None:
    """Offsets beyond the file are not followed."""
    data, size = sample()
    assert None is decode_trailer(data[-TRAILER_BYTES:], size - 1)
    assert None is decode_trailer(data[-TRAILER_BYTES:], size + 1)
    assert None is decode_trailer(data[-TRAILER_BYTES + 1 :], size)
    odd = encode_tables(Trailer(5000, 9, 99, 1), [b"a"], bytes(5000), [1], [2])
    assert None is decode_trailer(odd[-TRAILER_BYTES:], size)


def test_inconsistent_tables_are_rejected() -> None:
    """The names must fill the topic table exactly."""
    data, size = sample()
    trailer = decode_trailer(data[-TRAILER_BYTES:], size)
    assert trailer is not None
    trailer.topic_count = 2
    assert None is decode_tables(data[:-TRAILER_BYTES], trailer)


@given(st.lists(st.tuples(st.integers(0, 80_000), st.integers(1, 3)), max_size=12))
def test_topic_numbers_match_the_rows(batches: list[tuple[int, int]]) -> None:
    """One, two or four bytes each, as the largest number so far requires."""
    numbers, expected, count = TopicNumbers(), [], 0
    for topic, repeats in batches:
        count = max(count, topic)
        row = bytes(24) + topic.to_bytes(4, "little") + b"\xff" * 4
        numbers.update(row * repeats, count)
        expected += [topic] * repeats
    width = number_bytes(count)

    assert width == (1 if count < 256 else 2 if count < 65_536 else 4)
    assert b"".join(topic.to_bytes(width, "little") for topic in expected) == numbers.all()


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20))
def test_running_checksums_match_the_blocks(pieces: list[bytes], size: int) -> None:
    """However the bytes are split on arrival."""
    sums = BlockSums(size)
    for piece in pieces:
        sums.update(piece)
    data = b"".join(pieces)
    blocks = [checksum(data[at : at + size]) for at in range(0, len(data), size)]

    assert blocks == sums.all()
    assert blocks[: len(data) // size] == sums.sums
