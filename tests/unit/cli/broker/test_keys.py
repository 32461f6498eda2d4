"""`braidmq keys`."""

import json
import re
from pathlib import Path

import pytest

from braidmq.cli.main import main
from braidmq.server.access.keys import KeyRing, hash_key
from braidmq.server.config.loading import load

NEW = ["keys", "new", 'bi"lling', "--publish", "a.*", "--publish", "b", "--admin"]


def test_new_prints_a_configuration_that_accepts_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with the unchanged output gives the key its permissions."""
    assert 0 == main(NEW)
    out = capsys.readouterr().out
    (key,) = re.findall(r"bk_[A-Za-z0-9_-]{43}", out)
    path = tmp_path / "a.toml"
    path.write_text(out, "utf-8")
    principal = KeyRing(load(path, {}, {}).auth.keys, dev=False).find(key)

    assert principal is not None
    assert ('bi"lling', ["a.*", "b"], [], True) == (
        principal.name,
        principal.publish,
        principal.subscribe,
        principal.admin,
    )


def test_new_as_json_holds_the_key_and_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts that put them in different places."""
    assert 0 == main([*NEW, "--json"])
    printed = json.loads(capsys.readouterr().out)

    assert hash_key(printed["key"]) == printed["hash"]
    assert ["a.*", "b"] == printed["publish"]


@pytest.mark.parametrize("name", ["", "a\nhash = 1", 129 * "a"])
def test_a_bad_name_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """It could not be configured, or would hold more than a name."""
    assert 2 == main(["keys", "new", name])
    captured = capsys.readouterr()
    assert ("", "error: NAME: must be 1 to 128 printable characters\n") == captured


NO_KEYS = "no keys are configured; `braidmq keys new NAME` creates one, "


def test_list_says_what_to_do_where_no_key_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In addition to the table that a script reads; on a terminal instead of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAIDMQ_CONFIG", raising=False)
    assert 0 == main(["keys", "list"])
    piped = capsys.readouterr()
    assert "name\tpublish\tsubscribe\tadmin\n" == piped.out
    assert piped.err.startswith(NO_KEYS)
    assert "dev-key" in piped.err
    assert 0 == main(["keys", "list", "--json"])
    assert ("[]\n", "") == capsys.readouterr()

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert 0 == main(["keys", "list"])
    shown = capsys.readouterr()
    assert "" == shown.out
    assert shown.err.startswith(NO_KEYS)


def test_list_shows_names_and_permissions_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never a key or a hash."""
    path = tmp_path / "a.toml"
    main(NEW)
    path.write_text(capsys.readouterr().out, "utf-8")

    assert 0 == main(["keys", "list", "--config", str(path), "--json"])
    out = capsys.readouterr().out
    assert [
        {"name": 'bi"lling', "publish": ["a.*", "b"], "subscribe": [], "admin": True}
    ] == json.loads(out)
    assert 0 == main(["keys", "list", "--config", str(path)])
    out += capsys.readouterr().out
    assert "sha256" not in out
    assert "bk_" not in out


def test_the_name_may_still_be_given_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts have it; without any name the error says what is missing."""
    assert 0 == main(["keys", "new", "--name", "billing", "--json"])
    assert "billing" == json.loads(capsys.readouterr().out)["name"]
    assert 2 == main(["keys", "new"])
    assert "error: Missing argument 'NAME'" in capsys.readouterr().err
    assert 2 == main(["keys", "new", "a", "--name", "b"])
    assert "error: NAME: was given twice" in capsys.readouterr().err
