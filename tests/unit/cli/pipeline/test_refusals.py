"""Rollup, replay and report on the command line: invalid options are refused in one line."""

from pathlib import Path

import pytest

from braidmq.cli.main import main

SCHEMA = "--schema-id=sensor.Temperature"
REFUSED = {
    "rollup without topics": (
        ["rollup", "--path=x", "--out=o", SCHEMA, "--no-topic"],
        "--subscribe: is missing; name the topics with readings",
    ),
    "rollup of commands": (
        ["rollup", "--path=x", "--out=o", "--schema-id=control.Command", "--no-topic"],
        "'control.Command' is not a schema of readings",
    ),
    "rollup to a topic without a key": (
        ["rollup", "--path=x", "--out=o", SCHEMA, "--subscribe=t"],
        "option apiKey: '' is missing",
    ),
    "rollup with an invalid watermark": (
        ["rollup", "--path=x", "--out=o", SCHEMA, "--subscribe=t", "--watermark=soon"],
        "--watermark: 'soon' is not a duration",
    ),
    "rollup that closes without an end": (
        ["rollup", "--path=x", "--out=o", SCHEMA, "--no-topic", "--close", "--trigger=10s"],
        "--close: needs --trigger available-now",
    ),
    "replay of a table with a time": (
        ["replay", "--path=x", "--name=n", "--checkpoint=c", "--table=t", "--from=2026-11-16"],
        "--table: '2026-11-16' selects from the log and cannot be combined with it",
    ),
    "replay from an invalid time": (
        ["replay", "--path=x", "--name=n", "--checkpoint=c", "--from=yesterday"],
        "--from: 'yesterday' is not a time",
    ),
    "replay at a rate of zero": (
        ["replay", "--path=x", "--name=n", "--checkpoint=c", "--api-key=k", "--rate=0"],
        "--rate: 0 must be greater than 0",
    ),
    "report of two logs": (
        ["report", "--path=x", "--endpoint=grpc://a:1", "--out=o"],
        "--path: give either --path or --endpoint",
    ),
    "report of a topic with no schema": (
        ["report", "--path=x", "--out=o", "--typed=t"],
        "--typed: 't' is not TOPIC=SCHEMA",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_options_are_refused_in_one_line(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the option, the value and the fix; exit 2, and nothing is begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAIDMQ_API_KEY", raising=False)
    arguments, problem = REFUSED[case]

    assert 2 == main(["pipeline", *arguments])
    line = capsys.readouterr().err
    assert problem in line
    assert 1 == line.count("\n")
    assert [] == list(tmp_path.iterdir())
