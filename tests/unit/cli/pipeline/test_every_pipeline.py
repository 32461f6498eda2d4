"""The options that every pipeline has, under the same names.

`tests/integration/spark/test_every_pipeline.py` tests them in runs with a session.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from braidmq.cli.main import main
from braidmq.spark.pipelines import archive, typed
from braidmq.spark.pipelines.replay import replay
from braidmq.spark.pipelines.report import report
from braidmq.spark.pipelines.rollup import rollup
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.times import Trigger
from tests.unit.columnar.logs import message, write_log

OWN: Final = {
    "archive": [],
    "typed": ["--typed=t=sensor.Temperature"],
    "rollup": ["--schema-id=sensor.Temperature", "--subscribe=t", "--no-topic"],
    "replay": ["--name=n", "--api-key=k"],
    "report": [],
}
"""What each needs in addition."""

MODULES: Final = {
    "archive": archive,
    "typed": typed,
    "rollup": rollup,
    "replay": replay,
    "report": report,
}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the pipelines were called with."""
    found: list[Plan] = []

    def run(plan: Plan, *_more: Any) -> None:  # noqa: ANN401 - each has its own
        found.append(plan)

    for name, module in MODULES.items():
        monkeypatch.setattr(module, name, run)
    return found


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("log", ["--path=data", "--endpoint=grpc://h:1"])
def test_the_common_options_are_those_of_every_pipeline(
    plans: list[Plan], name: str, log: str
) -> None:
    """So one script can run any of them; each receives them all."""
    common = ["--checkpoint=place", "--trigger=10s", "--format=delta", "--master=spark://h:1"]
    arguments = ["pipeline", name, *OWN[name], log, "--out=out", *common]
    if name == "replay":
        arguments.append("--table=rows")  # --format is the table's
    assert 0 == main(arguments)

    (plan,) = plans
    assert (Path("out").absolute(), Path("place").absolute()) == (plan.out, plan.checkpoint)
    assert (Trigger(10_000), "spark://h:1") == (plan.trigger, plan.master)
    assert plan.format == ("parquet" if name == "replay" else "delta")


REFUSED: Final = {
    "replay --trigger 10s": "error: --trigger: the end of a replay is fixed when it begins: "
    "use available-now, and another --name for later messages\n",
    **{
        f"{name} --format orc": "error: --format: 'orc' is unknown: parquet or delta\n"
        for name in OWN
    },
    **{
        f"{name} --trigger soon": "error: --trigger: 'soon' is neither available-now nor an "
        "interval such as 10s\n"
        for name in OWN
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_common_option_is_refused_by_its_name(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the reason, and before Spark is started."""
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "data", [message("t", b"x")])
    name, *arguments = case.split()

    assert 2 == main(["pipeline", name, *OWN[name], "--path=data", "--out=o", *arguments])
    assert REFUSED[case] == capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_replay_needs_only_one_of_out_and_checkpoint(
    plans: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    """With neither, the error names the one that other pipelines need."""
    arguments = ["pipeline", "replay", *OWN["replay"], "--path=data"]
    assert 0 == main([*arguments, "--out=out"])
    assert 0 == main([*arguments, "--checkpoint=place"])
    assert 2 == main(arguments)

    out, place = Path("out").absolute(), Path("place").absolute()
    assert [(out, None), (place, place)] == [(plan.out, plan.checkpoint) for plan in plans]
    assert "error: --out: is required, or --checkpoint\n" == capsys.readouterr().err
