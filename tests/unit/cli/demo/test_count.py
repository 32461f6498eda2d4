"""The demo's count: one verdict from many lines, and colours on terminals only."""

import io
import sys

import pytest

from braidmq.cli.demo.count import Line, summarize


def test_the_verdict_needs_every_line_to_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """One disagreement is enough, and is shown with its numbers."""
    good = Line("good", {1, 2}, {1, 2}, "a note")
    bad = Line("bad", {1, 2, 3}, {3, 4})

    assert summarize([good])
    assert "The counts agree" in capsys.readouterr().out
    assert not summarize([good, bad])
    out = capsys.readouterr().out
    assert "NO: 2 missing, 1 extra" in out
    assert "THE COUNTS DO NOT AGREE." in out


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe there are none, and NO_COLOR is honoured."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    summarize([Line("good", {1}, {1})])
    assert "\x1b[" in terminal.getvalue()

    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    summarize([Line("good", {1}, {1})])
    assert "\x1b[" not in terminal.getvalue()
