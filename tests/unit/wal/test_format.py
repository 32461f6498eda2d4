"""The log's format."""

from struct import iter_unpack, pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.limits import RECORD_BYTES_MAX
from braidmq.wal import format as fmt
from tests.unit.wal.bodies import (
    describe,
    flip_bit,
    message,
    note,
)

BODY = message(b"t", b"hi")
RECORD = fmt.encode_record(7, BODY, fence=False)

GOLDEN = {
    "segment header": (
        fmt.encode_header(fmt.SEGMENT_MAGIC, 1, 2),
        "425241494457414c 01000000 0100000000000000 0200000000000000 67b6dc0c",
    ),
    "record": (
        fmt.encode_record(1, b"\x02hi", fence=False),
        "0100000000000000 03000000 54a016c7 026869",
    ),
    "fenced record": (
        fmt.encode_record(1, b"\x02hi", fence=True),
        "0100000000000000 03000000 17d7314c 826869",
    ),
    "gap": (fmt.encode_gap(3, 5), "7f 0300000000000000 0500000000000000"),
    "mark": (fmt.encode_mark(9), "0900000000000000 77cb2f87"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    """These bytes never change: existing logs contain them."""
    encoded, expected = GOLDEN[name]

    assert bytes.fromhex(expected) == encoded


def test_the_checksum_covers_id_length_and_body() -> None:
    """Any single bit flip in a record is detected, including one in the checksum."""
    for bit in range(len(RECORD) * 8):
        flipped = flip_bit(RECORD, bit)
        found = fmt.scan(flipped, 7)
        assert [] == found.records
        assert found.problem or found.wanted > len(RECORD)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.integers(1, 2**60))
def test_an_encoded_batch_can_be_scanned(payloads: list[bytes], first_id: int) -> None:
    """The scan returns the batch's records, and both give the same index rows."""
    bodies = [message(p[:1], p) for p in payloads]
    topics: dict[bytes, int] = {b"": 0}
    data, rows = fmt.encode_batch(first_id, bodies, 32, True, describe, topics)
    found = fmt.scan(data, first_id)

    assert list(enumerate(bodies, first_id)) == found.records
    assert (len(data), first_id + len(bodies)) == (found.end, found.next_id)
    again: dict[bytes, int] = {b"": 0}
    assert rows == fmt.encode_rows(found.records, 32, describe, again)
    assert topics == again


@given(st.integers(0, len(RECORD) * 3))
def test_a_truncated_record_asks_for_more_bytes(size: int) -> None:
    """Wherever the data is cut, the scan finds the whole records and asks for the rest."""
    data = b"".join(fmt.encode_record(i, BODY, fence=False) for i in (7, 8, 9))[:size]
    found = fmt.scan(data, 7)

    assert size // len(RECORD) == len(found.records)
    assert "" == found.problem
    assert found.wanted > len(data) - found.end


@given(st.binary(max_size=200))
def test_noise_is_never_a_record(noise: bytes) -> None:
    """Scanning random bytes ends without an exception and without a record."""
    found = fmt.scan(noise, 1)

    assert [] == found.records
    assert None is fmt.record_at(noise, 0)


def test_a_huge_length_is_refused_on_the_header() -> None:
    """A length beyond the limit is a problem at once; the scan asks for no more bytes."""
    for length in (0, RECORD_BYTES_MAX + 1, 1 << 25, 0x7FFFFFFF, 0xFFFFFFFF):
        found = fmt.scan(pack("<QII", 1, length, 0) + b"x" * 64, 1)
        assert 0 == found.wanted
        assert "impossible length" in found.problem
    found = fmt.scan(pack("<QII", 1, RECORD_BYTES_MAX, 0) + b"x" * 64, 1)
    assert RECORD_BYTES_MAX + fmt.RECORD_HEADER_BYTES == found.wanted


def test_zeros_are_never_data() -> None:
    """A zero header or a body of type 0 is not a record, even with a valid checksum."""
    assert "" != fmt.scan(bytes(64), 0).problem
    prefix = pack("<QI", 1, 1)
    forged = prefix + pack("<I", fmt.checksum(prefix + b"\0")) + b"\0"
    assert "type 0" in fmt.scan(forged, 1).problem
    assert None is fmt.record_at(forged, 0)


def test_ids_are_consecutive() -> None:
    """An intact record with an unexpected id is a stray, not a record."""
    for stray in (6, 9):
        data = RECORD + fmt.encode_record(stray, BODY, fence=False)
        found = fmt.scan(data, 7)
        assert 1 == len(found.records)
        assert stray == found.stray_id


def test_a_gap_record_moves_the_next_id() -> None:
    """After a gap record comes the id after its range; a malformed one is a problem."""
    good = fmt.encode_record(3, fmt.encode_gap(3, 5), fence=False)
    after = fmt.encode_record(6, BODY, fence=False)
    found = fmt.scan(good + after, 3)

    assert [3, 6] == [record_id for record_id, _ in found.records]
    assert 7 == found.next_id
    for body in (b"\x7f", pack("<BQQ", 127, 4, 5), pack("<BQQ", 127, 3, 2)):
        bad = fmt.scan(fmt.encode_record(3, body, fence=False), 3)
        assert "malformed" in bad.problem
        assert 3 == bad.next_id
    assert None is fmt.decode_gap(BODY)


def test_a_header_with_a_flipped_bit_is_rejected() -> None:
    """So is a truncated header, and one of another kind of file."""
    header = fmt.encode_header(fmt.SEGMENT_MAGIC, 5, 6)
    found = fmt.decode_header(header, fmt.SEGMENT_MAGIC)
    assert found is not None
    assert (1, 5, 6) == (found.version, found.first_id, found.created_us)
    for bit in range(len(header) * 8):
        flipped = flip_bit(header, bit)
        assert None is fmt.decode_header(flipped, fmt.SEGMENT_MAGIC)
    assert None is fmt.decode_header(header[:-1], fmt.SEGMENT_MAGIC)
    assert None is fmt.decode_header(header, fmt.INDEX_MAGIC)


def test_a_mark_with_a_flipped_bit_is_rejected() -> None:
    """A torn mark is never taken for another id."""
    mark = fmt.encode_mark(300)
    assert 300 == fmt.decode_mark(mark) == int.from_bytes(mark[:8], "little")
    for bit in range(len(mark) * 8):
        flipped = flip_bit(mark, bit)
        assert None is fmt.decode_mark(flipped)
    assert None is fmt.decode_mark(mark[:-1])


def test_only_the_first_record_of_a_batch_has_the_fence() -> None:
    """A fence states that everything before it is durable."""
    data, _ = fmt.encode_batch(1, [BODY, BODY], 32, True, describe, {b"": 0})
    first = fmt.record_at(data, 0)
    assert first is not None
    assert (1, len(RECORD), True) == first
    assert (2, len(RECORD), False) == fmt.record_at(data, first[1])
    data, _ = fmt.encode_batch(1, [BODY], 32, False, describe, {b"": 0})
    assert (1, len(RECORD), False) == fmt.record_at(data, 0)
    assert None is fmt.record_at(data[:-1], 0)
    assert None is fmt.record_at(data[:10], 0)


def test_rows_locate_the_payloads() -> None:
    """Offset, length, topic number and the other fields match the record."""
    bodies = [message(b"a", b"xx", 11), note(b"n"), message(b"b", b"yyy", 12), BODY]
    data, rows = fmt.encode_batch(5, bodies, 32, False, describe, {b"": 0, b"t": 1})
    file = bytes(32) + data

    decoded = list(iter_unpack("<QQIIIBBBB", rows))
    assert [5, 6, 7, 8] == [row[0] for row in decoded]
    assert [11, 0, 12, 5] == [row[1] for row in decoded]
    assert [b"xx", b"\x02n", b"yyy", b"hi"] == [file[r[2] : r[2] + r[3]] for r in decoded]
    assert [2, 0, 3, 1] == [row[4] for row in decoded]
    assert (1, 2, 3, 1) == decoded[0][5:]


def test_selected_records_are_extracted_and_verified() -> None:
    """A selection holds ids and offsets; extraction stops at the first damaged record."""
    bodies = [message(b"a", b"1"), message(b"b", b"2"), message(b"a", b"3")]
    data, rows = fmt.encode_batch(5, bodies, 32, False, describe, {b"": 0})
    chosen = fmt.select_rows(rows, 32, 1, 4, 99, 10, 10**6)

    assert ([5, 7], 7, False) == (chosen.ids, chosen.reached_id, chosen.full)
    cut = fmt.cut_records(data, 32, chosen.ids, chosen.starts, chosen.ends)
    assert [(5, bodies[0]), (7, bodies[2])] == cut
    for bit in range(len(data) * 8):
        flipped = flip_bit(data, bit)
        every = fmt.select_rows(rows, 32, -1, 4, 99, 10, 10**6)
        cut = fmt.cut_records(flipped, 32, every.ids, every.starts, every.ends)
        assert bit // 8 // (len(data) // 3) == len(cut)
    short = fmt.cut_records(data[:-1], 32, [7], chosen.starts[1:], chosen.ends[1:])
    assert [] == short


@pytest.mark.parametrize(
    ("count_max", "bytes_max", "ids", "reached", "full"),
    [
        (10, 10**6, [6, 7], 7, False),
        (1, 10**6, [6], 6, True),
        (2, 10**6, [6, 7], 7, False),
        (10, 1, [6], 6, True),
        (10, 31, [6], 6, True),
        (10, 32, [6, 7], 7, False),
    ],
)
def test_a_selection_keeps_its_limits(
    count_max: int, bytes_max: int, ids: list[int], reached: int, full: bool
) -> None:
    """Count and bytes limit a selection, but one record is always in it."""
    bodies = [message(b"a", b"1")] * 4
    assert 16 == len(bodies[0])
    _, rows = fmt.encode_batch(5, bodies, 32, False, describe, {b"": 0})
    chosen = fmt.select_rows(rows, 32, -1, 5, 7, count_max, bytes_max)

    assert (ids, reached, full) == (chosen.ids, chosen.reached_id, chosen.full)
    assert 16 * len(ids) == chosen.body_bytes
