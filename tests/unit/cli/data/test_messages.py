"""`braidmq publish` and `braidmq subscribe`: what they refuse before they connect."""

import sys
from pathlib import Path

import pytest

from braidmq.cli.main import main


def test_a_broker_that_does_not_listen_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with the address and without the key."""
    assert 1 == main(["publish", "t", "x", "--url", "blip://some-key@127.0.0.1:1"])
    line = capsys.readouterr().err
    assert line.startswith("error: cannot connect to 127.0.0.1:1: ")
    assert "some-key" not in line


@pytest.mark.parametrize("header", ["a", "=b"])
def test_a_header_is_name_and_value(capsys: pytest.CaptureFixture[str], header: str) -> None:
    """Anything else is refused before a connection is opened."""
    assert 2 == main(["publish", "t", "x", "--header", header])
    assert "error: --header: must be NAME=VALUE\n" == capsys.readouterr().err


def test_a_payload_has_a_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No more of standard input is read than could be sent."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    with large.open("r", encoding="latin-1") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert 2 == main(["publish", "t", "-"])
    assert "error: PAYLOAD: must be at most 16777216 bytes\n" == capsys.readouterr().err
