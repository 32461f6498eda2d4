"""Where the valid records of a segment end, and whether that is a torn tail or damage."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.limits import MIB, RECORD_BYTES_MAX
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    encode_gap,
    encode_header,
    encode_record,
)
from braidmq.wal.recovery import (
    Ending,
    Read,
    Verdict,
    Walk,
    find_record,
    judge_header,
    judge_last,
    judge_sealed,
)
from tests.unit.wal.bodies import message

BODY = message(b"t", b"payload of some length")
SIZE = 16 + len(BODY)


def segment(*records: bytes) -> bytes:
    return encode_header(SEGMENT_MAGIC, 1, 0) + b"".join(records)


def plain(record_id: int) -> bytes:
    return encode_record(record_id, BODY, fence=False)


def fenced(record_id: int) -> bytes:
    return encode_record(record_id, BODY, fence=True)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def reader(data: bytes) -> Read:
    return lambda size, offset: data[offset : offset + size]


def walked(data: bytes, first_id: int = 1) -> Walk:
    walk = Walk(reader(data), len(data), first_id)
    for _ in walk.runs():
        pass
    return walk


def last(data: bytes, durable_id: int = 0) -> Verdict:
    return judge_last(walked(data), durable_id, reader(data))


GOOD = segment(fenced(1), plain(2), plain(3))
SECOND = HEADER_BYTES + SIZE

LAST: list[tuple[str, bytes, int, Ending, str]] = [
    ("clean", GOOD, 3, Ending.CLEAN, ""),
    ("no record yet", segment(), 0, Ending.CLEAN, ""),
    ("torn header", GOOD + plain(4)[:9], 3, Ending.TORN_TAIL, "truncated"),
    ("torn payload", GOOD + plain(4)[:-3], 3, Ending.TORN_TAIL, "truncated"),
    ("zero tail", GOOD + bytes(700), 3, Ending.ZERO_TAIL, "impossible length 0"),
    ("zero tail shorter than a header", GOOD + bytes(3), 3, Ending.ZERO_TAIL, "truncated"),
    ("noise", GOOD + b"\x99" * 700, 3, Ending.TORN_TAIL, "impossible length"),
    (
        "hole in one batch",
        GOOD + flip(plain(4), 20) + plain(5),
        3,
        Ending.TORN_TAIL,
        "checksum",
    ),
    (
        "hole before a fence",
        GOOD + flip(plain(4), 20) + fenced(5),
        3,
        Ending.DAMAGE,
        "record 5",
    ),
    ("fence far behind", flip(GOOD, SECOND) + fenced(4), 0, Ending.DAMAGE, "record 4 after"),
    ("at the mark", flip(GOOD, SECOND + 2 * SIZE - 1), 3, Ending.DAMAGE, "the durable mark 3"),
    ("below the mark", flip(GOOD, SECOND), 3, Ending.DAMAGE, "at or below the durable mark"),
    ("beyond the mark", flip(GOOD, SECOND), 1, Ending.TORN_TAIL, "checksum"),
    ("ends before the mark", GOOD, 4, Ending.DAMAGE, "ends before the durable mark"),
    ("zeros below the mark", GOOD + bytes(99), 4, Ending.DAMAGE, "durable mark"),
    ("a record is missing", GOOD + plain(5), 0, Ending.DAMAGE, "id 5 where 4 is due"),
    ("a duplicate record", GOOD + plain(3), 3, Ending.TORN_TAIL, "id 3 where 4 is due"),
]


@pytest.mark.parametrize(("data", "durable_id", "ending", "reason"), [d[1:] for d in LAST])
def test_the_last_segment_is_torn_or_damaged(
    data: bytes, durable_id: int, ending: Ending, reason: str
) -> None:
    """What a crash can leave is torn; what only loss of accepted data explains is damage."""
    verdict = last(data, durable_id)

    assert ending is verdict.ending
    assert reason in verdict.reason


def test_damage_names_the_ids() -> None:
    """From the first invalid record to the last before the next intact one."""
    data = segment(fenced(1), flip(plain(2), 20), flip(plain(3), 20), fenced(4))
    verdict = last(data)
    assert (SECOND, 2, 3) == (verdict.offset, verdict.first_id, verdict.last_id)
    verdict = last(segment(fenced(1)), 7)
    assert (SECOND, 2, 7) == (verdict.offset, verdict.first_id, verdict.last_id)


SEALED = [
    (GOOD, 4, Ending.CLEAN, 4),
    (GOOD, 6, Ending.DAMAGE, 5),
    (GOOD[:-1], 4, Ending.DAMAGE, 3),
    (GOOD + bytes(5), 4, Ending.DAMAGE, 4),
    (flip(GOOD, SECOND + 20), 4, Ending.DAMAGE, 2),
    (segment(plain(1), encode_record(2, encode_gap(2, 9), fence=True)), 10, Ending.CLEAN, 10),
]


@pytest.mark.parametrize(("data", "successor", "ending", "last_id"), SEALED)
def test_a_sealed_segment_is_whole_or_damaged(
    data: bytes, successor: int, ending: Ending, last_id: int
) -> None:
    """A segment with a successor never heals: it was synced before that one was created."""
    verdict = judge_sealed(walked(data), successor, reader(data))

    assert (ending, last_id) == (verdict.ending, verdict.last_id)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (encode_header(SEGMENT_MAGIC, 1, 0), ""),
        (encode_header(SEGMENT_MAGIC, 1, 0)[:31], "bad segment header"),
        (encode_header(SEGMENT_MAGIC, 1, 0, version=2), "version 2"),
        (encode_header(SEGMENT_MAGIC, 2, 0), "first id 2, its name 1"),
    ],
)
def test_the_segment_header_is_checked(header: bytes, problem: str) -> None:
    """It must be valid, of this version and of this segment; otherwise the reason is given."""
    found, reason = judge_header(header, 1)

    assert (not problem) == (found is not None)
    assert problem in reason


def test_a_huge_length_is_not_read() -> None:
    """A torn length causes no read beyond the end of the file."""
    sizes: list[int] = []
    data = GOOD + (4).to_bytes(8, "little") + RECORD_BYTES_MAX.to_bytes(4, "little") + b"crc!x"

    def read(size: int, offset: int) -> bytes:
        sizes.append(size)
        return data[offset : offset + size]

    walk = Walk(read, len(data), 1)
    assert 3 == sum(len(records) for _, records in walk.runs())
    assert Ending.TORN_TAIL is judge_last(walk, 0, read).ending
    assert max(sizes) <= len(data)


def test_records_longer_than_a_chunk_are_read() -> None:
    """A record of any legal size is read whole, at any offset."""
    big = message(b"t", bytes(3 * MIB))
    data = segment(fenced(1), encode_record(2, big, fence=False), plain(3))
    walk = Walk(reader(data), len(data), 1)
    found = [record for _, records in walk.runs() for record in records]

    assert [1, 2, 3] == [record_id for record_id, _ in found]
    assert big == found[1][1]
    assert "" == walk.problem


def test_a_file_that_shrinks_while_being_read_is_reported() -> None:
    """Reading fewer bytes than the file's size ends the walk with a problem."""
    walk = Walk(reader(GOOD[:-5]), len(GOOD), 1)
    assert 2 == sum(len(records) for _, records in walk.runs())
    assert "shorter than it was" in walk.problem


@settings(max_examples=50)
@given(st.binary(max_size=300), st.integers(1, 2**40), st.booleans())
def test_a_record_is_found_at_any_byte(noise: bytes, record_id: int, fence: bool) -> None:
    """After noise of any length an intact record is found, if its id is high enough."""
    data = noise + encode_record(record_id, BODY, fence=fence) + noise
    found = find_record(reader(data), 0, len(data), record_id - 1, fenced=False)
    assert (len(noise), record_id) == found
    assert None is find_record(reader(data), 0, len(data), record_id, fenced=False)
    only = find_record(reader(data), 0, len(data), record_id - 1, fenced=True)
    assert (found if fence else None) == only


def test_the_search_finds_a_header_across_two_chunks() -> None:
    """Wherever the boundary of the search's chunks falls."""
    for shift in range(-20, 3):
        noise = b"\x77" * (256 * 1024 + shift)
        data = noise + fenced(9)
        assert (len(noise), 9) == find_record(reader(data), 0, len(data), 8, fenced=True)


def test_every_truncation_leaves_the_valid_prefix() -> None:
    """Truncate a log at every byte: exactly the whole records before that are valid."""
    data = segment(fenced(1), plain(2), plain(3))
    ends = list(accumulate([SIZE] * 3, initial=HEADER_BYTES))
    for size in range(HEADER_BYTES, len(data) + 1):
        verdict = last(data[:size])
        whole = sum(end <= size for end in ends) - 1
        assert (ends[whole], whole + 1) == (verdict.offset, verdict.first_id)
        assert verdict.ending is not Ending.DAMAGE
