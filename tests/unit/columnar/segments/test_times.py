"""Finding ids by time, and topics by a range of ids."""

from pathlib import Path

import pytest

from braidmq.base.errors import DamagedLogError
from braidmq.columnar.segments.views import DurableView, offset_at, topic_names
from tests.unit.columnar.logs import (
    NOTE,
    flip,
    log_of,
    message,
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
