"""Rebuilding an index from its segment."""

import pytest

from braidmq.base.errors import DamagedLogError, UnknownRecordError
from braidmq.base.records import Description
from braidmq.wal.maintenance.rebuild import rebuild_sealed
from tests.unit.wal.bodies import FIRST, FIRST_INDEX, describe, sealed_log


def test_a_rebuilt_index_equals_the_original() -> None:
    """Byte for byte, including the trailer."""
    disk, info = sealed_log()
    whole = disk.content(FIRST_INDEX)
    disk.put(FIRST_INDEX, b"rubbish")

    assert info == rebuild_sealed(disk, 1, info.last_id + 1, describe)
    assert whole == disk.content(FIRST_INDEX)


def test_a_damaged_segment_keeps_its_old_index() -> None:
    """No index is built for a segment that is not intact."""
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


def test_an_unknown_record_type_is_damage_and_is_located() -> None:
    """The error names the segment, offset and id of the record."""
    disk, info = sealed_log()

    def older_version(body: bytes) -> Description:
        if b"000002" in body:
            raise UnknownRecordError(body[0])
        return describe(body)

    with pytest.raises(DamagedLogError, match="unknown record type 1") as caught:
        rebuild_sealed(disk, 1, info.last_id + 1, older_version)
    assert (3, 3) == (caught.value.first_id, caught.value.last_id)
    assert b"000002" in disk.content(FIRST)[caught.value.offset :][:60]
