"""Mapped segments: no byte is handed out before it is verified."""

from pathlib import Path

import numpy as np
import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.columnar.segments.segments import MappedFile, Need, Segment
from tests.unit.columnar.logs import (
    NOTE,
    flip,
    message,
    plain_rows,
    segment_files,
    write_log,
)

BODIES = [
    message("a", b"one" * 9, 10, kept={"key": "k", "other": "ö"}),
    message("b", b"two" * 9, 11),
    NOTE,
    message("a", b"three" * 9, 13),
]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_flipped_bit_of_a_segment_is_damage_or_was_not_read(
    tmp_path: Path, sealed: bool
) -> None:
    """For every single byte: the read raises, or gives exactly the rows that were written."""
    bodies = BODIES + ([message("z", b"z" * 4000)] if sealed else [])
    write_log(tmp_path, bodies, segment_bytes=4096 if sealed else 2**20)
    path = segment_files(tmp_path)[0]
    intact = path.read_bytes()
    expected = plain_rows(tmp_path)
    found_damage = 0

    for at in range(min(len(intact), 400)):
        flip(path, at)
        try:
            assert expected == columnar.read(tmp_path, headers=True).to_pylist(), at
        except DamagedLogError:
            found_damage += 1
        path.write_bytes(intact)
    assert found_damage > 0.8 * min(len(intact), 400)


def test_a_dense_read_is_verified_by_blocks(tmp_path: Path) -> None:
    """Where many records are wanted, the block itself is verified, and damage is found."""
    write_log(
        tmp_path,
        [message("t", b"payload %d" % i) for i in range(2_000)],
        segment_bytes=2**16,
        batch=2_000,
    )
    path = segment_files(tmp_path)[0]
    at = path.read_bytes().index(b"payload 1234")
    segment = Segment(tmp_path, 1, 2_000, sealed=True)
    segment.verified(lambda: np.arange(2_000), Need.PAYLOADS)
    assert segment.index.block_sums
    assert segment._blocks.verified.all()  # noqa: SLF001 - only tests look at it

    flip(path, at)
    with pytest.raises(DamagedLogError) as caught:
        columnar.read(tmp_path)
    assert (1235, 1235) == (caught.value.first_id, caught.value.last_id)
    assert 100 == columnar.read(tmp_path, start=1, end=101).num_rows


def test_a_mapped_file_outlives_its_name(tmp_path: Path) -> None:
    """Retention may delete what a reader has mapped; an empty file is empty."""
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 1000)
    buffer = MappedFile(path).buffer
    path.unlink()

    assert b"abc" * 1000 == buffer.to_pybytes()
    path.write_bytes(b"")
    assert 0 == MappedFile(path).buffer.size
    path.unlink()
    with pytest.raises(FileNotFoundError):
        MappedFile(path)


def test_windows_have_the_rows_of_their_ids(tmp_path: Path) -> None:
    """The end is exclusive, and both ends are clipped to the segment."""
    write_log(tmp_path, [message("t", b"x") for _ in range(20)], segment_bytes=2**20)
    segment = Segment(tmp_path, 1, 20, sealed=False)

    assert [(4, 9)] == list(segment.windows(5, 10))
    assert [(0, 20)] == list(segment.windows(0, 1000))
    assert [] == list(segment.windows(21, 30))
    assert [] == list(segment.windows(9, 9))


def test_long_segments_are_read_in_windows(tmp_path: Path) -> None:
    """Memory does not grow with a segment; windows have no gap or overlap."""
    write_log(tmp_path, [message("t", b"x") for _ in range(10_000)], segment_bytes=2**20)
    segment = Segment(tmp_path, 1, 10_000, sealed=False)

    found = list(segment.windows(100, 10_000, rows_max=4096))
    assert [(99, 4096), (4096, 8192), (8192, 9999)] == found


def test_doubt_about_a_segment_with_a_rebuilt_index_is_damage(tmp_path: Path) -> None:
    """An index is rebuilt once; after that only the segment can be wrong."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    segment = Segment(tmp_path, 1, 4, sealed=False)

    segment.doubt()
    assert [1, 2, 3, 4] == segment.rows["id"].tolist()
    with pytest.raises(DamagedLogError):
        segment.doubt()


@pytest.mark.parametrize("content", [b"", b"BRAIDWAL", bytes(100)])
def test_a_segment_without_a_header_is_damage(tmp_path: Path, content: bytes) -> None:
    """Durable ids were in it, so it had one."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    segment_files(tmp_path)[0].write_bytes(content)

    with pytest.raises(DamagedLogError, match="header"):
        Segment(tmp_path, 1, 4, sealed=False)


def test_a_topic_that_is_not_text_is_damage(tmp_path: Path) -> None:
    """No strand accepts such a name."""
    body = message("a", b"x")
    write_log(tmp_path, [body.replace(b"\x00\x01a", b"\x00\x01\xff")])

    with pytest.raises(DamagedLogError, match="UTF-8"):
        columnar.read(tmp_path)


def test_starts_are_those_of_the_records(tmp_path: Path) -> None:
    """The first record starts after the header, every other one after its predecessor."""
    write_log(tmp_path, BODIES, segment_bytes=2**20)
    segment = Segment(tmp_path, 1, 4, sealed=False)
    sizes = [len(body) + 16 for body in BODIES]
    starts = [32 + sum(sizes[:i]) for i in range(4)]

    for chosen in ([], [0], [0, 1, 2, 3], [1, 3], [0, 3]):
        found = segment.starts(np.array(chosen, np.int64))
        assert [starts[i] for i in chosen] == found.tolist()
