"""Python's own lack of memory, at every single allocation of the log's work: nothing is lost.

CPython's test module can let any one allocation fail. Where it is missing, or other threads
would meet the failure, there is nothing to be learnt.
"""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import pytest

from braidmq.base.build import is_compiled
from braidmq.base.errors import LogScarceError
from braidmq.testing.disk import FakeDisk
from braidmq.wal import snapshots
from braidmq.wal.counting import Count, Tally
from braidmq.wal.maintenance.survey import verify
from braidmq.wal.segment import list_segments, segment_path
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import (
    SMALL,
    batches_of,
    describe,
    message,
    numbered,
    open_log,
    read_everything,
    write,
)

testcapi = pytest.importorskip("_testcapi", reason="this Python cannot lack memory on demand")
BODIES = numbered(60)
pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled code aborts without memory")
QUIET = 40
"""So many calls in a row without a failure have more allocations than there are."""


def lacking(make: Callable[[], Callable[[], object]]) -> Iterator[bool]:
    """Let each allocation of a call fail that *make* prepares; yield whether the call did."""
    quiet = nth = 0
    while quiet < QUIET:
        call = make()
        failed = False
        testcapi.set_nomemory(nth, nth + 1)
        try:
            call()
        except (MemoryError, LogScarceError, SystemError):  # CPython forgets some to raise
            failed = True
        finally:
            testcapi.remove_mem_hooks()
        yield failed
        quiet = 0 if failed else quiet + 1
        nth += 1
    assert nth > QUIET + 10


class Log:
    """A log on a disk of its own, with what was written to it."""

    def __init__(self, *, limit: int = 0) -> None:
        self.disk = FakeDisk()
        self.wal = open_log(self.disk, limit=limit)
        self.bodies: list[bytes] = []

    def write(self, bodies: list[bytes]) -> None:
        write(self.wal, *batches_of(bodies, 5))
        self.bodies += bodies

    def is_whole(self) -> bool:
        """Return whether it holds what was written, now and after a power cut."""
        left = self.disk.crash(Random(1))
        found = [read_everything(wal) for wal in (self.wal, open_log(left))]
        assert verify(self.disk, describe).is_intact
        return found == [list(enumerate(self.bodies, 1))] * 2


def test_a_batch_is_refused_whole() -> None:
    """Ids, topics, checksums and files are as before, and the next batch has its place."""
    logs: list[Log] = []
    batch = [message(b"new%d" % number, b"x" * 50) for number in range(3)]

    def make() -> Callable[[], object]:
        logs.append(Log())
        logs[-1].write(BODIES[:5])
        return lambda: logs[-1].wal.append(batch)

    for failed in lacking(make):
        log = logs.pop()
        if failed:
            assert 6 == log.wal.next_id
        else:
            log.wal.commit(1)
            log.bodies += batch
        log.write([message(b"other", b"first of its topic"), *BODIES[5:30]])
        assert log.is_whole()


def test_a_commit_is_tried_again() -> None:
    """Until it succeeds, whether the segment is full or not; the batch is never refused."""
    logs: list[Log] = []

    def make() -> Callable[[], object]:
        logs.append(Log())
        log = logs[-1]
        log.write(BODIES[:20])
        log.wal.append(BODIES[20:40])
        log.bodies += BODIES[20:40]
        return lambda: log.wal.commit(1)

    for failed in lacking(make):
        log = logs.pop()
        if failed:
            log.wal.commit(1)
        assert 40 == log.wal.committed_id
        log.write(BODIES)
        assert log.is_whole()


def test_retention_leaves_no_hole() -> None:
    """What it could not delete is still part of the log, and is deleted later."""
    logs: list[Log] = []

    def make() -> Callable[[], object]:
        log = Log(limit=SMALL)
        log.write(numbered(150))
        snapshots.save(log.disk, log.wal.committed_id, b"state")
        logs.append(log)
        return lambda: log.wal.retain(log.wal.next_id, 10)

    for _ in lacking(make):
        log = logs.pop()
        for left in (log.disk.kill(), log.disk.crash(Random(1))):
            assert verify(left, describe).is_intact
            assert 151 == open_log(left, after_id=150).next_id
        log.wal.retain(log.wal.next_id, 10)
        assert log.wal.first_id == list_segments(log.disk)[0] == log.wal.floor.first_id > 100


def test_a_snapshot_is_kept_later() -> None:
    """The one before it stays."""
    logs: list[Log] = []

    def make() -> Callable[[], object]:
        log = Log()
        log.write(BODIES)
        snapshots.save(log.disk, 30, b"older")
        logs.append(log)
        return lambda: snapshots.save_parts(log.disk, 60, [b"st", b"ate"])

    for _ in lacking(make):
        log = logs.pop()
        found = snapshots.load(log.disk.crash(Random(1)))
        assert found is not None
        assert (found.last_id, found.body) in ((30, b"older"), (60, b"state"))
        snapshots.save(log.disk, 60, b"state")
        assert [60, 30] == snapshots.list_ids(log.disk)


def test_reads_are_tried_again() -> None:
    """Nothing is taken for damage, and nothing is kept that was read by half."""
    log = Log()
    log.write(BODIES)

    def read(wal: Wal) -> object:
        return wal.read(20, topic=b"t", up_to=30, count_max=5, bytes_max=SMALL)

    def make() -> Callable[[], object]:
        wal = open_log(log.disk.kill())
        count = Count([Tally(b"t", [(1, 60)])])
        return lambda: (wal.scrub(100_000), wal.count(count, 100), read(wal))

    for _ in lacking(make):
        pass
    assert log.is_whole()


def test_a_start_is_tried_again() -> None:
    """With a torn tail and without indexes: whatever was done by half is done again."""
    whole = Log()
    whole.write(BODIES)
    for nth in range(1, 100):
        disk = whole.disk.kill()
        for path in disk.paths():
            if path.endswith(".idx"):
                disk.remove(path)
        last = segment_path(list_segments(disk)[-1])
        disk.put(last, disk.content(last) + b"torn")
        calls = count(1)

        def lack(_name: str, _size: int, calls: Iterator[int] = calls, nth: int = nth) -> None:
            if next(calls) == nth:
                raise MemoryError

        disk.watch = lack
        try:
            open_log(disk)
        except LogScarceError:
            assert 60 == open_log(disk).committed_id
            assert verify(disk, describe).is_intact
        else:
            assert nth > 10
            return
    raise AssertionError("it never succeeds")
