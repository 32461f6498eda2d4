"""The index of a segment."""

from braidmq.testing.disk import FakeDisk
from braidmq.wal.format import HEADER_BYTES, ROW_BYTES, checksum, encode_rows, scan
from braidmq.wal.index import IndexView, index_path, open_sealed, read_trailer
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.tables import BLOCK_ROWS
from tests.unit.wal.bodies import (
    FIRST,
    FIRST_INDEX,
    batches_of,
    describe,
    flip_bit,
    message,
    numbered,
    open_log,
    sealed_log,
    write,
)


def opened(disk: FakeDisk, info: SegmentInfo) -> IndexView | None:
    return open_sealed(disk, info.first_id, info.created_us, info.size)


def test_the_rows_match_the_log() -> None:
    """Every record of every segment, sealed or growing, has one row; there are no others."""
    disk = FakeDisk()
    wal = open_log(disk)
    bodies = [message(b"t%d" % (i % 7), b"x" * (i % 90), i) for i in range(200)]
    write(wal, *batches_of(bodies, 13))

    for info in wal.segments():
        data = disk.content(info.path)
        found = scan(data[HEADER_BYTES:], info.first_id)
        rows = encode_rows(found.records, HEADER_BYTES, describe, {b"": 0})
        index = disk.content(index_path(info.first_id))
        assert rows == index[HEADER_BYTES : HEADER_BYTES + len(rows)]
        assert len(found.records) == info.last_id - info.first_id + 1


def test_a_sealed_index_is_complete() -> None:
    """Trailer, topic table and block checksums match the segment."""
    disk, info = sealed_log()
    found = read_trailer(disk, info.first_id, info.created_us, info.size)
    index = opened(disk, info)
    assert found is not None
    assert index is not None

    _, trailer = found
    assert info.last_id == trailer.last_id == trailer.rows
    assert {b"": 0, b"t": 1} == index.topics
    assert [checksum(disk.content(FIRST))] == index.block_sums
    rows = index.block(0)
    assert rows is not None
    assert info.last_id * ROW_BYTES == len(rows)


def test_a_bit_flip_in_a_sealed_index_is_detected() -> None:
    """The index, or the block of rows with the flipped bit, is not trusted."""
    disk, info = sealed_log()
    whole = disk.content(FIRST_INDEX)
    for bit in range(len(whole) * 8):
        flipped = flip_bit(whole, bit)
        disk.put(FIRST_INDEX, flipped)
        index = opened(disk, info)
        assert index is None or index.block(0) is None


def test_a_stale_truncated_or_missing_index_is_not_trusted() -> None:
    """Its size, creation time and first id must match the segment."""
    disk, info = sealed_log()
    whole = disk.content(FIRST_INDEX)
    assert None is open_sealed(disk, info.first_id, info.created_us, info.size + 1)
    assert None is open_sealed(disk, info.first_id, info.created_us + 1, info.size)
    assert None is open_sealed(disk, info.first_id + 1, info.created_us, info.size)
    for size in range(len(whole)):
        disk.put(FIRST_INDEX, whole[:size])
        assert None is opened(disk, info)
    disk.remove(FIRST_INDEX)
    assert None is opened(disk, info)
    assert None is read_trailer(disk, info.first_id, info.created_us, info.size)


def test_rows_are_found_by_id() -> None:
    """By counting without gaps and by searching with gaps, also beyond either end."""
    disk = FakeDisk()
    rows = b"".join(i.to_bytes(8, "little") + bytes(24) for i in (10, 11, 20, 21, 22))
    disk.put("i", bytes(HEADER_BYTES) + rows)
    for gaps, cases in (
        (1, {0: 0, 9: 0, 10: 1, 11: 2, 15: 2, 19: 2, 20: 3, 22: 5, 99: 5}),
        (0, {0: 0, 9: 0, 10: 1, 13: 4, 99: 5}),
    ):
        view = IndexView(
            disk.open("i", write=False, create=False),
            first_id=10,
            rows=5,
            gap_count=gaps,
            topics={},
            row_sums=[],
            last_sum=0,
            block_sums=[],
        )
        assert cases == {after_id: view.row_after(after_id) for after_id in cases}


def test_a_view_does_not_grow() -> None:
    """Later appends are not in it, and its rows can still be verified."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**24)
    write(wal, numbered(BLOCK_ROWS - 1, size=1))
    views = [wal._view.index]  # noqa: SLF001 - readers only get it inside `read`
    for _ in range(3):
        write(wal, numbered(1, size=1))
        views.append(wal._view.index)  # noqa: SLF001 - as above

    assert [BLOCK_ROWS + i for i in (-1, 0, 1, 2)] == [view.rows for view in views]
    sizes = [[len(view.block(n) or b"") // ROW_BYTES for n in (0, 1)] for view in views[2:]]
    assert [[BLOCK_ROWS, 1], [BLOCK_ROWS, 2]] == sizes
    assert (BLOCK_ROWS - 1) * ROW_BYTES == len(views[0].block(0) or b"")
