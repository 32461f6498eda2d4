"""`braidmq config show`."""

import json
import tomllib
from pathlib import Path

import pytest

from braidmq.cli.main import main

HASH = "sha256:" + 64 * "a"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "braidmq.toml"
    path.write_text(f"[blip]\nport = 7\n[[auth.keys]]\nname = 'a'\nhash = '{HASH}'\n", "utf-8")
    return path


def test_it_prints_the_effective_configuration(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TOML, from the file and the environment, without hashes."""
    monkeypatch.setenv("BRAIDMQ_HTTP__PORT", "8")

    assert 0 == main(["config", "show", "--config", str(config_file)])
    out = capsys.readouterr().out
    shown = tomllib.loads(out)
    assert (7, 8) == (shown["blip"]["port"], shown["http"]["port"])
    assert HASH not in out


def test_the_file_may_be_named_by_the_environment(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BRAIDMQ_CONFIG, unless --config says otherwise."""
    monkeypatch.setenv("BRAIDMQ_CONFIG", str(config_file))

    assert 0 == main(["config", "show"])
    assert "port = 7" in capsys.readouterr().out


def test_it_needs_no_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """It also works before the first one is made."""
    assert 0 == main(["config", "show"])
    assert "port = 5555" in capsys.readouterr().out


def test_a_bad_configuration_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is the same as that of serve."""
    assert 2 == main(["config", "show", "--config", str(tmp_path / "nope.toml")])
    assert capsys.readouterr().err.startswith("error: config: cannot read ")


def test_json_shows_the_same(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs; masked values stay masked."""
    assert 0 == main(["config", "show", "--config", str(config_file)])
    text = capsys.readouterr().out
    assert 0 == main(["config", "show", "--config", str(config_file), "--json"])
    assert tomllib.loads(text) == json.loads(capsys.readouterr().out)
