"""Surveys: verifying and dumping a whole log without changing it."""

import pytest

from braidmq.testing.disk import FakeDisk
from braidmq.wal import snapshots
from braidmq.wal.floor import FLOOR_PATH
from braidmq.wal.format import SEGMENT_MAGIC, encode_header, encode_mark, encode_record
from braidmq.wal.maintenance.survey import Damage, dump, verify
from braidmq.wal.mark import MARK_PATH
from braidmq.wal.segment import segment_path
from tests.unit.wal.bodies import (
    FIRST,
    FIRST_INDEX,
    batches_of,
    describe,
    flip_bit,
    note,
    numbered,
    open_log,
    tiny_log,
    write,
)

BODIES = numbered(60)


def make_log() -> FakeDisk:
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of([*BODIES, note(b"n"), *BODIES[:9]], 10))
    snapshots.save(disk, 40, b"state")
    wal.close()
    return disk


def test_an_intact_log_has_no_findings() -> None:
    """The report counts the records, and has neither damage nor notes."""
    disk = make_log()
    before = disk.operations
    report = verify(disk, describe)

    assert ([], [], []) == (report.damages, report.notes, report.gaps)
    assert (3, 70, 1, 70, 70) == (
        report.segments,
        report.records,
        report.first_id,
        report.last_id,
        report.durable_id,
    )
    assert report.is_intact
    assert before == disk.operations


def test_any_bit_flip_anywhere_is_reported() -> None:
    """As damage in a segment; as a note in an index, the mark or a snapshot."""
    disk = tiny_log()
    snapshots.save(disk, 2, b"state")
    for path in disk.paths():
        whole = disk.content(path) if path != "wal/reserve" else b""
        for bit in range(len(whole) * 8):
            flipped = flip_bit(whole, bit)
            disk.put(path, flipped)
            report = verify(disk, describe)
            assert (".wal" in path) != report.is_intact
            assert report.damages or report.notes
        if whole:
            disk.put(path, whole)
    assert [] == verify(disk, describe).notes


def test_every_damage_is_listed() -> None:
    """Not only the first, but each hole with its ids, in order."""
    disk = make_log()
    data = bytearray(disk.content(FIRST))
    size = 16 + len(BODIES[0])
    data[32 + 3 * size + 50] ^= 1
    data[32 + 10 * size + 3] ^= 1
    data[32 + 11 * size + 9] ^= 1
    disk.put(FIRST, bytes(data))
    disk.remove(segment_path(31))
    report = verify(disk, describe)

    assert [(4, 4), (11, 12), (31, 60)] == [(d.first_id, d.last_id) for d in report.damages]
    assert [FIRST] * 3 == [d.segment for d in report.damages]
    assert not report.is_intact


def test_problems_that_heal_are_notes() -> None:
    """Torn tail, interrupted rotation, missing index, torn mark and torn snapshot."""
    disk = make_log()
    last = segment_path(61)
    disk.put(last, disk.content(last) + b"torn")
    disk.remove(FIRST_INDEX)
    disk.put(MARK_PATH, b"torn mark!!!")
    disk.put(snapshots.snapshot_path(41), b"torn")
    notes = verify(disk, describe).notes
    assert 4 == len(notes)
    assert "torn tail of 4 bytes" in " ".join(notes)

    disk = make_log()
    disk.put(last, b"")
    disk.put(MARK_PATH, encode_mark(60))
    report = verify(disk, describe)
    assert report.is_intact
    assert ["heals" in note for note in report.notes] == [True]
    assert 60 == report.last_id


def test_a_segment_of_a_newer_version_is_damage() -> None:
    """As a whole, since its records cannot be read."""
    disk = make_log()
    path = segment_path(31)
    disk.put(path, encode_header(SEGMENT_MAGIC, 31, 0, 9) + disk.content(path)[32:])
    (found,) = verify(disk, describe).damages
    assert Damage(path, 0, 31, 60, found.reason) == found
    assert "version 9" in found.reason


def test_a_record_of_unknown_type_is_damage_of_one_id() -> None:
    """The records around it stay valid."""
    disk = make_log()
    last = segment_path(61)
    strange = encode_record(71, b"\x63new", fence=True) + encode_record(
        72, BODIES[0], fence=False
    )
    disk.put(last, disk.content(last) + strange)
    (found,) = verify(disk, describe).damages

    assert (71, 71) == (found.first_id, found.last_id)
    assert "unknown record type 99" in found.reason


def test_missing_segments_are_measured_by_the_floor() -> None:
    """Only what retention has deleted is not missing, whatever the snapshot covers."""
    disk = make_log()
    disk.remove(FIRST)
    (found,) = verify(disk, describe).damages
    assert (1, 30) == (found.first_id, found.last_id)
    assert "wal/floor" in found.reason
    disk.remove(segment_path(31))
    (found,) = verify(disk, describe).damages
    assert (1, 60) == (found.first_id, found.last_id)
    disk.remove(segment_path(61))
    (found,) = verify(disk, describe).damages
    assert (1, 70) == (found.first_id, found.last_id)


def test_without_a_floor_missing_segments_are_measured_by_the_snapshot() -> None:
    """A version without a floor may have deleted what is before the snapshot."""
    disk = make_log()
    disk.remove(FLOOR_PATH)
    disk.remove(FIRST)
    report = verify(disk, describe)
    assert report.is_intact
    assert [note for note in report.notes if "wal/floor is missing" in note]
    disk.remove(segment_path(31))
    (found,) = verify(disk, describe).damages
    assert (41, 60) == (found.first_id, found.last_id)


def test_a_floor_that_is_not_valid_is_damage() -> None:
    """Both copies are never torn at once; one that is torn alone is written anew."""
    disk = make_log()
    whole = disk.content(FLOOR_PATH)
    disk.put(FLOOR_PATH, b"\xff" + whole[1:])
    report = verify(disk, describe)
    assert report.is_intact
    assert [note for note in report.notes if "wal/floor is torn" in note]
    disk.put(FLOOR_PATH, bytes(len(whole)))
    (found,) = verify(disk, describe).damages
    assert FLOOR_PATH == found.segment


@pytest.mark.parametrize(("from_id", "limit", "ids"), [(0, 3, [1, 2, 3]), (69, 9, [69, 70])])
def test_a_dump_shows_records(from_id: int, limit: int, ids: list[int]) -> None:
    """Every valid record from an id on, with its description."""
    records = list(dump(make_log(), describe, from_id=from_id, limit=limit))

    assert ids == [record.record_id for record in records]
    assert all(record.what and b"t" == record.what.topic for record in records)


def test_a_dump_continues_after_damage() -> None:
    """It shows the valid records and skips the others."""
    disk = make_log()
    data = bytearray(disk.content(FIRST))
    data[60] ^= 1
    disk.put(FIRST, bytes(data))
    records = list(dump(disk, describe, from_id=1, limit=2))
    assert [2, 3] == [record.record_id for record in records]
    last = segment_path(61)
    disk.put(last, disk.content(last) + encode_record(71, b"\x63new", fence=True))
    assert [] == list(dump(disk, describe, from_id=71, limit=9))
