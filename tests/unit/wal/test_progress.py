"""Progress reports of work on the log: monotonic, within bounds, complete at the end."""

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
    """Keeps every report."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.reports.append((done, total))


def size_of(disk: FakeDisk) -> int:
    return sum(len(disk.content(segment_path(first))) for first in list_segments(disk))


def assert_grew_to_the_end(watcher: Watcher, total: int) -> None:
    done = [done for done, _ in watcher.reports]

    assert done == sorted(done)
    assert (total, total) == watcher.reports[-1]
    assert {total} == {of for _, of in watcher.reports}
    assert 3 == len(set(done))  # segments


def test_verifying_reports_progress_per_segment() -> None:
    """Up to the whole log, and no further."""
    disk, watcher = make_log(), Watcher()
    verify(disk, describe, watcher)

    assert_grew_to_the_end(watcher, size_of(disk))


def test_a_dump_reports_the_progress_of_the_survey_before_it() -> None:
    """After that, its records show the progress."""
    disk, watcher = make_log(), Watcher()
    assert 5 == len(list(dump(disk, describe, from_id=1, limit=5, watch=watcher)))

    assert_grew_to_the_end(watcher, size_of(disk))


def test_opening_reports_progress_with_and_without_replay() -> None:
    """Segments before the snapshot count at once."""
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

        assert watcher.reports[-1][0] <= watcher.reports[-1][1]
        assert watcher.reports == sorted(watcher.reports)
        assert watcher.reports[-1][1] == watcher.reports[-1][0]


def test_a_repair_reports_the_segments_it_rewrites() -> None:
    """After the survey it reports which of the damaged segments it is working on."""
    disk, watcher = make_log(), Watcher()
    flip(MIDDLE, 100)(disk)
    repair(disk, describe, accept_loss=True, watch=watcher)

    assert (0, 1) == watcher.reports[-1]


def test_without_a_watcher_no_file_is_measured() -> None:
    """Startup without progress reports has no extra cost."""
    disk = make_log()
    watching = Watching(disk, unwatched)

    def read(_size: int, _offset: int) -> bytes:
        return b""

    assert (0, read) == (watching.total, watching.reader(read))
