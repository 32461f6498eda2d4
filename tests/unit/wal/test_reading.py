"""Reading the log."""

import errno
import threading
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

import pytest

from braidmq.base.errors import (
    EXIT_IO_ERROR,
    DamagedLogError,
    LogPoisonedError,
    LogReadError,
    LogScarceError,
)
from braidmq.testing.disk import FakeDisk
from braidmq.wal.browse import Bounds
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    encode_gap,
    encode_header,
    encode_record,
)
from braidmq.wal.reading import OPEN_SEGMENTS_MAX, SKIP_BYTES_MIN
from braidmq.wal.tables import BLOCK_ROWS
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import (
    FIRST,
    FIRST_INDEX,
    SMALL,
    batches_of,
    flip_bit,
    message,
    note,
    numbered,
    open_log,
    read_everything,
    tiny_log,
    write,
)

BODIES = numbered(60)


def test_any_bit_flip_is_detected() -> None:
    """Flip every bit of a small log, sealed or growing: no reader gets wrong bytes."""
    disk = tiny_log()
    wal = open_log(disk)
    expected = read_everything(wal)
    assert 2 == len(wal.segments())
    for segment in wal.segments():
        whole = disk.content(segment.path)
        for bit in range(HEADER_BYTES * 8, len(whole) * 8):
            flipped = flip_bit(whole, bit)
            disk.put(segment.path, flipped)
            with pytest.raises(DamagedLogError) as caught:
                wal.read(0, topic=None, up_to=99, count_max=99, bytes_max=10**6)
            assert segment.path == caught.value.segment
        disk.put(segment.path, whole)
    assert expected == read_everything(wal)


def test_any_bit_flip_of_a_gap_record_is_detected() -> None:
    """Sealed or growing: a reader of one topic is never told of other lost ids."""
    gap = encode_record(2, encode_gap(2, 9), fence=True)
    records = [
        encode_record(1, message(b"t", b"1"), fence=True),
        gap,
        encode_record(10, message(b"t", b"10"), fence=True),
    ]
    for is_sealed in (True, False):
        disk = FakeDisk()
        disk.put(FIRST, encode_header(SEGMENT_MAGIC, 1, 1000) + b"".join(records))
        wal = open_log(disk)
        if is_sealed:
            write(wal, [message(b"u", bytes(SMALL))], [note(b"n")])
        assert is_sealed == (2 == len(wal.segments()))
        assert [(2, 9)] == wal.read(0, topic=b"t", up_to=10, count_max=9, bytes_max=999).gaps
        whole = disk.content(FIRST)
        start = whole.index(gap)
        for bit in range(start * 8, (start + len(gap)) * 8):
            disk.put(FIRST, flip_bit(whole, bit))
            with pytest.raises(DamagedLogError):
                wal.read(0, topic=b"t", up_to=10, count_max=9, bytes_max=999)


def test_any_bit_flip_in_a_sealed_index_heals() -> None:
    """The reader rebuilds the index and gets the right records."""
    disk = tiny_log()
    wal = open_log(disk)
    expected = read_everything(wal, b"t")
    whole = disk.content(FIRST_INDEX)
    segment = wal.segments()[0]
    for bit in range(len(whole) * 8):
        flipped = flip_bit(whole, bit)
        disk.put(FIRST_INDEX, flipped)
        if bit % 2:
            wal._reader.forget(segment)  # noqa: SLF001 - as if the cache had evicted it
        found = wal.read(0, topic=b"t", up_to=30, count_max=99, bytes_max=10**6)
        assert expected == found.records


def test_a_damaged_index_of_the_growing_segment_is_reported() -> None:
    """Damaged rows are not used; a restart rebuilds them."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, BODIES[:5])
    data = bytearray(disk.content(FIRST_INDEX))
    data[40] ^= 1
    disk.put(FIRST_INDEX, bytes(data))
    with pytest.raises(DamagedLogError, match="restart rebuilds"):
        read_everything(wal)
    assert 5 == len(read_everything(open_log(disk)))


READS: Final[dict[str, Callable[[Wal], object]]] = {
    "the active segment": lambda wal: wal.read(
        wal.segments()[-1].first_id - 1, topic=None, up_to=99, count_max=9, bytes_max=999
    ),
    "a sealed segment": lambda wal: wal.read(
        0, topic=b"t", up_to=99, count_max=9, bytes_max=999
    ),
    "a scrub": lambda wal: wal.scrub(10**9),
    "a verification": lambda wal: wal.verify(wal.segments()[0]),
    "a search by time": lambda wal: wal.first_at(5),
    "a search by topic": lambda wal: wal.browse_before(5, b"t", Bounds(9, 999, 999)),
}


@pytest.mark.parametrize("what", READS)
def test_a_disk_that_does_not_return_bytes_is_no_damage(what: str) -> None:
    """EIO says nothing about the bytes: exit code 74, without the advice to give them up."""
    for nth in count(1):
        disk = FakeDisk()
        wal = open_log(disk)
        write(wal, *batches_of(BODIES, 4))
        disk.fail("pread", errno.EIO, nth=nth, forever=True)
        problem: LogReadError | None = None
        try:
            READS[what](wal)
        except LogReadError as error:
            problem = error
        disk.heal()
        READS[what](wal)
        if problem is None:
            break
        assert EXIT_IO_ERROR == problem.exit_code
        assert "accept-loss" not in str(problem)

    assert nth > 1


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_read_without_descriptor_or_memory_is_tried_again(what: str, error: int) -> None:
    """Nothing is wrong with the log, and nothing with the disk."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 4))
    operation = "pread" if error == errno.ENOMEM or what == "the active segment" else "open"
    disk.fail(operation, error, forever=True)
    with pytest.raises(LogScarceError):
        READS[what](wal)

    disk.heal()
    READS[what](wal)


def test_bytes_of_other_topics_are_not_read() -> None:
    """Distant records of a topic are read separately, neighbouring ones together."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**20)
    big = message(b"other", bytes(2 * SKIP_BYTES_MIN))
    small = [message(b"mine", b"%d" % i) for i in range(6)]
    write(wal, [big, small[0], small[1], big, small[2], note(b"between"), small[3], big])
    reads: list[int] = []
    disk.watch = lambda name, size: reads.append(size) if name == "pread" else None
    found = wal.read(0, topic=b"mine", up_to=99, count_max=99, bytes_max=10**6)

    assert [2, 3, 5, 7] == [record_id for record_id, _ in found.records]
    assert 3 == len(reads)  # the rows, and two neighbourhoods
    assert sum(reads) < 8 * 32 + 200


def test_a_read_crosses_blocks_of_rows() -> None:
    """With more rows than a block, everything is found from any start."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**24)
    count = 2 * BLOCK_ROWS + 10
    bodies = [message(b"t%d" % (i % 3), b"%d" % i) for i in range(count)]
    write(wal, *batches_of(bodies, 1000))
    for after_id in (0, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS, count - 1, count):
        for topic in (None, b"t1"):
            found = wal.read(
                after_id, topic=topic, up_to=count, count_max=count, bytes_max=10**9
            )
            wanted = [
                (i, body)
                for i, body in enumerate(bodies, 1)
                if i > after_id and (topic is None or i % 3 == 2)
            ]
            assert wanted == found.records
            assert count == found.reached_id


def test_the_byte_limit_applies_across_blocks() -> None:
    """A later block adds nothing beyond the limit."""
    disk = FakeDisk()
    wal = open_log(disk, segment_bytes=2**24)
    small = [note(b"x")] * (BLOCK_ROWS - 1)
    mine = [message(b"mine", bytes(100)), message(b"mine", bytes(100))]
    write(wal, [*small, mine[0], mine[1]])
    found = wal.read(0, topic=b"mine", up_to=10**6, count_max=9, bytes_max=150)

    assert [BLOCK_ROWS] == [record_id for record_id, _ in found.records]
    assert BLOCK_ROWS == found.reached_id
    rest = wal.read(found.reached_id, topic=b"mine", up_to=10**6, count_max=9, bytes_max=1)
    assert [BLOCK_ROWS + 1] == [record_id for record_id, _ in rest.records]


def test_the_number_of_open_segments_is_bounded() -> None:
    """Reading a long log keeps only a few files open."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(numbered(700), 35))
    assert len(wal.segments()) > OPEN_SEGMENTS_MAX + 2
    read_everything(wal)

    assert OPEN_SEGMENTS_MAX == len(wal._reader._open)  # noqa: SLF001 - only this test needs it


def test_readers_run_concurrently_with_the_writer() -> None:
    """While the writer appends, rotates and deletes, readers see a consistent prefix."""
    wal = open_log(FakeDisk(), limit=20_000, hours=0.0)
    failures: list[str] = []
    done = threading.Event()

    def read() -> None:
        rng = Random(threading.get_ident())
        while not done.is_set():
            committed = wal.committed_id
            after_id = rng.randint(0, committed)
            found = wal.read(
                after_id, topic=None, up_to=committed, count_max=50, bytes_max=10**6
            )
            start = found.lost[1] if found.lost else after_id
            ids = [record_id for record_id, _ in found.records]
            if ids != list(range(start + 1, start + 1 + len(ids))):
                failures.append(f"{after_id} {found.lost} {ids}")
            failures.extend(
                f"{record_id} is wrong"
                for record_id, body in found.records
                if not body.endswith(b"#%d" % record_id)
            )

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(150):
            first = wal.next_id
            write(wal, [message(b"t", bytes(150) + b"#%d" % (first + i)) for i in range(8)])
            wal.retain(wal.next_id, 1)
    finally:
        done.set()
        for reader in readers:
            reader.join()

    assert [] == failures
    assert wal.first_id > 1


def test_reading_at_the_end_finds_nothing() -> None:
    """There is nothing after the last id, and nothing in an empty log."""
    wal = open_log(FakeDisk())
    empty = wal.read(0, topic=None, up_to=10, count_max=1, bytes_max=1)
    assert ([], 0, None) == (empty.records, empty.reached_id, empty.lost)
    write(wal, BODIES[:3])
    end = wal.read(3, topic=b"t", up_to=10, count_max=1, bytes_max=1)
    assert ([], 3, None) == (end.records, end.reached_id, end.lost)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errno.EMFILE, LogScarceError),
        (errno.ENOMEM, LogScarceError),
        (errno.EIO, LogPoisonedError),
    ],
)
def test_an_index_that_cannot_be_written_is_reported(
    error: int, expected: type[LogScarceError | LogPoisonedError]
) -> None:
    """A reader that has to rebuild an index raises the reason why it cannot."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 4))
    disk.remove(FIRST_INDEX)
    disk.fail("open" if error == errno.EMFILE else "pwrite", error)
    with pytest.raises(expected):
        read_everything(wal)
    disk.heal()
    assert 60 == len(read_everything(wal))


def test_an_index_that_has_no_room_is_made_in_memory() -> None:
    """Consumers can drain a full disk; once there is room the index is on it again."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 4))
    disk.remove(FIRST_INDEX)
    disk.fail("pwrite", errno.ENOSPC, forever=True)

    assert 60 == len(read_everything(wal))
    assert not disk.exists(FIRST_INDEX)
    assert 0 < wal.scrub(10**9)
    disk.heal()
    assert 60 == len(read_everything(open_log(disk)))
    assert disk.exists(FIRST_INDEX)


def test_a_missing_segment_is_damage() -> None:
    """Retention did not delete it, so the error says which one is missing."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES * 3, 4))
    segment = wal.segments()[1]
    disk.remove(segment.path)
    with pytest.raises(DamagedLogError, match="missing segment") as caught:
        read_everything(wal)
    found = caught.value
    assert (segment.path, segment.first_id, segment.last_id) == (
        found.segment,
        found.first_id,
        found.last_id,
    )


def test_an_index_that_cannot_be_rebuilt_fails_the_read() -> None:
    """An unusable index after a rebuild is damage, not an endless loop."""
    disk = FakeDisk()
    wal = open_log(disk)
    write(wal, *batches_of(BODIES, 4))
    disk.put(FIRST, disk.content(FIRST)[:-1])
    disk.remove(FIRST_INDEX)
    with pytest.raises(DamagedLogError):
        read_everything(wal)


def test_a_read_can_select_one_priority() -> None:
    """The index holds the priority, so nothing else of the topic is read."""
    wal = open_log(FakeDisk())
    write(wal, [message(b"mine", b"%d" % n, priority=n % 3) for n in range(9)])
    found = wal.read(0, topic=b"mine", up_to=99, count_max=99, bytes_max=10**6, priority=2)

    assert [3, 6, 9] == [record_id for record_id, _ in found.records]
    assert 9 == found.reached_id
