"""How far work on the log is: never beyond the end, never back, and at the end all of it."""

from braidmq.testing.disk import FakeDisk
from braidmq.wal.maintenance.repair import repair
from braidmq.wal.maintenance.survey import dump, verify
from braidmq.wal.opening import Watching, unwatched
from braidmq.wal.options import WalOptions
from braidmq.wal.segment import list_segments, segment_path
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import describe
from tests.unit.wal.maintenance.test_repair import MIDDLE, flip, make_log


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.told.append((done, total))


def size_of(disk: FakeDisk) -> int:
    return sum(len(disk.content(segment_path(first))) for first in list_segments(disk))


def assert_grew_to_the_end(watcher: Watcher, total: int) -> None:
    done = [done for done, _ in watcher.told]

    assert done == sorted(done)
    assert (total, total) == watcher.told[-1]
    assert {total} == {of for _, of in watcher.told}
    assert 3 == len(set(done))  # segments


def test_a_look_at_the_log_is_watched_from_segment_to_segment() -> None:
    """The whole of it, and no further."""
    disk, watcher = make_log(), Watcher()
    verify(disk, describe, watcher)

    assert_grew_to_the_end(watcher, size_of(disk))


def test_a_dump_tells_of_the_look_that_comes_first() -> None:
    """Then its records are the progress."""
    disk, watcher = make_log(), Watcher()
    assert 5 == len(list(dump(disk, describe, from_id=1, limit=5, watch=watcher)))

    assert_grew_to_the_end(watcher, size_of(disk))


def test_an_opening_is_watched_whether_segments_are_replayed_or_not() -> None:
    """What a snapshot has passed is passed at once."""
    for after_id in (0, 65):
        disk, watcher = make_log(), Watcher()
        wal = Wal.open(
            disk,
            WalOptions(),
            describe,
            now_us=0,
            after_id=after_id,
            visit=lambda _id, _body: None,
            watch=watcher,
        )
        wal.close()

        assert watcher.told[-1][0] <= watcher.told[-1][1]
        assert watcher.told == sorted(watcher.told)
        assert watcher.told[-1][1] == watcher.told[-1][0]


def test_a_repair_tells_of_its_second_part_as_well() -> None:
    """Which segment of those that are written anew it is at."""
    disk, watcher = make_log(), Watcher()
    flip(MIDDLE, 100)(disk)
    repair(disk, describe, accept_loss=True, watch=watcher)

    assert (0, 1) == watcher.told[-1]


def test_who_is_not_watched_looks_at_no_file_for_it() -> None:
    """A start that nobody sees costs nothing more."""
    disk = make_log()
    watching = Watching(disk, unwatched)

    def read(_size: int, _offset: int) -> bytes:
        return b""

    assert (0, read) == (watching.total, watching.reader(read))
