"""Commands in `text` blocks exist."""

import shlex
from typing import Final

import pytest

from braidmq.cli.main import main
from tests.docs.test_snippets import blocks

GENERATED: Final = "docs/reference/command-line.md"
"""Generated from the commands themselves."""


def commands_not_run() -> list[str]:
    """Return our own commands in blocks that are not run."""
    texts = [b.text for b in blocks() if b.label in {"", "text"} and b.document != GENERATED]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("braidmq ")]


@pytest.mark.parametrize("line", commands_not_run())
def test_a_command_that_is_not_run_exists(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its options; running it would need root or a whole machine."""
    assert 0 == main([*shlex.split(line, comments=True)[1:], "--help"]), capsys.readouterr()
