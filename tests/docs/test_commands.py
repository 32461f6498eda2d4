"""Commands that are only told are commands."""

import shlex
from typing import Final

import pytest

from braidmq.cli.main import main
from tests.docs.test_snippets import blocks

GENERATED: Final = "docs/reference/command-line.md"
"""Made from the commands themselves."""


def only_told() -> list[str]:
    """Return the commands of ours in blocks that are not run."""
    texts = [b.text for b in blocks() if b.label in {"", "text"} and b.document != GENERATED]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("braidmq ")]


@pytest.mark.parametrize("line", only_told())
def test_a_command_that_is_only_told_is_one(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it would need root, or a machine of its own: its name and its options are known."""
    assert 0 == main([*shlex.split(line, comments=True)[1:], "--help"]), capsys.readouterr()
