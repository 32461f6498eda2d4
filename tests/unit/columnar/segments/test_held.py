"""Segments that an open log keeps mapped."""

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.base.limits import MIB
from braidmq.base.records import GAP_KIND
from braidmq.columnar.logs import DirectoryLog
from braidmq.columnar.segments import held, verifying
from braidmq.columnar.segments.held import HeldSegments
from braidmq.columnar.segments.indexes import GrowingIndex
from braidmq.columnar.segments.layout import Numbers
from braidmq.columnar.segments.segments import SPARSE_ROWS, Question, Segment
from tests.unit.columnar.logs import (
    flip,
    log_of,
    message,
    open_log,
    retain_from,
    segment_files,
    write,
    write_log,
)

COMMON = [message("often", b"x" * 30) for _ in range(2 * SPARSE_ROWS)]
BODIES = [message("rare", b"payload"), *COMMON, message("rare", b"another"), *COMMON] * 6
MEDIUM = 8192


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DirectoryLog]:
    """A log of several sealed segments, some of them with few messages of a topic."""
    write_log(tmp_path, BODIES, segment_bytes=MEDIUM)
    assert len(segment_files(tmp_path)) > 2
    with DirectoryLog(tmp_path) as opened:
        yield opened


def sealed(path: Path) -> Segment:
    first, second = (int(found.stem) for found in segment_files(path)[:2])
    return Segment(path, first, second - 1, sealed=True)


def files_mapped(path: Path) -> list[str]:
    """Return the files below a directory that this process has mapped."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(path) in line]


def opened_segments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the segments that are mapped from now on, by their first ids."""
    mapped: list[int] = []
    make = Segment.__init__

    def recording(self: Segment, root: Path, first_id: int, *rest: Any, **more: Any) -> None:  # noqa: ANN401 - passed on
        mapped.append(first_id)
        make(self, root, first_id, *rest, **more)

    monkeypatch.setattr(Segment, "__init__", recording)
    return mapped


def flip_unnoticed(path: Path, offset: int) -> None:
    """Flip a bit as a failing disk does: the file's times stay, but the mapping changes."""
    before = path.stat()
    flip(path, offset)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_second_read_of_few_topics_maps_only_the_growing_segment(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed segments are still mapped, and the rows are the same."""
    expected = columnar.read(log.path, topics=["rare"])
    assert expected == log.read(topics=["rare"])
    mapped = opened_segments(monkeypatch)

    assert expected == log.read(topics=["rare"])
    assert log.cut(topics=["rare"]) == columnar.cut(log.view(), topics=["rare"])
    growing = int(segment_files(log.path)[-1].stem)
    assert {growing} == set(mapped)


def test_a_read_of_all_topics_holds_nothing(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It touches the whole log, whose pages would count as the process's memory."""
    log.read()
    mapped = opened_segments(monkeypatch)
    log.read()

    assert [int(path.stem) for path in segment_files(log.path)] == mapped


def test_a_read_that_stops_early_gives_its_segment_back(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read with a limit looks at no more than that."""
    end = log.advance(1, topics=["rare"], messages=1)
    mapped = opened_segments(monkeypatch)

    assert end == log.advance(1, topics=["rare"], messages=1)
    assert [] == mapped


def test_a_segment_serves_one_read_at_a_time(log: DirectoryLog) -> None:
    """What was verified, and an index that was rebuilt, belong to one read."""
    segment, kept = sealed(log.path), HeldSegments()
    kept.give(segment)

    assert segment is kept.take(segment.first_id, segment.last_id)
    assert kept.take(segment.first_id, segment.last_id) is None


@pytest.mark.parametrize("ending", ["wal", "idx"])
def test_a_file_that_was_written_or_replaced_is_mapped_again(
    log: DirectoryLog, ending: str
) -> None:
    """By a repair, or by a broker that rebuilds an index; a missing file is not held either."""
    segment, kept = sealed(log.path), HeldSegments()
    path = segment_files(log.path)[0].with_suffix(f".{ending}")

    def is_held() -> bool:
        kept.give(segment)
        return kept.take(segment.first_id, segment.last_id) is segment

    assert is_held()
    content, before = path.read_bytes(), path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert not is_held()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_held()
    path.rename(path.with_suffix(".old"))
    assert not is_held()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_held()


def test_another_last_id_is_another_segment(log: DirectoryLog) -> None:
    """The list of segments says where one ends."""
    segment, kept = sealed(log.path), HeldSegments()
    kept.give(segment)

    assert kept.take(segment.first_id, segment.last_id + 1) is None


def test_a_growing_or_a_fully_verified_segment_is_not_held(log: DirectoryLog) -> None:
    """The one changes, and the other would never be verified again."""
    kept = HeldSegments()
    growing = int(segment_files(log.path)[-1].stem)
    walked = sealed(log.path)
    walked.doubt()
    for segment in (Segment(log.path, growing, len(BODIES), sealed=False), walked):
        kept.give(segment)
        assert kept.take(segment.first_id, segment.last_id) is None


def three_segments(path: Path) -> list[Segment]:
    """Return the first three segments of a log, which are sealed."""
    first_ids = [int(found.stem) for found in segment_files(path)[:4]]
    return [
        Segment(path, first, following - 1, sealed=True)
        for first, following in pairwise(first_ids)
    ]


def held_of(kept: HeldSegments, segments: list[Segment]) -> list[bool]:
    """Say which segments are held, and take them out."""
    found = [kept.take(segment.first_id, segment.last_id) for segment in segments]
    return [segment is not None for segment in found]


def bounded(monkeypatch: pytest.MonkeyPatch, by: str, segments: list[Segment]) -> HeldSegments:
    """Return a holder with room for two segments, by their number or by their bytes."""
    if by == "number":
        monkeypatch.setattr(held, "HELD_SEGMENTS_MAX", 2)
        return HeldSegments()
    return HeldSegments(sum(segment.mapped_bytes for segment in segments) - 1)


@pytest.mark.parametrize("by", ["number", "bytes"])
def test_segments_of_the_last_read_are_held_rather_than_older_ones(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Mapped files stay open and their pages count, so there are bounds."""
    segments = three_segments(log.path)
    kept = bounded(monkeypatch, by, segments)
    for segment in segments:
        kept.begin_read([segment.first_id for segment in segments])
        kept.give(segment)

    assert [False, True, True] == held_of(kept, segments)


@pytest.mark.parametrize("by", ["number", "bytes"])
def test_a_read_of_more_segments_than_fit_finds_the_first_of_them_again(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """If the oldest were always dropped, each would go just before its turn."""
    segments = three_segments(log.path)
    kept = bounded(monkeypatch, by, segments)
    reads = []
    for _ in range(3):
        kept.begin_read([segment.first_id for segment in segments])
        reads.append(held_of(kept, segments))
        for segment in segments:
            kept.give(segment)

    assert [[False, False, False], *[[True, True, False]] * 2] == reads


def test_the_bytes_of_a_segment_are_those_of_both_its_files(log: DirectoryLog) -> None:
    """Pages of the index are mapped as well."""
    segment = sealed(log.path)
    file = segment_files(log.path)[0]

    assert file.stat().st_size + file.with_suffix(".idx").stat().st_size == segment.mapped_bytes


@pytest.mark.parametrize(
    ("topic", "record_cost_bytes"), [("rare", 0), ("often", 0), ("often", MIB)]
)
def test_every_read_verifies_what_it_uses(
    log: DirectoryLog, topic: str, record_cost_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records by their own checksums, or by those of their blocks where that is less work."""
    monkeypatch.setattr(verifying, "RECORD_COST_BYTES", record_cost_bytes)
    log.read(topics=[topic])
    first = segment_files(log.path)[0]
    at = first.read_bytes().index(b"payload" if topic == "rare" else b"x" * 30)
    flip_unnoticed(first, at)

    with pytest.raises(DamagedLogError):
        log.read(topics=[topic])


def test_every_read_verifies_the_index_rows_that_it_uses(log: DirectoryLog) -> None:
    """A row that has changed since the last read is rebuilt, and the result is the same."""
    expected = log.read(topics=["often"], columns=["offset", "timestamp"])
    flip_unnoticed(segment_files(log.path)[0].with_suffix(".idx"), 32 + 5 * 32 + 8)

    assert expected == log.read(topics=["often"], columns=["offset", "timestamp"])


def test_segments_that_retention_deleted_are_released(tmp_path: Path) -> None:
    """At the next call, whichever it is, so that the disk space is freed."""
    with log_of(tmp_path, BODIES, segment_bytes=MEDIUM) as wal:
        log = DirectoryLog(tmp_path)
        log.read(topics=["rare"])
        file = str(segment_files(tmp_path)[0])
        retain_from(wal, 201)
        assert any(file in mapped for mapped in files_mapped(tmp_path))
        log.offsets()

        assert not any(file in mapped for mapped in files_mapped(tmp_path))
        expected = columnar.read(tmp_path, topics=["rare"])
        assert expected == log.read(topics=["rare"])


def test_a_closed_log_holds_nothing_and_can_be_read_again(log: DirectoryLog) -> None:
    """It gives the same rows."""
    expected = log.read(topics=["rare"])
    assert files_mapped(log.path)
    log.close()

    assert not files_mapped(log.path)
    assert expected == log.read(topics=["rare"])


def test_a_log_that_was_pickled_holds_nothing(log: DirectoryLog) -> None:
    """It is for a Spark task, whose memory must not grow with the log."""
    copied = pickle.loads(pickle.dumps(log))  # noqa: S301 - it is our own
    assert log.read(topics=["rare"]) == copied.read(topics=["rare"])
    log.close()

    assert not files_mapped(log.path)
    copied.close()
    assert "DirectoryLog" in repr(copied)


ROOM_FOR_ONE = """
import resource, sys
from braidmq import columnar

path, room = sys.argv[1], int(sys.argv[2])
with columnar.open_log(path) as log:
    log.read(topics=["rare"], end=2)  # loads whatever a first read needs
    log.close()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
    print(log.read(topics=["rare"]).num_rows)
"""


def test_less_is_held_where_address_space_is_limited(tmp_path: Path) -> None:
    """Spark can limit what its Python processes may map, and so can `ulimit`."""
    bodies = [message("rare", b"x"), *[message("often", b"y" * MIB) for _ in range(12)]] * 8
    write_log(tmp_path, bodies, segment_bytes=12 * MIB)
    assert len(segment_files(tmp_path)) >= 8
    command = [sys.executable, "-c", ROOM_FOR_ONE, str(tmp_path), str(40 * MIB)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert ("8\n", 0) == (run.stdout, run.returncode), run.stderr


def searched_segments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the segments whose topics are searched from now on."""
    searched: list[int] = []
    remember = Segment.remember

    def recording(self: Segment, question: Question, chosen: Numbers) -> None:
        searched.append(self.first_id)
        remember(self, question, chosen)

    monkeypatch.setattr(Segment, "remember", recording)
    return searched


def test_the_positions_of_few_records_are_remembered(
    log: DirectoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the topics that were read last; those of a common topic would take too much."""
    searched = searched_segments(monkeypatch)
    first_ids = [int(path.stem) for path in segment_files(log.path)]
    log.read(topics=["rare"])
    assert first_ids == searched
    log.read(topics=["rare"])
    assert [*first_ids, first_ids[-1]] == searched  # the last one grows
    searched.clear()
    for _ in range(2):
        log.read(topics=["often"])

    assert first_ids * 2 == searched


RARE = [message(topic, b"payload") for topic in ("a", "b", "c")]
MIXED = [body for rare in RARE * 8 for body in (rare, *COMMON)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments, which is only read."""
    return write_log(tmp_path_factory.mktemp("mixed"), MIXED, segment_bytes=2 * MEDIUM)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_read_is_answered_with_the_rows_of_another(mixed: Path, data: st.DataObject) -> None:
    """Whatever is remembered of earlier reads."""
    some = st.lists(st.sampled_from(["a", "b", "c", "often", "none"]), unique=True)
    edge = st.integers(0, len(MIXED) + 2)
    question = st.fixed_dictionaries(
        {"topics": some}, optional={"start": edge, "end": edge, "qos": st.just(0)}
    )
    with DirectoryLog(mixed) as log:
        for wanted in data.draw(st.lists(question, min_size=2, max_size=6)):
            options: Any = {"fail_on_data_loss": False, **wanted}
            assert columnar.read(mixed, **options) == log.read(**options)


def test_threads_can_share_a_log(log: DirectoryLog) -> None:
    """Each read has segments of its own."""
    wanted = [["rare"], ["often"], ["rare", "often"], ["none"]] * 10
    expected = [columnar.read(log.path, topics=topics) for topics in wanted]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda topics: log.read(topics=topics), wanted))

    assert expected == found


def compared_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the index rows that are compared with their records from now on."""
    compared: list[tuple[int, int]] = []
    check = GrowingIndex._check  # noqa: SLF001 - to record its calls

    def recording(self: GrowingIndex, first: int, last: int) -> None:
        compared.append((first, last))
        check(self, first, last)

    monkeypatch.setattr(GrowingIndex, "_check", recording)
    return compared


def test_rows_of_a_growing_segment_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that only new ones are; every read verifies the records that it uses."""
    with log_of(tmp_path, BODIES, segment_bytes=MIB) as wal, DirectoryLog(tmp_path) as log:
        expected = log.read(topics=["rare"])
        compared = compared_rows(monkeypatch)
        assert expected == log.read(topics=["rare"])
        assert [] == compared
        write(wal, BODIES[:40])
        assert columnar.read(log.view(), topics=["rare"]) == log.read(topics=["rare"])
        assert [(len(BODIES), len(BODIES) + 40)] == compared
    flip_unnoticed(segment_files(tmp_path)[0], 32 + 60)

    with pytest.raises(DamagedLogError):
        log.read(topics=["rare"])


def test_rows_in_the_middle_of_a_growing_segment_are_compared_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons are remembered from the first row on, and not for common topics."""
    with log_of(tmp_path, BODIES, segment_bytes=MIB), DirectoryLog(tmp_path) as log:
        compared = compared_rows(monkeypatch)
        for _ in range(2):
            log.read(topics=["rare"], start=101, end=201)
        assert [(100, 200)] * 2 == compared
        log.read(topics=["rare"])
        compared.clear()
        log.read(topics=["often"])

        assert [(1, len(BODIES))] == compared


def test_a_growing_segment_that_was_replaced_is_checked_again(tmp_path: Path) -> None:
    """Another file, or one that was created at another time, has rows of its own."""
    path = tmp_path / "log"
    write_log(path, BODIES, segment_bytes=MIB)
    log = DirectoryLog(path)
    log.read(topics=["rare"])
    path.rename(tmp_path / "old")
    write_log(path, BODIES[::-1], segment_bytes=MIB)

    assert columnar.read(path, topics=["rare"]) == log.read(topics=["rare"])


def test_nothing_is_remembered_of_a_growing_segment_with_a_gap(tmp_path: Path) -> None:
    """A repair has replaced several records by one."""
    write_log(tmp_path, BODIES, segment_bytes=MIB)
    segment = Segment(tmp_path, 1, len(BODIES), sealed=False)
    rows = segment.rows.copy()
    rows["kind"][7] = GAP_KIND
    known = np.ones(9, np.uint32)

    assert not len(GrowingIndex(rows, segment.buffer, 1, known).numbers)
    assert 9 == len(GrowingIndex(segment.rows, segment.buffer, 1, known).numbers)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(["write", "retain", "few", "many"]), max_size=20),
)
def test_an_open_log_reads_what_the_directory_has(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    """Whatever has happened since the last read: the log grows, rotates and shrinks."""
    dice, path = Random(seed), tmp_path_factory.mktemp("log")
    wal, log = open_log(path), DirectoryLog(path)
    for step in steps:
        if step == "write":
            topics = dice.choices(["a", "b"], [1, 99], k=dice.randrange(200))
            write(wal, [message(topic, dice.randbytes(9)) for topic in topics])
        elif step == "retain":
            retain_from(wal, dice.randint(1, columnar.offsets(path).latest))
        else:
            wanted = ["a"] if step == "few" else ["a", "b"]
            assert columnar.read(path, topics=wanted) == log.read(topics=wanted)
    wal.close()
