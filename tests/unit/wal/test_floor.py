"""The floor of the log: what retention deleted is not missing, and everything else is."""

import errno
from random import Random

import pytest

from braidmq.base.errors import DamagedLogError, LogPoisonedError
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal import snapshots
from braidmq.wal.floor import FLOOR_PATH, Floor, decode_floor, encode_floor, read_floor
from braidmq.wal.maintenance.repair import repair
from braidmq.wal.maintenance.survey import verify
from braidmq.wal.segment import list_segments
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import SMALL, batches_of, describe, numbered, open_log, write

BODIES = numbered(120)


def retaining(disk: FakeDisk, *, force: bool = True, after_id: int = 0) -> Wal:
    return open_log(disk, limit=SMALL, hours=0.0, force=float(force), after_id=after_id)


def filled(*, force: bool = True) -> tuple[FakeDisk, Wal]:
    disk = FakeDisk()
    wal = retaining(disk, force=force)
    write(wal, *batches_of(BODIES, 7))
    snapshots.save(disk, wal.committed_id, b"state")  # so that the log may begin anywhere
    return disk, wal


def test_a_floor_is_encoded() -> None:
    """Golden bytes; any flipped bit is found, and zeros are not a floor."""
    data = encode_floor(Floor(31, 30))

    assert "1f00000000000000 1e00000000000000 2724677d" == data.hex(" ", -8)
    assert Floor(31, 30) == decode_floor(data + b"rest")
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert None is decode_floor(bytes(flipped))
    assert None is decode_floor(bytes(len(data)))
    assert None is decode_floor(data[:-1])


def test_a_new_log_has_a_floor() -> None:
    """It begins with the first id."""
    disk, wal = filled()

    assert Floor(1, 0) == wal.floor == read_floor(disk)


def test_retention_raises_the_floor() -> None:
    """By force or not, it says which: readers below a floor that was not forced lost data."""
    disk, wal = filled()
    wal.retain(wal.next_id, 10)
    first_id = wal.first_id
    assert Floor(first_id, 0) == wal.floor == read_floor(disk)
    write(wal, *batches_of(BODIES, 7))
    wal.retain(1, 10)

    assert wal.first_id > first_id
    assert Floor(wal.first_id, wal.first_id - 1) == wal.floor == read_floor(disk)


def test_the_oldest_segment_removed_by_hand_is_damage() -> None:
    """Whatever the snapshot covers; what retention removed is none."""
    disk, wal = filled()
    wal.retain(wal.next_id, 10)
    write(wal, *batches_of(BODIES, 7))
    first_id = wal.first_id
    after_id = wal.committed_id
    snapshots.save(disk, after_id, b"state")
    retaining(disk.kill(), after_id=after_id)
    assert verify(disk, describe).is_intact
    disk.remove(wal.segments()[0].path)
    with pytest.raises(DamagedLogError, match="missing segment") as caught:
        retaining(disk.kill(), after_id=after_id)

    assert first_id == caught.value.first_id
    (found,) = verify(disk, describe).damages
    assert (first_id, caught.value.last_id) == (found.first_id, found.last_id)
    repair(disk, describe, accept_loss=True)
    again = retaining(disk, after_id=after_id)
    assert first_id == again.first_id


def test_every_power_cut_during_retention_leaves_a_log_that_opens() -> None:
    """Between the floor and the deletions, and between any two of these."""
    disk, wal = filled()
    wal.close()
    outcomes = set()
    for number in range(1, 200):
        cut = disk.kill()
        again = retaining(cut)
        cut.cut_power_at(cut.operations + number)
        try:
            again.retain(1, 10)
        except PowerCutError:
            pass
        else:
            break
        for seed in range(4):
            left = cut.crash(Random(seed))
            opened = retaining(left, after_id=wal.committed_id)
            assert opened.committed_id == wal.committed_id
            assert opened.first_id <= opened.floor.first_id
            outcomes.add((opened.first_id, opened.floor.first_id))
            assert verify(left, describe).is_intact

    assert len(outcomes) > 4


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_retention_that_has_to_wait_is_finished_later(error: int) -> None:
    """At whichever call but a sync; none goes before an older one is durably gone."""
    for nth in range(1, 60):
        disk, wal = filled()
        operation = "open_dir" if error in {errno.EMFILE, errno.ENFILE} else "*"
        for _ in range(2):  # that call and the next
            disk.fail(operation, error, nth=nth)
        fsyncs = {"fdatasync", "fsync", "sync_dir"}
        gone: list[str] = []
        try:
            gone = wal.retain(1, 10)
        except LogPoisonedError:
            assert fsyncs & set(disk.failed)  # a failed sync is final
            continue
        assert not fsyncs & set(disk.failed)
        assert retaining(disk.crash(Random(nth)), after_id=wal.committed_id).first_id <= (
            wal.first_id
        )
        failed = bool(disk.failed)
        disk.heal()
        gone += wal.retain(1, 10)
        assert wal.first_id == wal.floor.first_id
        assert wal.first_id == list_segments(disk)[0]
        assert len(gone) == len(set(gone))
        if not failed:
            return
    raise AssertionError("it never succeeds")


@pytest.mark.parametrize("force", [False, True])
def test_a_log_without_a_floor_gets_one(force: bool) -> None:
    """As a version that had none left it; from then on a missing segment is seen.

    With forced retention, what is gone may have been needed.
    """
    disk, wal = filled()
    wal.retain(wal.next_id, 10)
    disk.remove(FLOOR_PATH)
    after_id = wal.committed_id
    again = retaining(disk, after_id=after_id, force=force)

    assert again.recovered.floor_adopted
    forced_id = wal.first_id - 1 if force else 0
    assert Floor(wal.first_id, forced_id) == again.floor == read_floor(disk)
    assert not retaining(disk, after_id=after_id).recovered.floor_adopted


def test_a_torn_copy_is_written_anew() -> None:
    """The other one counts."""
    disk, wal = filled()
    wal.retain(1, 10)
    whole = disk.content(FLOOR_PATH)
    for torn in (b"\xff" + whole[1:], whole[:512] + bytes(512)):
        disk.put(FLOOR_PATH, torn)
        assert wal.floor == read_floor(disk)
        retaining(disk, after_id=wal.committed_id)
        assert whole == disk.content(FLOOR_PATH)


def test_a_floor_that_cannot_be_read_is_damage() -> None:
    """A repair that accepts it writes one anew."""
    disk, _ = filled()
    disk.put(FLOOR_PATH, b"\xff" * 1024)
    with pytest.raises(DamagedLogError, match="wal/floor"):
        retaining(disk)
    assert not repair(disk, describe, accept_loss=False).is_intact
    repair(disk, describe, accept_loss=True)

    assert 120 == retaining(disk).committed_id


def test_on_a_full_disk_a_floor_is_made_before_it_rises() -> None:
    """The log opens without; retention makes room all the same."""
    disk, wal = filled()
    wal.close()
    disk.remove(FLOOR_PATH)
    disk.remove("wal/reserve")
    disk.capacity = disk.used_bytes
    again = retaining(disk)
    assert not disk.exists(FLOOR_PATH)
    assert [] == again.retain(1, 10)
    disk.capacity += 4096
    again.retain(1, 10)

    assert again.floor == read_floor(disk)
    assert again.first_id > 1


@pytest.mark.parametrize("mark", [None, b"\xff" * 12], ids=["missing", "flipped"])
def test_a_floor_without_a_segment_is_damage(mark: bytes | None) -> None:
    """It is written after the first one, so no crash leaves it alone."""
    disk, wal = filled()
    wal.retain(wal.next_id, 10)
    first_id = wal.first_id
    for path in disk.paths():
        if path != FLOOR_PATH:
            disk.remove(path)
    if mark is not None:
        disk.put("wal/durable", mark)
    with pytest.raises(DamagedLogError, match="no segment is there") as caught:
        retaining(disk.kill())

    (found,) = verify(disk, describe).damages
    assert "no segment is there" == found.reason
    assert (1, first_id) == (found.first_id, found.last_id)
    assert (1, first_id) == (caught.value.first_id, caught.value.last_id)
    repair(disk, describe, accept_loss=True)
    assert first_id + 1 == retaining(disk).next_id
    assert verify(disk, describe).is_intact


def test_every_power_cut_at_the_first_start_leaves_a_log_that_opens() -> None:
    """The floor is never there without the first segment."""
    for number in range(1, 100):
        disk = FakeDisk()
        disk.cut_power_at(number)
        try:
            retaining(disk)
        except PowerCutError:
            pass
        else:
            return
        for seed in range(8):
            left = disk.crash(Random(seed))
            assert verify(left, describe).is_intact
            assert 1 == retaining(left).next_id
    raise AssertionError("it never succeeds")


def test_old_segments_that_were_put_back_are_damage() -> None:
    """The log would end below its floor, and give ids a second time."""
    disk, wal = filled()
    old = wal.segments()[0].path, disk.content(wal.segments()[0].path)
    wal.retain(wal.next_id, 10)
    floor = wal.floor
    for path in disk.paths():
        if path != FLOOR_PATH:
            disk.remove(path)
    disk.put(*old)
    with pytest.raises(DamagedLogError, match="ends below its floor") as caught:
        retaining(disk.kill())

    (found,) = verify(disk, describe).damages
    assert floor.first_id - 1 == found.last_id == caught.value.last_id
    assert found.first_id == caught.value.first_id > 1
    repair(disk, describe, accept_loss=True)
    assert floor.first_id == retaining(disk).next_id
    assert verify(disk, describe).is_intact
