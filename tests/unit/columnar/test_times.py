"""Times to ids."""

from pathlib import Path

import pytest

from braidmq.columnar.segments.views import DurableView
from braidmq.columnar.times import offset_at
from tests.unit.columnar.logs import NOTE, log_of, message, retain_from, write_log


@pytest.fixture(scope="module")
def timed_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    """Pairs of equal times, with segments that hold no message at all."""
    times = [10 * (i // 2) for i in range(200)]
    bodies = [message("t", b"x" * 100, at) for at in times]
    bodies[90:90] = [NOTE] * 400
    bodies += [NOTE] * 400
    placed = [(i + 1, at) for i, at in enumerate([*times[:90], *[None] * 400, *times[90:]])]
    messages = [(number, at) for number, at in placed if at is not None]
    return write_log(tmp_path_factory.mktemp("timed"), bodies), messages


@pytest.mark.parametrize("moment", [-5, 0, 1, 10, 449, 450, 451, 455, 980, 990])
def test_a_moment_is_the_first_message_since(
    timed_log: tuple[Path, list[tuple[int, int]]], moment: int
) -> None:
    """Ids between it and the message before it have none, whichever of them is the answer."""
    path, messages = timed_log
    found = offset_at(DurableView(path), moment)

    assert [number for number, at in messages if at >= moment] == [
        number for number, _ in messages if number >= found
    ]


def test_a_moment_after_everything_is_the_end(
    timed_log: tuple[Path, list[tuple[int, int]]],
) -> None:
    """No message is behind it, and none has been yet."""
    path, messages = timed_log
    last = messages[-1][0]

    assert last < offset_at(DurableView(path), 991) <= DurableView(path).latest


def test_segments_that_disappear_meanwhile_are_older(tmp_path: Path) -> None:
    """Retention takes the oldest, so the answer is among those that are left."""
    bodies = [message("t", b"x" * 100, i) for i in range(200)]
    with log_of(tmp_path, bodies) as wal:
        view = DurableView(tmp_path)
        retain_from(wal, 150)

        assert 181 == offset_at(view, 180)
        assert offset_at(view, 5) <= wal.first_id
