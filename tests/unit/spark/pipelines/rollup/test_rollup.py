"""The rollup's options and counts, without a JVM; tests/integration/spark has whole runs."""

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
    "a schema without readings": (
        RollupOptions("control.Command"),
        Trigger(),
        "'control.Command' is not a schema of readings",
    ),
    "an unknown schema": (
        RollupOptions("sensor.Nothing"),
        Trigger(),
        "there is no schema 'sensor.Nothing'",
    ),
    "close without an end": (
        RollupOptions("sensor.Humidity", close=True),
        Trigger(10_000),
        "--close: needs",
    ),
    "no key": (
        RollupOptions("sensor.Humidity", sink={"endpoint": "grpc://a:1"}),
        Trigger(),
        "apiKey",
    ),
    "an unknown number": (
        RollupOptions("sensor.Humidity", value="x"),
        Trigger(),
        "'x' is not a number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_options_are_refused_at_once(case: str, tmp_path: Path) -> None:
    """The error names the option; no JVM starts, and no directory is made."""
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
def test_a_rollup_must_not_read_every_topic(
    topics: dict[str, str], problem: str, tmp_path: Path
) -> None:
    """Messages that are not readings would fill the quarantine, its own output first of all."""
    plan = Plan({"path": str(tmp_path), **topics}, tmp_path / "out")

    with pytest.raises(ConfigError, match=f"--subscribe: .*{problem}"):
        rollup(plan, RollupOptions("sensor.Humidity"), print)


def test_a_checkpoint_is_used_by_one_run(tmp_path: Path) -> None:
    """A second run would remove what the first is writing."""
    source = {"path": str(tmp_path), "subscribe": "temp"}
    plan = Plan(source, tmp_path / "out", tmp_path / "state")
    with (
        held(tmp_path / "state", "--checkpoint"),
        pytest.raises(ConfigError, match=r"--checkpoint: .*state is being used by another run"),
    ):
        rollup(plan, RollupOptions("sensor.Humidity", sink=SINK), print)


class Counted(Windows):
    """Windows that report the counts they were given."""

    def __init__(self, closed: Count, still_open: Count) -> None:
        super().__init__(Path(), [])
        self._counts = closed, still_open

    def count(self, watermark_ms: int | None) -> tuple[Count, Count]:
        return self._counts


STATE = State(schema_id="s", value="v", query_id="q", end="p", rows=10, late=2, invalid=1)


def test_every_row_is_counted_late_or_invalid() -> None:
    """Readings held before the batch are in the windows too, but are not rows of it."""
    found = _counted(STATE, Counted(Count(3, 8), Count(2, 4)), 0, held_before=5)

    assert (3, 2, 4) == (found.closed, found.open, found.held)


@pytest.mark.parametrize("open_readings", [3, 5])
def test_a_row_too_many_or_too_few_stops_the_batch(open_readings: int) -> None:
    """The error has the numbers that do not add up."""
    found = Counted(Count(3, 8), Count(2, open_readings))

    with pytest.raises(LostReadingsError, match=r"of 10 rows .* 2 were late and 1 invalid"):
        _counted(STATE, found, 0, held_before=5)
