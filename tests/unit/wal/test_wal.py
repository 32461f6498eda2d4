"""The log as a whole: committed records survive whatever happens to process and disk."""

import errno
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import (
    DamagedLogError,
    LogFullError,
    LogPoisonedError,
    UnknownRecordError,
)
from braidmq.testing.disk import FakeDisk
from braidmq.wal.format import decode_mark
from braidmq.wal.maintenance.survey import verify
from braidmq.wal.options import WalOptions
from braidmq.wal.reading import Wanted
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import (
    FIRST,
    SMALL,
    batches_of,
    describe,
    message,
    note,
    numbered,
    open_log,
    read_everything,
    write,
)

BODIES = numbered(120)


def test_committed_records_are_read_back() -> None:
    """With consecutive ids from 1, byte for byte, across segments and a restart."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 7))

    expected = list(enumerate(BODIES, 1))
    assert expected == read_everything(wal)
    assert len(wal.segments()) > 3
    wal.close()
    seen: list[tuple[int, bytes]] = []
    reopened = open_log(disk, seen)
    assert expected == seen
    assert expected == read_everything(reopened)
    assert len(BODIES) + 1 == reopened.next_id


def test_replay_starts_after_the_snapshot() -> None:
    """Records at or below after_id are not visited."""
    disk = FakeDisk()
    write(open_log(disk), *batches_of(BODIES, 7))

    for after_id in (0, 1, 50, 119, 120):
        seen: list[tuple[int, bytes]] = []
        open_log(disk.kill(), seen, after_id=after_id)
        assert list(enumerate(BODIES, 1))[after_id:] == seen


def test_a_new_segment_starts_with_the_next_id() -> None:
    """Each segment begins with the id after the last one of its predecessor."""
    wal = open_log(FakeDisk())
    write(wal, *batches_of(BODIES, 7))

    segments = wal.segments()
    assert [s.last_id + 1 for s in segments[:-1]] == [s.first_id for s in segments[1:]]
    assert [True] * (len(segments) - 1) + [False] == [s.sealed for s in segments]


def test_only_committed_records_are_read() -> None:
    """Appended records are not visible before their commit."""
    wal = open_log(FakeDisk())
    write(wal, BODIES[:3])
    wal.append(BODIES[3:6])

    assert 3 == wal.committed_id
    found = wal.read(0, topic=None, up_to=99, count_max=99, bytes_max=10**6)
    assert [1, 2, 3] == [record_id for record_id, _ in found.records]
    assert 3 == found.reached_id
    wal.commit(1)
    assert 6 == len(read_everything(wal))


def test_a_commit_takes_four_system_calls() -> None:
    """One write to the segment, one to the index, one fdatasync, one write of the mark."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**20)
    before = disk.counts.copy()
    write(wal, BODIES)

    assert {"pwrite": 3, "fdatasync": 1} == dict(disk.counts - before)


@pytest.mark.parametrize(
    ("policy", "synced"),
    [
        ("always", [2, 4, 6]),
        ("every_n:3", [0, 4, 4]),
        ("interval_ms:5", [0] * 3),
        ("none", [0] * 3),
    ],
)
def test_the_durable_mark_never_exceeds_the_synced_id(policy: str, synced: list[int]) -> None:
    """The policy decides what is committed; only fdatasync moves the durable mark."""
    disk = FakeDisk()
    wal = open_log(disk, fsync=policy)
    marks = []
    for batch in batches_of(BODIES[:6], 2):
        write(wal, batch)
        marks.append(decode_mark(disk.content("wal/durable")))

    assert synced == marks
    assert 6 == wal.committed_id
    assert synced[-1] == wal.synced_id
    wal.sync()
    assert 6 == decode_mark(disk.content("wal/durable"))


def test_sealing_syncs_under_every_policy() -> None:
    """A sealed segment is durable before the next one exists, so it is never torn."""
    disk = FakeDisk()
    wal = open_log(disk, fsync="none")
    write(wal, *batches_of(BODIES, 7))
    sealed_id = wal.segments()[-2].last_id

    for seed in range(20):
        survivor = open_log(disk.crash(Random(seed)))
        assert sealed_id <= survivor.committed_id


def test_a_failed_sync_does_not_move_the_durable_mark() -> None:
    """Nor does it move the committed id."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, BODIES[:2])
    disk.fail("fdatasync", errno.EIO)
    wal.append(BODIES[2:4])
    with pytest.raises(LogPoisonedError):
        wal.commit(1)

    assert 2 == decode_mark(disk.content("wal/durable")) == wal.committed_id


CALLS: list[Callable[[Wal], object]] = [
    lambda wal: wal.append([note(b"x")]),
    lambda wal: wal.append([note(b"x")], urgent=True),
    lambda wal: wal.commit(1),
    Wal.sync,
    Wal.refill_reserve,
    lambda wal: wal.retain(10**9, 10**18),
]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_nothing_is_retried_after_a_failed_fsync(error: int) -> None:
    """Every later call raises, and no sync is ever called again, not even by close."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, BODIES[:2])
    disk.fail("fdatasync", error)
    wal.append(BODIES[2:4])
    with pytest.raises(LogPoisonedError):
        wal.commit(1)
    before = disk.counts.copy()
    for call in CALLS:
        with pytest.raises(LogPoisonedError, match="fdatasync"):
            call(wal)
    wal.close()

    assert {} == dict(disk.counts - before)
    assert wal.is_poisoned
    assert 2 == len(read_everything(wal))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("operation", ["fsync", "sync_dir"])
def test_a_failed_sync_of_a_new_segment_is_final(operation: str, nth: int) -> None:
    """ENOSPC from a sync does not count as a full disk."""
    disk = FakeDisk()
    wal = open_log(disk)
    wal.append(numbered(60))
    disk.fail(operation, errno.ENOSPC, nth=1 if operation == "fsync" else nth)
    with pytest.raises(LogPoisonedError):
        wal.commit(1)
    assert wal.is_poisoned


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "fsync", "sync_dir", "open"])
def test_any_failure_but_a_full_disk_is_final(operation: str) -> None:
    """Whichever call fails with EIO while writing or rotating, the log is poisoned."""
    disk = FakeDisk()
    wal = open_log(disk)
    committed = 0
    disk.fail(operation, errno.EIO, nth=1)
    try:
        for batch in batches_of(BODIES, 7):
            write(wal, batch)
            committed = wal.committed_id
    except LogPoisonedError:
        pass
    else:
        pytest.fail("nothing failed")

    with pytest.raises(LogPoisonedError):
        wal.append(BODIES[:1])
    disk.heal()
    assert committed <= open_log(disk.crash(Random(1))).committed_id


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_and_keeps_everything(error: int) -> None:
    """LogFullError leaves file, index, topics and ids unchanged; later appends succeed."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, BODIES[:3])
    before = {path: disk.content(path) for path in disk.paths()}
    for nth in (1, 2):
        disk.heal()
        disk.fail("pwrite", error, nth=nth)
        with pytest.raises(LogFullError):
            wal.append([message(b"new", b"never"), *BODIES[3:6]])
        assert before == {path: disk.content(path) for path in disk.paths()}
    disk.heal()

    assert 4 == wal.next_id
    write(wal, [message(b"other", b"first of its topic")], BODIES[3:5])
    assert 6 == wal.committed_id
    assert [4] == [record_id for record_id, _ in read_everything(wal, b"other")]
    assert [] == read_everything(wal, b"new")
    assert [] == verify(disk, describe).notes


def test_urgent_records_use_the_reserve() -> None:
    """On a full disk other appends are refused; the reserve is refilled later."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**20)
    write(wal, BODIES[:3])
    disk.capacity = disk.used_bytes + 50
    with pytest.raises(LogFullError):
        wal.append(BODIES[3:6])
    urgent = 0
    while wal._reserve.is_whole or urgent < 20:  # noqa: SLF001 - only a test needs it
        wal.append([note(b"settled")], urgent=True)
        wal.commit(1)
        urgent += 1
        with pytest.raises(LogFullError):
            wal.append(BODIES[3:6])

    assert not wal.refill_reserve()
    assert 3 + urgent == wal.committed_id == len(read_everything(wal))
    disk.capacity = disk.used_bytes + 2**20
    assert wal.refill_reserve()
    write(wal, BODIES[3:6])
    assert 6 + urgent == len(read_everything(wal))


def test_urgent_records_are_refused_once_the_reserve_is_used_up() -> None:
    """The log stays intact."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=SMALL)
    disk.capacity = disk.used_bytes
    appended = 0
    while wal._reserve.is_whole or appended == 0:  # noqa: SLF001 - as above
        wal.append([note(b"settled" * 10)], urgent=True)
        appended += 1
    full = [note(b"settled" * 1000)]
    with pytest.raises(LogFullError):
        wal.append(full, urgent=True)
    wal.commit(1)

    assert 0 < appended == len(read_everything(wal))
    assert verify(disk, describe).is_intact


def test_rotation_is_postponed_while_the_disk_is_full() -> None:
    """Without space for a new segment the old one keeps growing."""
    disk = FakeDisk()
    wal = open_log(disk)
    segments: list[int] = []
    for nth in range(1, 5):  # tables, header, index header of the next segment; then none fails
        disk.heal()
        wal.append(numbered(40))
        wal.sync()
        disk.fail("pwrite", errno.ENOSPC, nth=nth)
        wal.commit(1)
        segments.append(len(wal.segments()))
    disk.heal()
    expected = read_everything(wal)

    assert 160 == len(expected)
    assert [1, 1, 1, 2] == segments
    seen: list[tuple[int, bytes]] = []
    open_log(disk.kill(), seen)
    assert expected == seen


def test_a_short_write_is_continued() -> None:
    """However few bytes a write accepts, the whole batch arrives."""
    disk = FakeDisk()
    wal = open_log(disk)
    disk.write_bytes_max = 13
    write(wal, *batches_of(BODIES[:60], 7))

    assert list(enumerate(BODIES[:60], 1)) == read_everything(wal)
    assert [] == verify(disk, describe).notes


def test_a_body_of_unknown_type_changes_nothing() -> None:
    """The batch is not written, and leaves no topic behind."""
    disk = FakeDisk()
    wal = open_log(disk)
    with pytest.raises(UnknownRecordError):
        wal.append([message(b"ghost", b"x"), b"\x63unknown"])
    write(wal, [message(b"real", b"y")])

    assert 1 == len(read_everything(wal, b"real"))
    assert verify(disk, describe).is_intact


def test_an_empty_append_and_an_empty_commit_cost_nothing() -> None:
    """Without records there is neither a write nor a sync."""
    disk = FakeDisk()
    wal = open_log(disk)
    before = disk.operations
    wal.append([])
    wal.commit(1)
    wal.sync()

    assert before == disk.operations


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"", b"c"]), st.binary(max_size=200)),
            min_size=1,
            max_size=30,
        ),
        max_size=20,
    ),
    st.sampled_from([b"a", b"b", b"c", b"absent", None]),
    st.data(),
)
def test_reading_a_topic_equals_filtering_everything(
    batches: list[list[tuple[bytes, bytes]]], topic: bytes | None, data: st.DataObject
) -> None:
    """The index finds what a scan of all records finds, within the limits."""
    wal = open_log(FakeDisk())
    bodies = [[message(t, p) if t else note(p) for t, p in batch] for batch in batches]
    write(wal, *bodies)
    everything = list(enumerate([body for batch in bodies for body in batch], 1))
    wanted = [r for r in everything if topic is None or describe(r[1]).topic == topic]

    last = wal.committed_id
    after_id = data.draw(st.integers(0, last))
    up_to = data.draw(st.integers(after_id, last))
    count_max = data.draw(st.integers(1, 20))
    bytes_max = data.draw(st.integers(1, 1000))
    found = wal.read(
        after_id, topic=topic, up_to=up_to, count_max=count_max, bytes_max=bytes_max
    )
    due = [r for r in wanted if after_id < r[0] <= up_to]
    assert due[: len(found.records)] == found.records
    assert len(found.records) <= count_max
    assert 1 >= len(found.records) or sum(len(b) for _, b in found.records) <= bytes_max
    assert bool(due) == bool(found.records)
    left = [r for r in due if r[0] > found.reached_id]
    assert due[len(found.records) :] == left
    assert bool(left) == (found.reached_id < up_to) or not left
    assert up_to == found.reached_id or left


def test_ids_deleted_by_retention_are_reported_as_lost() -> None:
    """Once; reading continues after them."""
    disk = FakeDisk()
    wal = open_log(disk, limit=SMALL, hours=0.0, force=1)
    write(wal, *batches_of(BODIES, 7))
    gone = wal.retain(1, 10)

    assert gone
    assert not any(disk.exists(path) for path in gone)
    assert wal.first_id > 1
    found = wal.read(0, topic=b"t", up_to=10**9, count_max=5, bytes_max=10**6)
    assert (1, wal.first_id - 1) == found.lost
    assert wal.first_id == found.records[0][0]
    assert [] == wal.retain(1, 10)
    seen: list[tuple[int, bytes]] = []
    open_log(disk.crash(Random(1)), seen, after_id=wal.first_id - 1)
    assert list(enumerate(BODIES, 1))[wal.first_id - 1 :] == seen


def test_a_segment_is_deleted_before_its_index() -> None:
    """A reader that found a segment without an index would rebuild it needlessly."""
    disk = FakeDisk()
    wal = open_log(disk, limit=SMALL, hours=0.0, force=1)
    write(wal, *batches_of(BODIES, 7))
    wal.read(0, topic=b"t", up_to=99, count_max=5, bytes_max=10**6)
    first = wal.segments()[0]
    disk.fail("unlink", errno.EIO, nth=2)
    with pytest.raises(LogPoisonedError):
        wal.retain(1, 10)

    assert not disk.exists(first.path)
    assert disk.exists(first.path.replace(".wal", ".idx"))


def test_an_orphaned_index_is_removed_at_the_next_start() -> None:
    """A crash between the two deletions leaves one; foreign files are not touched."""
    disk = FakeDisk()
    wal = open_log(disk, limit=SMALL, hours=0.0, force=1)
    write(wal, *batches_of(BODIES, 7))
    wal.retain(1, 10)
    orphan = f"wal/{1:020}.idx"
    for path in (orphan, "wal/1.idx"):
        disk.open(path, write=True, create=True).close()
    again = disk.kill()
    open_log(again, after_id=wal.first_id - 1)

    assert not again.exists(orphan)
    assert again.exists("wal/1.idx")


def test_a_reader_survives_the_deletion_of_its_segment() -> None:
    """A segment deleted between two reads is reported as lost, not as an error."""
    disk = FakeDisk()
    wal = open_log(disk, limit=SMALL, hours=0.0, force=1)
    write(wal, *batches_of(BODIES, 7))
    held = wal._view  # noqa: SLF001 - a slow reader
    wal.retain(1, 10)
    with pytest.raises(FileNotFoundError):
        wal._reader.read(held, 0, Wanted(None, 99, 9, 9999, -1))  # noqa: SLF001 - as above

    found = wal.read(0, topic=None, up_to=10**9, count_max=9, bytes_max=9999)
    assert found.lost is not None


def test_the_log_counts_its_work() -> None:
    """Records, bytes, commits and syncs."""
    ticks = iter(range(1000))
    disk = FakeDisk()
    wal = Wal.open(
        disk,
        WalOptions(),
        describe,
        now_us=1,
        after_id=0,
        visit=lambda _, __: None,
        clock=lambda: float(next(ticks)),
    )
    write(wal, BODIES[:2], BODIES[2:5])

    stats = wal.stats
    assert (5, 2, 2) == (stats.records, stats.commits, stats.fsyncs)
    assert (1.0, 2.0) == (stats.fsync_seconds_last, stats.fsync_seconds_total)
    assert len(disk.content(FIRST)) == wal.segments()[0].size == 32 + stats.bytes


def test_the_snapshot_must_not_be_ahead_of_the_log() -> None:
    """If it is, records are missing from the log."""
    disk = FakeDisk()
    write(open_log(disk), BODIES[:5])

    with pytest.raises(DamagedLogError, match="ahead of the log") as caught:
        open_log(disk, after_id=9)
    assert (6, 9) == (caught.value.first_id, caught.value.last_id)
