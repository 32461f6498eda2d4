"""Finding ids by time, and topics by a range of ids."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from braidmq import columnar
from braidmq.base.errors import DamagedLogError
from braidmq.broker.records import describe, encode_clock
from braidmq.columnar.segments.held import HeldSegments
from braidmq.columnar.segments.segments import Segment
from braidmq.columnar.segments.times import offset_at, offset_behind
from braidmq.columnar.segments.views import DurableView, topic_names
from braidmq.wal.disk import Disk
from braidmq.wal.maintenance.repair import repair
from tests.unit.columnar.logs import (
    NOTE,
    Row,
    flip,
    log_of,
    message,
    offsets_of,
    plain_rows,
    retain_from,
    segment_files,
    write_log,
)


@pytest.fixture(scope="module")
def timed_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    """A log with pairs of equal times, and segments without any message."""
    times = [10 * (i // 2) for i in range(200)]
    bodies = [message("t", b"x" * 100, at) for at in times]
    bodies[90:90] = [NOTE] * 400
    bodies += [NOTE] * 400
    placed = [(i + 1, at) for i, at in enumerate([*times[:90], *[None] * 400, *times[90:]])]
    messages = [(number, at) for number, at in placed if at is not None]
    return write_log(tmp_path_factory.mktemp("timed"), bodies), messages


@pytest.mark.parametrize("moment", [-5, 0, 1, 10, 449, 450, 451, 455, 980, 990])
def test_a_moment_gives_the_first_message_since(
    timed_log: tuple[Path, list[tuple[int, int]]], moment: int
) -> None:
    """The answer may be any id between it and the message before it."""
    path, messages = timed_log
    found = offset_at(DurableView(path), moment)

    assert [number for number, at in messages if at >= moment] == [
        number for number, _ in messages if number >= found
    ]


def test_a_moment_after_every_message_gives_the_end(
    timed_log: tuple[Path, list[tuple[int, int]]],
) -> None:
    """No message follows it."""
    path, messages = timed_log
    last = messages[-1][0]

    assert last < offset_at(DurableView(path), 991) <= DurableView(path).latest


def test_segments_that_disappear_during_the_search_are_older(tmp_path: Path) -> None:
    """Retention deletes the oldest, so the answer is among those that are left."""
    bodies = [message("t", b"x" * 100, i) for i in range(200)]
    with log_of(tmp_path, bodies) as wal:
        view = DurableView(tmp_path)
        retain_from(wal, 150)

        assert 181 == offset_at(view, 180)
        assert offset_at(view, 5) <= wal.first_id


def stepped(steps: dict[int, int], count: int = 400) -> list[bytes]:
    """Messages and notes, with the times that a clock gives which is set at some of them."""
    bodies: list[bytes] = []
    now_us = 5_000
    for number in range(count):
        if number in steps:
            now_us += steps[number]
            bodies.append(encode_clock(steps[number], now_us))
        bodies.append(
            NOTE if number % 5 == 4 else message(f"t{number % 3}", b"x" * 100, now_us)
        )
        now_us += 3
    return bodies


# Of about 30 records in a segment: alone, twice in one segment, in the last, which grows.
STEPS: dict[str, dict[int, int]] = {
    "none": {},
    "forwards": {100: 10_000},
    "back": {200: -500},
    "forwards and back": {100: 10_000, 250: -10_500},
    "within a segment": {103: 10_000, 106: -10_010},
    "in the last segment": {396: -900},
    "often": {40 * number: (-1) ** number * 700 for number in range(1, 10)},
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "no_index"])
def test_a_read_by_time_is_exact_whatever_the_clock_did(
    tmp_path: Path, steps: dict[int, int], *, indexed: bool
) -> None:
    """It returns the rows with these timestamps, all and no others, also of single topics."""
    path = write_log(tmp_path, stepped(steps))
    if not indexed:
        for index in (path / "wal").glob("*.idx"):
            index.unlink()
    stored = [(row["offset"], row["topic"], micros(row)) for row in plain_rows(path)]
    moments = sorted({at for _, _, at in stored[::37]})[:: 1 if indexed else 3]
    view = DurableView(path)
    for start_us, end_us in pairwise([0, 1, *moments, 20_000]):
        for topic in (None, "t1"):
            wanted = [
                number
                for number, name, at in stored
                if start_us <= at < end_us and topic in {None, name}
            ]
            topics = None if topic is None else [topic]
            found = columnar.read(view, start_time=start_us, end_time=end_us, topics=topics)
            assert wanted == offsets_of(found)
        since = [number for number, _, at in stored if at >= end_us]
        before = [number for number, _, at in stored if at < end_us]
        assert min(since, default=view.latest) == offset_at(view, end_us)
        assert max([0, *before]) < offset_behind(view, end_us) <= view.latest


def micros(row: Row) -> int:
    since: timedelta = row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def test_without_a_step_the_two_offsets_of_a_moment_are_the_same(tmp_path: Path) -> None:
    """So a range by time is not larger than the messages in it."""
    view = DurableView(write_log(tmp_path, stepped({})))

    for moment in range(4_990, 6_300, 61):
        assert offset_at(view, moment) == offset_behind(view, moment)


class Counting(DurableView):
    """A view that counts the segments it opens."""

    opened = 0

    def open(self, first_id: int, held: HeldSegments | None = None) -> Segment | None:
        self.opened += 1
        return super().open(first_id, held)


def test_where_no_step_was_recorded_few_segments_are_read(tmp_path: Path) -> None:
    """A step costs a look at its own segment; without one a search is binary."""
    opened: list[int] = []
    for steps in ({}, {700: -500}):
        path = write_log(tmp_path / str(len(steps)), stepped(steps, 1_500), batch=35)
        view = Counting(path)
        assert len(view.first_ids(0, view.latest)) > 40
        offset_behind(view, 7_000)
        opened.append(view.opened)

    assert opened[0] <= 12
    assert opened[1] <= 24


def test_a_step_that_a_repair_gave_up_is_reckoned_with(tmp_path: Path) -> None:
    """The gap says nothing of it, so its segment counts as one in which times may go back."""
    path = write_log(tmp_path, stepped({150: 10_000, 200: -10_000}))
    for file in segment_files(path):
        for step_us in (10_000, -10_000):
            body = encode_clock(step_us, 0)[:9]
            at = file.read_bytes().find(body)
            if at > 0:
                flip(file, at + 1)
    report = repair(Disk(path), describe, accept_loss=True)
    whole = columnar.read(path, fail_on_data_loss=False)
    stored = [(row["offset"], micros(row)) for row in whole.to_pylist()]

    assert 2 == len(report.damages)
    for moment in (5_100, 5_500, 5_700, 15_500):
        found = columnar.read(path, end_time=moment, fail_on_data_loss=False)
        assert [number for number, at in stored if at < moment] == offsets_of(found)


BODIES = [message(f"t{number // 10}", bytes(500)) for number in range(100)]
EVER = 2**62


def test_the_topics_of_all_segments_are_named(tmp_path: Path) -> None:
    """Including the growing segment; records that are not messages have none."""
    write_log(tmp_path, [*BODIES, NOTE])

    assert len(segment_files(tmp_path)) > 5
    assert ({f"t{n}" for n in range(10)}, 102) == topic_names(tmp_path, 0, EVER)


def test_a_range_names_at_least_its_own_topics(tmp_path: Path) -> None:
    """Segments outside the range are not looked at."""
    write_log(tmp_path, BODIES)
    names, end = topic_names(tmp_path, 41, 51)

    assert 51 == end
    assert "t4" in names
    assert not names & {"t0", "t8", "t9"}
    assert (set(), 0) == topic_names(tmp_path, 0, 0)


def test_topics_that_retention_deleted_are_left_out(tmp_path: Path) -> None:
    """A read of the range reports the loss; the list of names does not."""
    with log_of(tmp_path, BODIES) as wal:
        retain_from(wal, 60)
        names, _ = topic_names(tmp_path, 1, EVER)

    assert {"t6", "t7", "t8", "t9"} <= names
    assert "t0" not in names


def test_the_names_of_a_growing_segment_are_verified(tmp_path: Path) -> None:
    """Its index is trusted only once it agrees with the records."""
    write_log(tmp_path, BODIES[:5], segment_bytes=2**20)
    (segment,) = segment_files(tmp_path)
    flip(segment, 32 + 16 + 30)  # in the first record

    with pytest.raises(DamagedLogError):
        topic_names(tmp_path, 0, EVER)
