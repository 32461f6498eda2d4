"""Building an index from its segment."""

import pytest

from braidmq.base.errors import DamagedLogError, UnknownRecordError
from braidmq.base.records import Description
from braidmq.testing.disk import FakeDisk
from braidmq.wal.maintenance.rebuild import rebuild_sealed
from braidmq.wal.segment import SegmentInfo
from tests.unit.wal.bodies import (
    FIRST,
    FIRST_INDEX,
    batches_of,
    describe,
    numbered,
    open_log,
    write,
)


def sealed_log() -> tuple[FakeDisk, SegmentInfo]:
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(numbered(60), 5))
    return disk, wal.segments()[0]


def test_the_rebuilt_index_is_the_one_that_was_written() -> None:
    """Byte for byte, trailer and all."""
    disk, info = sealed_log()
    whole = disk.content(FIRST_INDEX)
    disk.put(FIRST_INDEX, b"rubbish")

    assert info == rebuild_sealed(disk, 1, info.last_id + 1, describe)
    assert whole == disk.content(FIRST_INDEX)


def test_damage_is_found_and_the_old_index_stays() -> None:
    """A segment that is not whole gets no index."""
    disk, info = sealed_log()
    data = bytearray(disk.content(FIRST))
    data[100] ^= 1
    disk.put(FIRST, bytes(data))
    disk.put(FIRST_INDEX, b"rubbish")
    with pytest.raises(DamagedLogError, match="sealed segment"):
        rebuild_sealed(disk, 1, info.last_id + 1, describe)
    assert b"rubbish" == disk.content(FIRST_INDEX)


def test_a_bad_header_is_damage() -> None:
    """Without its header a segment cannot be indexed."""
    disk, info = sealed_log()
    disk.put(FIRST, bytes(32) + disk.content(FIRST)[32:])
    with pytest.raises(DamagedLogError, match="bad segment header"):
        rebuild_sealed(disk, 1, info.last_id + 1, describe)


def test_an_unknown_type_is_damage_and_its_place_is_told() -> None:
    """The error names segment, offset and id of the record that this version cannot know."""
    disk, info = sealed_log()

    def older_version(body: bytes) -> Description:
        if b"000002" in body:
            raise UnknownRecordError(body[0])
        return describe(body)

    with pytest.raises(DamagedLogError, match="unknown record type 1") as caught:
        rebuild_sealed(disk, 1, info.last_id + 1, older_version)
    assert (3, 3) == (caught.value.first_id, caught.value.last_id)
    assert b"000002" in disk.content(FIRST)[caught.value.offset :][:60]
