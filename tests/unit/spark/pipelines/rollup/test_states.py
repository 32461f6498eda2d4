"""States between micro-batches: complete or absent, and only the newest are kept."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.spark.pipelines.rollup.states import Count, State, StateError, States, Windows
from tests.unit.spark.pipelines.minutes import MINUTE_MS


def state(watermark_ms: int | None = None, files: list[str] | None = None) -> State:
    return State(
        schema_id="s",
        value="v",
        query_id="q",
        end="p",
        watermark_ms=watermark_ms,
        files=files or [],
    )


@pytest.fixture
def states(tmp_path: Path) -> States:
    found = States(tmp_path / "windows")
    found.prepare()
    return found


def staged(states: States, *minutes: tuple[int, int], name: str = "a.staged") -> Windows:
    """Stage windows as a task does; each is a minute's number and its count of readings."""
    directory = states.directory / "_new"
    directory.mkdir()
    table = pa.table(
        {
            "minute_ms": pa.array([minute * MINUTE_MS for minute, _ in minutes], pa.int64()),
            "count": pa.array([readings for _, readings in minutes], pa.int64()),
        }
    )
    pq.write_table(table, directory / name)
    return Windows(directory, [name])


def keep(states: States, batch_id: int, watermark_ms: int | None = None) -> None:
    found = staged(states, (1, 10))
    states.keep(batch_id, state(watermark_ms, found.names), found)


def test_a_batch_begins_with_the_state_before_it(states: States) -> None:
    """The first has none; a closing state replaces the one that it closes."""
    keep(states, 0, 5)
    first = states.before(1)
    states.keep_closing(0, state(99))

    assert states.before(0) is None
    assert first == state(5, ["a.staged"]) == states.find(0)
    assert state(99) == states.before(1) == states.closing(0)
    assert 0 == states.last()


def test_a_missing_state_is_an_error_that_says_what_to_do(states: States) -> None:
    """To continue without it would lose the open minutes."""
    keep(states, 3)

    assert states.find(4) is None
    with pytest.raises(StateError, match="batch 6: the windows before it are missing; restore"):
        states.before(6)


def test_unfinished_windows_are_not_a_state(states: States) -> None:
    """A kill before the rename leaves only files that the next run removes."""
    unfinished = staged(states, (1, 1))

    assert states.last() is None
    assert states.find(0) is None
    states.prepare()
    assert not unfinished.directory.exists()


def test_the_two_newest_states_are_kept(states: States) -> None:
    """Spark may run the last batch again, from the state before it."""
    for batch_id in range(4):
        keep(states, batch_id)
        states.keep_closing(batch_id, state(1))
        states.forget_before(batch_id)

    names = sorted(path.name for path in states.directory.iterdir())

    assert ["0000000002", "0000000002.closing", "0000000003", "0000000003.closing"] == names
    assert state(None, ["a.staged"]) == states.find(2)


def test_windows_are_counted_by_whether_their_minute_has_ended(states: States) -> None:
    """A minute that ends at the watermark is closed; without a watermark none is."""
    found = staged(states, (1, 10), (2, 20), (3, 30))

    assert (Count(2, 30), Count(1, 30)) == found.count(3 * MINUTE_MS)
    assert (Count(1, 10), Count(2, 50)) == found.count(3 * MINUTE_MS - 1)
    assert (Count(0, 0), Count(3, 60)) == found.count(None)
    assert 4 * MINUTE_MS == found.last_end_ms()
    assert 0 == Windows(found.directory, []).last_end_ms()


def test_files_of_dead_tasks_are_not_read(states: States) -> None:
    """A task that died leaves its file behind, and another task does its work."""
    found = staged(states, (1, 10))
    (found.directory / "b.staged").write_bytes(b"half a file")
    states.keep(0, state(files=found.names), found)
    kept = states.find(0)

    assert kept is not None
    assert (Count(0, 0), Count(1, 10)) == states.windows(0, kept).count(None)
