"""What a command says about how far it is."""

import os

import pytest

from braidmq.cli.progress import progress, telling, waiting


def test_nobody_is_told_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    """The same calls, without a terminal."""
    with progress("x") as advance, waiting("y"):
        advance(1, 2)

    assert ("", "") == capfd.readouterr()


def test_lines_about_pipelines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line, so that stdout stays free."""
    with telling() as tell:
        tell("archive: batch 0")

    assert ("", "archive: batch 0\n") == capsys.readouterr()


def test_the_terminal_of_these_tests_is_one() -> None:
    """Else every test above would prove nothing."""
    assert os.path.exists("/dev/ptmx")  # noqa: PTH110 - a device, not a file
