"""`braidmq bench`: what it refuses, and a broker that does not listen."""

import pytest

from braidmq.cli.main import main

USAGE = {
    "--messages 5 --duration 2": "--messages: give either --messages or --duration",
    "--percentiles 101": "--percentiles: must be",
    "--plot x.png": "--plot: must be a file that ends in .svg or .html",
    "--plot nowhere/x.svg": "--plot: there is no directory nowhere",
    "--url ftp://k@127.0.0.1:1": "--url: must be http://KEY@HOST:PORT, or the same with blip",
    "--size 10": "--size",
    "--strand amqp": "--strand",
}


@pytest.mark.parametrize(("arguments", "problem"), USAGE.items())
def test_invalid_options_are_a_usage_error(
    arguments: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before anything is started."""
    assert 2 == main(["bench", *arguments.split()])
    line = capsys.readouterr().err
    assert problem in line
    assert 1 == line.count("\n")


def test_a_broker_that_does_not_listen_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line says what to do about it."""
    assert 1 == main(["bench", "--url", "blip://k@127.0.0.1:1"])
    line = capsys.readouterr().err
    assert line.startswith("error: cannot connect to 127.0.0.1:1: ")
    assert line.endswith("; `braidmq serve --dev` starts a broker\n")
