"""Repair: every loss is recorded, and nothing else is lost."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest

from braidmq.base.errors import DamagedLogError
from braidmq.base.records import GAP_KIND
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal import snapshots
from braidmq.wal.format import (
    SEGMENT_MAGIC,
    decode_gap,
    encode_header,
    encode_mark,
    encode_record,
)
from braidmq.wal.maintenance.repair import repair
from braidmq.wal.maintenance.survey import verify
from braidmq.wal.mark import MARK_PATH
from braidmq.wal.segment import segment_path
from tests.unit.wal.bodies import FIRST, batches_of, describe, numbered, open_log, remove, write

BODIES = numbered(70)
SIZE = 16 + len(BODIES[0])
MIDDLE = segment_path(31)
LAST = segment_path(61)


def make_log() -> FakeDisk:
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 10))
    wal.close()
    return disk


def flip(path: str, *places: int) -> Callable[[FakeDisk], None]:
    def damage(disk: FakeDisk) -> None:
        data = bytearray(disk.content(path))
        for at in places:
            data[at] ^= 1
        disk.put(path, bytes(data))

    return damage


def append(path: str, data: bytes) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.put(path, disk.content(path) + data)


def newer(disk: FakeDisk) -> None:
    disk.put(MIDDLE, encode_header(SEGMENT_MAGIC, 31, 0, 2) + disk.content(MIDDLE)[32:])


DISASTERS: dict[str, tuple[Callable[[FakeDisk], None], list[tuple[int, int]]]] = {
    "one record": (flip(FIRST, 32 + SIZE + 40), [(2, 2)]),
    "the first record": (flip(FIRST, 40), [(1, 1)]),
    "the last of a sealed segment": (flip(FIRST, 32 + 29 * SIZE + 40), [(30, 30)]),
    "three holes": (
        flip(FIRST, 32 + SIZE, 32 + 5 * SIZE, 32 + 6 * SIZE, 32 + 20 * SIZE),
        [(2, 2), (6, 7), (21, 21)],
    ),
    "a header": (flip(MIDDLE, 3), []),
    "a header and a record": (flip(MIDDLE, 3, 40), [(31, 31)]),
    "the first header": (flip(FIRST, 30), []),
    "rubbish behind a sealed segment": (append(FIRST, b"rubbish"), []),
    "the first segment": (remove(FIRST), [(1, 30)]),
    "a middle segment": (remove(MIDDLE), [(31, 60)]),
    "the last segment": (remove(LAST), [(61, 70)]),
    "two segments": (remove(FIRST, MIDDLE), [(1, 60)]),
    "all segments": (remove(FIRST, MIDDLE, LAST), [(1, 70)]),
    "a record below the mark": (flip(LAST, 32 + 9 * SIZE + 40), [(70, 70)]),
    "a newer version": (newer, [(31, 60)]),
    "an unknown type": (append(LAST, encode_record(71, b"\x63x", fence=True)), [(71, 71)]),
}


def expected_after(gaps: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    lost = {i for first, last in gaps for i in range(first, last + 1)}
    return [(i, body) for i, body in enumerate(BODIES, 1) if i not in lost]


def replay(disk: FakeDisk) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    seen: list[tuple[int, bytes]] = []
    open_log(disk, seen)
    gaps = [gap for _, body in seen if body[0] == GAP_KIND and (gap := decode_gap(body))]
    return [record for record in seen if record[1][0] != GAP_KIND], gaps


@pytest.mark.parametrize("name", DISASTERS)
def test_a_repaired_log_opens_and_names_its_losses(name: str) -> None:
    """Valid records are there byte for byte; the others are covered by gap records."""
    disaster, gaps = DISASTERS[name]
    disk = make_log()
    disaster(disk)
    with pytest.raises(DamagedLogError):
        open_log(disk.kill())
    report = repair(disk, describe, accept_loss=True)

    assert report.changed
    assert verify(disk, describe).is_intact
    assert (expected_after(gaps), gaps) == replay(disk)


@pytest.mark.parametrize("name", DISASTERS)
def test_a_repair_that_may_not_lose_anything_only_reports(name: str) -> None:
    """Without `accept_loss` nothing is changed."""
    disk = make_log()
    DISASTERS[name][0](disk)
    before = disk.operations
    report = repair(disk, describe, accept_loss=False)

    assert not report.is_intact
    assert (before, []) == (disk.operations, report.changed)


def test_the_damaged_original_is_kept() -> None:
    """The quarantine holds the file as it was."""
    disk = make_log()
    flip(FIRST, 40)(disk)
    damaged = disk.content(FIRST)
    repair(disk, describe, accept_loss=True)

    assert [damaged] == [disk.content("quarantine/" + n) for n in disk.list_dir("quarantine")]


def test_an_intact_log_is_left_alone() -> None:
    """Torn tails are not repaired either: opening the log heals those."""
    disk = make_log()
    append(LAST, b"torn")(disk)
    before = {path: disk.content(path) for path in disk.paths()}
    assert [] == repair(disk, describe, accept_loss=True).changed
    assert before == {path: disk.content(path) for path in disk.paths()}


def test_a_log_behind_its_snapshot_gets_a_gap() -> None:
    """Ids that the snapshot covers are never assigned again."""
    disk = make_log()
    snapshots.save(disk, 90, b"state")
    repair(disk, describe, accept_loss=True)
    wal = open_log(disk, after_id=90)
    assert 91 == wal.next_id

    disk = make_log()
    snapshots.save(disk, 90, b"state")
    remove(FIRST, MIDDLE, LAST, MARK_PATH)(disk)
    repair(disk, describe, accept_loss=True)
    assert 91 == open_log(disk, after_id=90).next_id


def test_segments_without_a_date_get_that_of_a_neighbour() -> None:
    """Retention uses the creation time, so a lost one must not become zero."""
    disk = FakeDisk()
    wal = open_log(disk, now_us=100)
    for step, batch in enumerate(batches_of(BODIES, 10)):
        write(wal, batch, now_us=200 + step)
    wal.close()
    flip(FIRST, 3)(disk)
    flip(MIDDLE, 3)(disk)
    repair(disk, describe, accept_loss=True)
    times = [segment.created_us for segment in open_log(disk).segments()]
    assert all(times)
    assert all(older <= younger for older, younger in pairwise(times))


@pytest.mark.parametrize("name", ["three holes", "the first segment", "a middle segment"])
def test_a_repair_can_be_repeated_after_a_power_cut(name: str) -> None:
    """After a crash at any operation, a second repair has the same result."""
    disaster, gaps = DISASTERS[name]
    for operation in range(1, 30):
        disk = make_log()
        disaster(disk)
        disk.cut_power_at(disk.operations + operation)
        with suppress(PowerCutError):
            repair(disk, describe, accept_loss=True)
        for seed in range(4):
            after = disk.crash(Random(seed))
            repair(after, describe, accept_loss=True)
            assert (expected_after(gaps), gaps) == replay(after)


def test_a_directory_with_only_a_mark_is_repaired() -> None:
    """It is a log of which every record is missing."""
    disk = FakeDisk()
    disk.put(MARK_PATH, encode_mark(7))
    repair(disk, describe, accept_loss=True)
    assert 8 == open_log(disk).next_id
