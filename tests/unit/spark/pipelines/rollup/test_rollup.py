"""The rollup's options, refused before a JVM is started. Runs are tested with one."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.rollup.rollup import (
    LostReadingsError,
    RollupOptions,
    _counted,
    rollup,
)
from braidmq.spark.pipelines.rollup.states import Count, State, Windows
from braidmq.spark.pipelines.runs.guards import held
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.times import Trigger

SINK = {"endpoint": "grpc://127.0.0.1:1", "apiKey": "k"}
REFUSED = {
    "no readings": (
        RollupOptions("control.Command"),
        Trigger(),
        "'control.Command' is not a schema of readings",
    ),
    "no schema": (
        RollupOptions("sensor.Nothing"),
        Trigger(),
        "there is no built-in schema 'sensor.Nothing'",
    ),
    "no end": (RollupOptions("sensor.Humidity", close=True), Trigger(10_000), "--close: needs"),
    "no key": (
        RollupOptions("sensor.Humidity", sink={"endpoint": "grpc://a:1"}),
        Trigger(),
        "apiKey",
    ),
    "no number": (
        RollupOptions("sensor.Humidity", value="x"),
        Trigger(),
        "'x' is not a number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_are_refused_at_once(case: str, tmp_path: Path) -> None:
    """With the option's name, and without a JVM or a directory."""
    options, trigger, problem = REFUSED[case]
    source = {"path": str(tmp_path), "subscribe": "temp"}
    plan = Plan(source, tmp_path / "out", trigger=trigger)

    with pytest.raises(ConfigError, match=problem):
        rollup(plan, options, print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ({}, "is missing; name the topics with readings of 'sensor.Humidity'"),
        ({"subscribe": "a,rollup.sensor.Humidity"}, "which this rollup writes; leave it out"),
        ({"subscribePattern": ".*"}, "has the topic 'rollup.sensor.Humidity'"),
    ],
    ids=str,
)
def test_a_rollup_does_not_read_everything(
    topics: dict[str, str], problem: str, tmp_path: Path
) -> None:
    """All that is no reading would be in quarantine, and what it writes itself first of all."""
    plan = Plan({"path": str(tmp_path), **topics}, tmp_path / "out")

    with pytest.raises(ConfigError, match=f"--subscribe: .*{problem}"):
        rollup(plan, RollupOptions("sensor.Humidity"), print)


def test_a_checkpoint_is_used_by_one_run(tmp_path: Path) -> None:
    """A second one would remove what the first is writing."""
    source = {"path": str(tmp_path), "subscribe": "temp"}
    plan = Plan(source, tmp_path / "out", tmp_path / "state")
    with (
        held(tmp_path / "state", "--checkpoint"),
        pytest.raises(ConfigError, match=r"--checkpoint: .*state is being used by another run"),
    ):
        rollup(plan, RollupOptions("sensor.Humidity", sink=SINK), print)


class Counted(Windows):
    """Windows of which only the numbers matter."""

    def __init__(self, closed: Count, still_open: Count) -> None:
        super().__init__(Path(), [])
        self._counts = closed, still_open

    def count(self, watermark_ms: int | None) -> tuple[Count, Count]:
        return self._counts


STATE = State(schema_id="s", value="v", query_id="q", end="p", rows=10, late=2, invalid=1)


def test_rows_are_counted_late_or_invalid() -> None:
    """The readings that were held before are in the windows too, and are no rows of it."""
    found = _counted(STATE, Counted(Count(3, 8), Count(2, 4)), 0, held_before=5)

    assert (3, 2, 4) == (found.closed, found.open, found.held)


@pytest.mark.parametrize("open_readings", [3, 5])
def test_a_row_too_many_or_too_few_stops_the_batch(open_readings: int) -> None:
    """It says the numbers that do not add up."""
    found = Counted(Count(3, 8), Count(2, open_readings))

    with pytest.raises(LostReadingsError, match=r"of 10 rows .* 2 were late and 1 invalid"):
        _counted(STATE, found, 0, held_before=5)
