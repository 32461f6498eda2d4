"""The list of commands in --help."""

import pytest

from braidmq.cli.main import main


@pytest.mark.parametrize("arguments", [["--help"], ["queue", "--help"], ["pipeline", "--help"]])
def test_descriptions_are_wrapped_and_never_cut(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence that ends in dots tells nothing; lines still fit into a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "60")

    assert 0 == main(arguments)
    printed = capsys.readouterr().out
    assert "Commands:" in printed
    assert "..." not in printed.partition("Commands:")[2]
    assert [] == [line for line in printed.splitlines() if len(line) > 60]
