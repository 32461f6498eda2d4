"""The progress that a command shows."""

import pytest

from braidmq.cli.progress import progress, telling, waiting


def test_no_progress_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """The calls are the same."""
    with progress("x") as advance, waiting("y"):
        advance(1, 2)

    assert ("", "") == capfd.readouterr()


def test_lines_about_pipelines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """So that stdout stays free for output."""
    with telling() as tell:
        tell("archive: batch 0")

    assert ("", "archive: batch 0\n") == capsys.readouterr()
