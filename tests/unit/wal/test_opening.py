"""Opening a log after every named disaster: it heals, or it refuses and changes nothing."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from braidmq.base.errors import (
    DamagedLogError,
    LogFullError,
    LogPoisonedError,
    LogScarceError,
)
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    encode_gap,
    encode_header,
    encode_mark,
    encode_record,
)
from braidmq.wal.mark import MARK_PATH
from braidmq.wal.segment import list_segments, segment_path
from tests.unit.wal.bodies import (
    FIRST,
    FIRST_INDEX,
    batches_of,
    message,
    numbered,
    open_log,
    read_everything,
    remove,
    write,
)

BODIES = numbered(60)
RECORD_BYTES = 16 + len(BODIES[0])


def make_log() -> FakeDisk:
    """Return the disk of a closed log with three segments and 60 records."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 10))
    wal.close()
    assert [1, 31, 61] == list_segments(disk)
    return disk


def last_path(disk: FakeDisk) -> str:
    return segment_path(list_segments(disk)[-1])


def grown_log() -> FakeDisk:
    """Return the log of `make_log` with ten more records in the last segment."""
    disk = make_log()
    wal = open_log(disk)
    write(wal, BODIES[:5], BODIES[5:10])
    return disk


def flip(path: str, at: int) -> Callable[[FakeDisk], None]:
    def damage(disk: FakeDisk) -> None:
        data = bytearray(disk.content(path))
        data[at] ^= 0x10
        disk.put(path, bytes(data))

    return damage


def rewrite(path: str, change: Callable[[bytes], bytes]) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.put(path, change(disk.content(path)))


LAST = segment_path(61)
LAST_INDEX = LAST.replace(".wal", ".idx")
TORN = encode_record(71, BODIES[0], fence=True)

HEALED: dict[str, tuple[Callable[[FakeDisk], None], int, int, int]] = {
    # disaster: (what happens, records left, torn bytes, zero bytes)
    "nothing": (lambda disk: None, 70, 0, 0),
    "torn record header": (rewrite(LAST, lambda d: d + TORN[:11]), 70, 11, 0),
    "torn payload": (rewrite(LAST, lambda d: d + TORN[:-1]), 70, len(TORN) - 1, 0),
    "zero tail": (rewrite(LAST, lambda d: d + bytes(4096)), 70, 0, 4096),
    "huge length in a torn header": (
        rewrite(LAST, lambda d: d + TORN[:8] + b"\xff\xff\xff\x7f" + TORN[12:]),
        70,
        len(TORN),
        0,
    ),
    "stale index": (rewrite(FIRST_INDEX, lambda d: d[:-200]), 70, 0, 0),
    "truncated index": (rewrite(FIRST_INDEX, lambda d: d[:50]), 70, 0, 0),
    "missing index": (remove(FIRST_INDEX), 70, 0, 0),
    "missing index of the last segment": (remove(LAST_INDEX), 70, 0, 0),
    "rubbish index of the last segment": (rewrite(LAST_INDEX, lambda d: b"x" * 99), 70, 0, 0),
    "foreign file": (lambda disk: disk.put("wal/README", b"mine"), 70, 0, 0),
    "foreign segment-like file": (lambda disk: disk.put("wal/7.wal", b"mine"), 70, 0, 0),
    "missing mark": (remove(MARK_PATH), 70, 0, 0),
    "torn mark": (flip(MARK_PATH, 1), 70, 0, 0),
    "missing reserve": (remove("wal/reserve"), 70, 0, 0),
}


@pytest.mark.parametrize("name", HEALED)
def test_opening_heals_what_a_crash_can_leave(name: str) -> None:
    """Every committed record is there; a torn tail is quarantined and then cut off."""
    disaster, left, torn_bytes, zero_bytes = HEALED[name]
    disk = grown_log()
    disaster(disk)
    tail = disk.content(LAST)[-torn_bytes:] if torn_bytes else b""
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen)

    expected = list(enumerate(BODIES + BODIES[:10], 1))[:left]
    assert expected == seen
    assert expected == read_everything(wal)
    assert expected == read_everything(wal, b"t")
    recovered = wal.recovered
    assert (torn_bytes, zero_bytes) == (recovered.torn_bytes, recovered.zero_bytes)
    assert ("torn mark" == name) == recovered.mark_unreadable
    assert ([tail] if tail else []) == [disk.content(path) for path in recovered.quarantined]
    for path in ("wal/README", "wal/7.wal"):
        assert not disk.exists(path) or b"mine" == disk.content(path)
    write(wal, [message(b"t", b"continues")])
    open_log(disk.crash(Random(0)))


def test_quarantine_is_never_pruned() -> None:
    """Every tail is kept under its own name through all restarts."""
    disk = grown_log()
    for count in range(1, 6):
        disk.put(LAST, disk.content(LAST) + TORN[: 10 + count])
        open_log(disk)
        assert count == len(disk.list_dir("quarantine"))


def test_a_tail_is_quarantined_before_it_is_cut_off() -> None:
    """A power cut at any point of recovery leaves the tail or its copy."""
    for operation in range(1, 30):
        disk = grown_log()
        disk.put(LAST, disk.content(LAST) + TORN[:-1])
        disk.cut_power_at(operation)
        with suppress(PowerCutError):
            open_log(disk)
        for seed in range(5):
            after = disk.crash(Random(seed))
            copies = [after.content("quarantine/" + n) for n in after.list_dir("quarantine")]
            assert TORN[:-1] in copies or after.content(LAST).endswith(TORN[:-1])


def header(**changes: int) -> Callable[[bytes], bytes]:
    first_id = changes.get("first_id", 31)
    made = encode_header(SEGMENT_MAGIC, first_id, 0, changes.get("version", 1))
    return lambda data: made + data[HEADER_BYTES:]


MIDDLE = segment_path(31)
DAMAGED: dict[str, tuple[Callable[[FakeDisk], None], str, int, int, int]] = {
    # disaster: (what happens, segment, offset, first id, last id)
    **{
        f"bit flip in a sealed record's {name}": (
            flip(FIRST, 32 + RECORD_BYTES + at),
            FIRST,
            32 + RECORD_BYTES,
            2,
            2,
        )
        for name, at in {"id": 0, "len": 8, "crc": 12, "payload": 40}.items()
    },
    **{
        f"bit flip below the mark in a growing record's {name}": (
            flip(LAST, 32 + 9 * RECORD_BYTES + at),
            LAST,
            32 + 9 * RECORD_BYTES,
            70,
            70,
        )
        for name, at in {"id": 0, "len": 8, "crc": 12, "payload": 40}.items()
    },
    **{
        f"bit flip in the segment header's {name}": (flip(path, at), path, 0, first, first)
        for path, first in ((FIRST, 1), (MIDDLE, 31), (LAST, 61))
        for name, at in {"magic": 0, "version": 8, "id": 12, "time": 20, "crc": 28}.items()
    },
    "missing first segment": (remove(FIRST), FIRST, 0, 1, 30),
    "missing middle segment": (remove(MIDDLE), FIRST, 32 + 30 * RECORD_BYTES, 31, 60),
    "missing last segment": (remove(LAST), MIDDLE, 32 + 30 * RECORD_BYTES, 61, 70),
    "all segments missing": (remove(FIRST, MIDDLE, LAST), FIRST, 0, 1, 70),
    "truncated sealed segment": (
        rewrite(FIRST, lambda d: d[:-1]),
        FIRST,
        32 + 29 * RECORD_BYTES,
        30,
        30,
    ),
    "zeros after a sealed segment": (
        rewrite(FIRST, lambda d: d + bytes(9)),
        FIRST,
        32 + 30 * RECORD_BYTES,
        31,
        31,
    ),
    "last segment truncated below the mark": (
        rewrite(LAST, lambda d: d[:-1]),
        LAST,
        32 + 9 * RECORD_BYTES,
        70,
        70,
    ),
    "last segment truncated at a record below the mark": (
        rewrite(LAST, lambda d: d[:-RECORD_BYTES]),
        LAST,
        32 + 9 * RECORD_BYTES,
        70,
        70,
    ),
    "newer segment version": (rewrite(MIDDLE, header(version=2)), MIDDLE, 0, 31, 31),
    "segment with another segment's name": (
        rewrite(MIDDLE, header(first_id=32)),
        MIDDLE,
        0,
        31,
        31,
    ),
    "last segment without a header": (rewrite(LAST, lambda d: b""), LAST, 0, 61, 61),
    "unknown record type": (
        rewrite(LAST, lambda d: d + encode_record(71, b"\x63new", fence=True)),
        LAST,
        32 + 10 * RECORD_BYTES,
        71,
        71,
    ),
    "id jump without a gap record": (
        rewrite(LAST, lambda d: d + encode_record(75, BODIES[0], fence=False)),
        LAST,
        32 + 10 * RECORD_BYTES,
        71,
        74,
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_opening_refuses_a_damaged_log(name: str) -> None:
    """The error names segment, offset and ids, and only indexes may have changed."""
    disaster, segment, offset, first_id, last_id = DAMAGED[name]
    disk = grown_log()
    disaster(disk)
    before = {p: disk.content(p) for p in disk.paths() if ".idx" not in p}
    with pytest.raises(DamagedLogError) as caught:
        open_log(disk)

    found = caught.value
    assert (segment, offset) == (found.segment, found.offset)
    assert (first_id, last_id) == (found.first_id, found.last_id)
    assert before == {p: disk.content(p) for p in disk.paths() if ".idx" not in p}


def test_a_hole_before_a_fence_is_damage_without_any_mark() -> None:
    """A later batch proves that the earlier one was durable, even without the mark."""
    disk = grown_log()
    flip(LAST, 32 + 2 * RECORD_BYTES + 40)(disk)
    disk.remove(MARK_PATH)
    with pytest.raises(DamagedLogError, match="valid record 66 after"):
        open_log(disk)


def test_segments_before_the_snapshot_are_not_read_at_startup() -> None:
    """Startup reads only what must be replayed; earlier damage is found later."""
    disk = grown_log()
    flip(FIRST, 100)(disk)
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen, after_id=60)

    assert list(range(61, 71)) == [record_id for record_id, _ in seen]
    with pytest.raises(DamagedLogError):
        read_everything(wal)
    with pytest.raises(DamagedLogError):
        wal.scrub(10**9)


def test_every_truncation_of_the_last_segment_recovers_the_valid_prefix() -> None:
    """Beyond the mark it heals to exactly the whole records; below, opening refuses."""
    disk = grown_log()
    data = disk.content(LAST)
    disk.put(MARK_PATH, encode_mark(65))
    for size in range(HEADER_BYTES, len(data) + 1):
        cut = disk.kill()
        cut.put(LAST, data[:size])
        whole = (size - HEADER_BYTES) // RECORD_BYTES
        seen: list[tuple[int, bytes]] = []
        if whole < 5:
            with pytest.raises(DamagedLogError):
                open_log(cut, seen, after_id=60)
        else:
            assert 61 + whole == open_log(cut, seen, after_id=60).next_id
            assert list(enumerate(BODIES[:whole], 61)) == seen


@pytest.mark.parametrize("size", range(HEADER_BYTES + 1))
@pytest.mark.parametrize("content", ["torn", "zero"])
def test_an_interrupted_rotation_heals(size: int, content: str) -> None:
    """A last segment without a complete header never held a record."""
    disk = make_log()
    whole = encode_header(SEGMENT_MAGIC, 61, 5)
    data = whole[:size] if content == "torn" else bytes(size)
    disk.put(LAST, data)
    disk.put(MARK_PATH, encode_mark(60))
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen, now_us=77)

    assert list(enumerate(BODIES, 1)) == seen
    assert 61 == wal.next_id
    write(wal, BODIES[:1])
    reopened = open_log(disk.crash(Random(size)))
    assert 61 == reopened.committed_id
    created = 5 if data == whole else 77
    assert created == reopened.segments()[-1].created_us
    assert (0 < size < 32 and content == "torn") == bool(wal.recovered.quarantined)


def test_a_torn_header_below_the_mark_is_damage() -> None:
    """The mark proves that the segment had records."""
    disk = make_log()
    disk.put(LAST, b"")
    disk.put(MARK_PATH, encode_mark(61))
    with pytest.raises(DamagedLogError, match="bad segment header"):
        open_log(disk)


def test_a_gap_across_the_snapshot_is_replayed() -> None:
    """It includes ids after the snapshot, so its record is visited."""
    disk = FakeDisk()
    header_bytes = encode_header(SEGMENT_MAGIC, 1, 0)
    gap = encode_gap(1, 9)
    record = encode_record(10, BODIES[0], fence=True)
    disk.put(FIRST, header_bytes + encode_record(1, gap, fence=True) + record)
    seen: list[tuple[int, bytes]] = []
    wal = open_log(disk, seen, after_id=5)

    assert [(1, gap), (10, BODIES[0])] == seen
    found = wal.read(0, topic=b"t", up_to=99, count_max=9, bytes_max=999)
    assert ([(1, 9)], [(10, BODIES[0])]) == (found.gaps, found.records)


def test_recovered_records_survive_the_next_power_cut() -> None:
    """A killed process leaves unsynced writes; recovery syncs them before it accepts them."""
    disk = FakeDisk()
    wal = open_log(disk, fsync="none")
    write(wal, BODIES[:5])
    killed = disk.kill()
    assert 5 == open_log(killed).committed_id

    for seed in range(20):
        assert 5 == open_log(killed.crash(Random(seed))).committed_id


def test_a_log_on_a_full_disk_is_opened_with_the_reserve() -> None:
    """Healing uses the reserve's space; publishes are refused."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**20)
    write(wal, BODIES)
    disk.put(FIRST, disk.content(FIRST) + TORN[:-1])
    disk.remove(FIRST_INDEX)
    disk.capacity = disk.used_bytes
    wal = open_log(disk, segment_bytes=2**20)

    assert 60 == wal.committed_id
    assert 1 == len(wal.recovered.quarantined)
    with pytest.raises(LogFullError):
        wal.append(BODIES[:1])
    wal.append(BODIES[:1], urgent=True)


def test_without_any_space_the_log_is_full() -> None:
    """Not even the first segment can be created, and the error says so."""
    with pytest.raises(LogFullError):
        open_log(FakeDisk(capacity=10))


def torn_log() -> FakeDisk:
    """Return a log as a killed process leaves it: records that no sync made durable, torn."""
    disk = make_log()
    wal = open_log(disk, fsync="none")
    write(wal, BODIES[:5])
    path = last_path(disk)
    left = disk.kill()
    file = left.open(path, write=True, create=False)
    file.pwrite(b"torn", file.size())
    return left


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("operation", ["fsync", "sync_dir"])
def test_a_failed_sync_at_a_start_is_final(operation: str, error: int) -> None:
    """Whatever its number: a second attempt would take the page cache for the disk."""
    for nth in range(1, 20):
        disk = torn_log()
        disk.fail(operation, error, nth=nth)
        try:
            open_log(disk)
        except LogPoisonedError:
            continue
        assert [] == disk.failed
        assert nth > 2
        return
    raise AssertionError("it never succeeds")


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_directory_that_cannot_be_opened_now_is_opened_later(nth: int) -> None:
    """No sync has begun: a start without a descriptor is tried again."""
    disk = torn_log()
    disk.fail("open_dir", errno.EMFILE, nth=nth)
    with pytest.raises(LogScarceError):
        open_log(disk)

    assert 65 == open_log(disk).committed_id


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.ENOSPC])
def test_a_failed_sync_of_a_header_being_healed_is_final(error: int) -> None:
    """A rotation that a crash interrupted, with and without bytes to set aside."""
    for header in (b"", b"half a header"):
        disk = make_log()
        disk.put(last_path(disk), header)
        disk.fail("fsync", error)
        with pytest.raises(LogPoisonedError):
            open_log(disk)
