"""`braidmq keygen`: a new key pair, its private half in a file."""

import json
import os
import stat
from pathlib import Path

import pytest

from braidmq.cli.main import main
from braidmq.client.qumbed.boxes import KeyPair


def lines(text: str) -> dict[str, str]:
    """The printed values, by their names."""
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_the_public_key_is_printed_and_the_private_one_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client can read the file, and the private key is not printed."""
    path = tmp_path / "my.key"

    assert 0 == main(["keygen", str(path)])
    captured = capsys.readouterr()
    keys = KeyPair.from_file(path)
    assert {
        "public key": keys.public_key.hex(),
        "key id": keys.public_key[:8].hex(),
        "file": str(path),
    } == lines(captured.out)
    assert keys.reveal_private_key().hex() not in captured.out + captured.err


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_is_for_its_owner_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], umask: int
) -> None:
    """Whatever the user's umask is."""
    before = os.umask(umask)
    try:
        main(["keygen", str(tmp_path / "my.key")])
    finally:
        os.umask(before)

    assert 0o600 == stat.S_IMODE((tmp_path / "my.key").stat().st_mode)
    assert ["my.key"] == [path.name for path in tmp_path.iterdir()]


def test_without_a_name_the_file_is_in_the_working_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair whose private half is nowhere would be useless."""
    monkeypatch.chdir(tmp_path)

    assert 0 == main(["keygen"])
    shown = lines(capsys.readouterr().out)
    assert "qumbed.key" == shown["file"]
    assert shown["public key"] == KeyPair.from_file("qumbed.key").public_key.hex()


def test_the_private_key_is_printed_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stdout, and then in no file."""
    monkeypatch.chdir(tmp_path)

    assert 0 == main(["keygen", "-"])
    shown = lines(capsys.readouterr().out)
    keys = KeyPair.from_hex(shown["private key"])
    assert {"public key", "key id", "private key"} == set(shown)
    assert shown["public key"] == keys.public_key.hex()
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("out", "extra"), [("a.key", "file"), ("-", "private_key")])
def test_json_shows_the_same(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    extra: str,
) -> None:
    """One document on one line, with the private key only on request."""
    monkeypatch.chdir(tmp_path)

    assert 0 == main(["keygen", out, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert ["public_key", "key_id", extra] == list(shown)
    assert shown["public_key"].startswith(shown["key_id"])


@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """A key that is overwritten is lost, and so is everything sealed for it."""
    path, target = tmp_path / "my.key", tmp_path / "target"
    if kind == "file":
        path.write_text("old", "ascii")
    else:
        path.symlink_to(target)
    if kind == "link":
        target.write_text("old", "ascii")

    assert 2 == main(["keygen", str(path)])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert f"error: FILE: {path} exists, and overwriting" in captured.err
    assert 1 == captured.err.count("\n")
    if kind == "broken link":
        assert not target.exists()
    else:
        assert "old" == path.read_text("ascii")


def test_a_missing_directory_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of an I/O error; a key that was not saved is not shown."""
    path = tmp_path / "none" / "my.key"

    assert 74 == main(["keygen", str(path)])
    captured = capsys.readouterr()
    assert ("", f"error: {path}: No such file or directory\n") == captured


def test_a_file_that_cannot_be_written_completely_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a key would be in the way of the next attempt; no public key is printed for it."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    assert 74 == main(["keygen", str(tmp_path / "my.key")])
    assert ("", "error: No space left on device\n") == capsys.readouterr()
    assert [] == list(tmp_path.iterdir())


def test_the_file_may_still_be_given_as_an_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Scripts have it."""
    assert 0 == main(["keygen", "--out", str(tmp_path / "old.key")])

    assert (tmp_path / "old.key").exists()
    assert str(tmp_path / "old.key") == lines(capsys.readouterr().out)["file"]
