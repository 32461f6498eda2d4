"""`braidmq pipeline`, up to the start of Spark; tests/integration/spark has whole runs."""

from pathlib import Path
from typing import Any

import pytest

from braidmq.cli import checkout
from braidmq.cli.main import main
from braidmq.spark.pipelines import archive, typed
from braidmq.spark.pipelines.rollup import rollup
from braidmq.spark.pipelines.runs.runs import Plan
from braidmq.spark.pipelines.times import Trigger
from braidmq.spark.pipelines.typed import TypedTopics

HEX = "ab" * 32


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments that the pipelines were called with."""
    found: list[Any] = []
    monkeypatch.setattr(archive, "archive", lambda *arguments: found.append(arguments))
    monkeypatch.setattr(typed, "typed", lambda *arguments: found.append(arguments))
    monkeypatch.setattr(rollup, "rollup", lambda *arguments: found.append(arguments))
    monkeypatch.delenv("BRAIDMQ_API_KEY", raising=False)
    return found


def test_an_archive_receives_every_option(given: list[Any], tmp_path: Path) -> None:
    """Under the names that the source has for them."""
    options = {
        "--path": "data",
        "--out": str(tmp_path / "out"),
        "--checkpoint": str(tmp_path / "place"),
        "--subscribe-pattern": "a.*",
        "--starting-offsets": "7",
        "--max-offsets-per-trigger": "100",
        "--trigger": "10s",
        "--format": "delta",
        "--master": "spark://host:7077",
        "--conf": "spark.x=1=2",
    }
    arguments = [word for pair in options.items() for word in pair]
    assert 0 == main(["pipeline", "archive", *arguments, "--compact"])

    source = {
        "path": "data",
        "subscribePattern": "a.*",
        "startingOffsets": "7",
        "maxOffsetsPerTrigger": "100",
    }
    plan = Plan(
        source,
        tmp_path / "out",
        tmp_path / "place",
        Trigger(10_000),
        "delta",
        "spark://host:7077",
        {"spark.x": "1=2"},
        compact=True,
    )
    assert [plan] == [arguments[0] for arguments in given]


def test_an_option_that_is_not_given_has_its_default(given: list[Any]) -> None:
    """All topics, the present backlog, Parquet, all cores of this machine."""
    assert 0 == main(["pipeline", "archive", "--path", "data", "--out", "out"])

    assert Plan({"path": "data"}, Path("out").absolute()) == given[0][0]


def test_a_key_for_an_endpoint_may_be_in_the_environment(
    given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option wins; a path needs no key, except for the cursor of a group."""
    monkeypatch.setenv("BRAIDMQ_API_KEY", "hidden")
    command = ["pipeline", "archive", "--out", "out", "--endpoint", "grpc://h:1"]
    assert 0 == main(command)
    assert 0 == main([*command, "--api-key", "given"])
    of_path = ["pipeline", "archive", "--out", "out", "--path", "data"]
    assert 0 == main(of_path)
    assert 0 == main([*of_path, "--group", "g"])

    keys = [plan.source.get("apiKey") for plan, _ in given]
    assert ["hidden", "given", None, "hidden"] == keys
    assert "g" == given[-1][0].source["groupId"]


STREAMING = {
    "archive": [],
    "typed": ["--typed=t=sensor.Temperature"],
    "rollup": ["--schema-id=sensor.Temperature", "--subscribe=t"],
}


@pytest.mark.parametrize("name", STREAMING)
def test_each_streaming_pipeline_can_have_a_group_and_continue_after_a_loss(
    given: list[Any], name: str
) -> None:
    """Retention waits for a group; without one, the pipeline may skip what is lost."""
    command = ["pipeline", name, "--path=data", "--out=out", *STREAMING[name], "--api-key=k"]
    assert 0 == main([*command, "--group=g"])
    assert 0 == main([*command, "--no-fail-on-data-loss"])
    assert 0 == main([*command, "--fail-on-data-loss"])

    sources = [arguments[0].source for arguments in given]
    assert ["g", None, None] == [source.get("groupId") for source in sources]
    assert [None, "false", None] == [source.get("failOnDataLoss") for source in sources]
    assert "k" == sources[0]["apiKey"]


def test_typed_takes_pairs_or_one_schema(given: list[Any]) -> None:
    """And the keys that open sealed payloads."""
    command = ["pipeline", "typed", "--path", "data", "--out", "out"]
    assert 0 == main([*command, "--typed", "a=s", "--typed", "b=s", "--typed", "c=t"])
    sealed = ["--private-key", "key", "--trust", HEX, "--trust", HEX]
    assert 0 == main([*command, "--schema-id", "s", "--subscribe", "a,b", *sealed])
    (_, pairs, _), (plan, schema, _) = given

    assert [TypedTopics("s", ("a", "b")), TypedTopics("t", ("c",))] == pairs
    assert [TypedTopics("s")] == schema
    assert ("a,b", str(Path("key").absolute()), f"{HEX},{HEX}") == tuple(
        plan.source[name] for name in ("subscribe", "privateKeyFile", "trustedKeys")
    )


ONE_PLACE = "error: --path: give either --path or --endpoint\n"
ONE_WAY = "error: --typed: give either --typed, or --schema-id with --subscribe\n"
REFUSED = {
    "archive --out o": ONE_PLACE,
    "archive --out o --path p --endpoint e": ONE_PLACE,
    "archive --path p": "error: Missing option '--out'; "
    "see `braidmq pipeline archive --help`\n",
    "archive --out o --path p --trigger soon": "error: --trigger: 'soon' is neither "
    "available-now nor an interval such as 10s\n",
    "archive --out o --path p --conf x": "error: --conf: 'x' must be KEY=VALUE\n",
    "typed --out o --path p": ONE_WAY,
    "typed --out o --path p --schema-id s": ONE_WAY,
    "typed --out o --path p --typed a=s --subscribe a": ONE_WAY,
    "typed --out o --path p --typed a=s --schema-id s --subscribe a": ONE_WAY,
    "typed --out o --path p --typed a": "error: --typed: 'a' is not TOPIC=SCHEMA\n",
}


@pytest.mark.parametrize(("arguments", "line"), REFUSED.items())
def test_invalid_options_are_refused_in_one_line(
    given: list[Any], capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    """Before Spark is started."""
    assert 2 == main(["pipeline", *arguments.split()])
    assert line == capsys.readouterr().err
    assert [] == given


def test_an_unknown_format_is_refused_before_spark_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the table, which knows the formats."""
    out = str(tmp_path / "out")
    assert 2 == main(["pipeline", "archive", "--path", "p", "--out", out, "--format", "orc"])

    assert "error: --format: 'orc' is unknown: parquet or delta\n" == capsys.readouterr().err


def test_without_spark_the_error_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra, and most brokers do without."""
    monkeypatch.setattr(checkout, "find_spec", lambda _name: None)
    monkeypatch.setattr(checkout, "clone", lambda: None)
    assert 2 == main(["pipeline", "archive", "--path", "p", "--out", "o"])

    assert "error: a pipeline needs pyspark: make demo, or pip install 'braidmq[spark]'\n" == (
        capsys.readouterr().err
    )
