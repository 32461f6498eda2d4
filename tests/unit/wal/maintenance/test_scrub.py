"""Scrubbing: the background verification of sealed segments."""

import pytest

from braidmq.base.errors import DamagedLogError
from braidmq.base.limits import MIB
from braidmq.testing.disk import FakeDisk
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import (
    FIRST_INDEX,
    batches_of,
    flip_bit,
    numbered,
    open_log,
    write,
)


def make_log() -> tuple[FakeDisk, Wal]:
    disk = FakeDisk()
    wal = open_log(disk, limit=1, hours=0.0)
    write(wal, *batches_of(numbered(150), 10))
    return disk, wal


def test_an_empty_log_has_nothing_to_scrub() -> None:
    """It has no sealed segment."""
    assert 0 == open_log(FakeDisk()).scrub(10**6)


def test_every_sealed_byte_is_verified_once_per_round() -> None:
    """Each call verifies about as many bytes as requested, segment after segment."""
    _, wal = make_log()
    sealed = [segment.size for segment in wal.segments()[:-1]]

    assert len(sealed) > 2
    assert sealed * 2 == [wal.scrub(1) for _ in range(2 * len(sealed))]
    assert sum(sealed) <= wal.scrub(sum(sealed))


def test_every_bit_flip_in_a_sealed_segment_is_found() -> None:
    """In the header as well as in the records."""
    disk, wal = make_log()
    segment = wal.segments()[1]
    whole = disk.content(segment.path)
    wal.scrub(10**6)
    for bit in range(0, len(whole) * 8, 7):
        flipped = flip_bit(whole, bit)
        disk.put(segment.path, flipped)
        with pytest.raises(DamagedLogError) as caught:
            wal.scrub(10**6)
        assert segment.path == caught.value.segment


def test_a_damaged_index_is_rebuilt() -> None:
    """Scrubbing then continues."""
    disk, wal = make_log()
    whole = disk.content(FIRST_INDEX)
    disk.put(FIRST_INDEX, whole[:-1] + b"?")

    assert wal.scrub(10**6) > 0
    assert whole == disk.content(FIRST_INDEX)


def test_deleted_segments_are_skipped() -> None:
    """Retention may delete segments between two calls."""
    _, wal = make_log()
    wal.scrub(1)
    held = wal._view  # noqa: SLF001 - a slow reader
    wal.retain(wal.segments()[2].first_id, 1)
    assert wal._scrubber.scrub(held, 1) >= 0  # noqa: SLF001 - as above

    assert wal.scrub(10**6) > 0


@pytest.mark.parametrize("number", [0, 2, -1], ids=["oldest", "middle", "growing"])
@pytest.mark.parametrize("opened", [True, False], ids=["open", "closed"])
def test_a_segment_that_was_removed_is_found(number: int, *, opened: bool) -> None:
    """By its name: a file that is open can be read until the broker ends, and then is lost."""
    disk, wal = make_log()
    if opened:
        wal.scrub(10**6)
    segment = wal.segments()[number]
    disk.remove(segment.path)

    with pytest.raises(DamagedLogError, match="missing segment") as caught:
        wal.scrub(10**6)
    found = caught.value
    assert (segment.path, segment.first_id, max(segment.first_id, segment.last_id)) == (
        found.segment,
        found.first_id,
        found.last_id,
    )


@pytest.mark.parametrize("opened", [True, False], ids=["open", "closed"])
def test_a_verification_names_the_segment_that_is_missing(*, opened: bool) -> None:
    """With its ids; those that retention has deleted are no error."""
    disk, wal = make_log()
    gone, missing = wal.segments()[0], wal.segments()[2]
    if opened:
        wal.scrub(10**6)
    wal.retain(gone.last_id + 1, 1)
    disk.remove(missing.path)

    wal.verify(gone)
    with pytest.raises(DamagedLogError, match="missing segment") as caught:
        wal.verify(missing)
    assert (missing.first_id, missing.last_id) == (caught.value.first_id, caught.value.last_id)


def test_segments_of_many_blocks_are_scrubbed_in_steps() -> None:
    """A segment longer than a block is verified block by block."""
    wal = open_log(FakeDisk(), segment_bytes=2 * MIB + 5)
    write(wal, *batches_of(numbered(30, size=100_000), 3))
    size = wal.segments()[0].size

    steps = [wal.scrub(1), wal.scrub(1), wal.scrub(1)]
    assert [MIB, MIB, size - 2 * MIB] == steps
