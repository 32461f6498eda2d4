"""The rollup's wishes, refused before a JVM is started. Runs are tested with one."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.rollup.rollup import Wish, rollup
from braidmq.spark.pipelines.runs.guards import held
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.times import Trigger

SINK = {"endpoint": "grpc://127.0.0.1:1", "apiKey": "k"}
REFUSED = {
    "no readings": (
        Wish("control.Command"),
        Trigger(),
        "'control.Command' is not a schema of readings",
    ),
    "no schema": (Wish("sensor.Nothing"), Trigger(), "there is no schema 'sensor.Nothing'"),
    "no end": (Wish("sensor.Humidity", close=True), Trigger(10_000), "--close: needs"),
    "no key": (Wish("sensor.Humidity", sink={"endpoint": "grpc://a:1"}), Trigger(), "apiKey"),
    "no number": (Wish("sensor.Humidity", value="x"), Trigger(), "'x' is not a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wish_that_cannot_be_is_refused_at_once(case: str, tmp_path: Path) -> None:
    """With the option's name, and without a JVM or a directory."""
    wish, trigger, problem = REFUSED[case]
    source = {"path": str(tmp_path), "subscribe": "temp"}
    plan = Plan(source, tmp_path / "out", trigger=trigger)

    with pytest.raises(ConfigError, match=problem):
        rollup(plan, wish, print)
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
        rollup(plan, Wish("sensor.Humidity"), print)


def test_a_checkpoint_is_used_by_one_run(tmp_path: Path) -> None:
    """A second one would remove what the first is writing."""
    source = {"path": str(tmp_path), "subscribe": "temp"}
    plan = Plan(source, tmp_path / "out", tmp_path / "state")
    with (
        held(tmp_path / "state", "--checkpoint"),
        pytest.raises(ConfigError, match=r"--checkpoint: .*state is being used by another run"),
    ):
        rollup(plan, Wish("sensor.Humidity", sink=SINK), print)
