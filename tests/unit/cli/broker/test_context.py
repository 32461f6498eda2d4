"""`braidmq context`: what it prints, and that it never prints a key."""

import io
import json
import sys
from pathlib import Path

import pytest

from braidmq.cli import contexts
from braidmq.cli.main import main

KEY = "bk_0123456789abcdefghij"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_contexts_are_added_used_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    """No output holds the key."""
    add = ["context", "add", "prod", f"blip://{KEY}@prod:5555", "--http", "https://prod"]
    assert 0 == main(add)
    assert 0 == main(["context", "use", "prod"])
    assert 0 == main(["context", "list"])
    assert 0 == main(["context", "remove", "prod"])
    out, err = capsys.readouterr()

    assert [
        "added context prod: blip://****@prod:5555; `braidmq context use prod` uses it",
        "using prod: blip://****@prod:5555",
        "in use\tname\turl\thttp",
        "no\tdev\tblip://****@127.0.0.1:5555\thttp://127.0.0.1:9100",
        "yes\tprod\tblip://****@prod:5555\thttps://prod",
        "removed context prod; dev is in use now",
    ] == out.splitlines()
    assert "" == err


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts, without the key as well."""
    assert 0 == main(["context", "add", "a", f"vibe://u:{KEY}@h", "--use", "--json"])
    assert 0 == main(["context", "list", "--json"])
    added, listed = map(json.loads, capsys.readouterr().out.splitlines())

    assert {"name": "a", "url": "vibe://****@h"} == added
    assert {"in use": True, "name": "a", "url": "vibe://****@h", "http": None} == listed[1]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("blip://h:1", "blip://a%2Fb%40c@h:1"),
        ("qumbed://h?fingerprint=ab", "qumbed://a%2Fb%40c@h?fingerprint=ab"),
        ("vibe://user:@h", "vibe://user:a%2Fb%40c@h"),
    ],
)
def test_a_key_may_come_from_standard_input_or_a_file(
    url: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is not in the history of the shell."""
    (tmp_path / "key").write_text("a/b@c\n", "utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("a/b@c\n"))
    assert 0 == main(["context", "add", "one", url, "--key-file", "-"])
    assert 0 == main(["context", "add", "two", url, "--key-file", str(tmp_path / "key")])

    assert {expected} == {contexts.context_of(name).url for name in ("one", "two")}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "ftp://h"], "URL: must be http://KEY@HOST:PORT"),
        (["a", "blip://k@h:0"], "URL: the port must be a number from 1 to 65535"),
        (["a", "blip://h", "--http", "blip://h"], "--http: must be http://HOST:PORT or https"),
        (["a", f"blip://{KEY}@h", "--key-file", "-"], "--key-file: the URL has a key already"),
        (["a", "blip://h", "--key-file", "-"], "--key-file: its first line must be a key"),
        (["a/b", "blip://h"], "NAME: the name of a context has 1 to 64 letters"),
    ],
)
def test_what_cannot_be_used_is_exit_2(
    words: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, without the key, and nothing is kept."""
    stdin = io.StringIO("x\n" if KEY in words[1] else "\n")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert 2 == main(["context", "add", *words])
    line = capsys.readouterr().err

    assert line.startswith(f"error: {problem}")
    assert (1, False) == (line.count("\n"), KEY in line)
    assert ["dev"] == contexts.names()


def test_a_damaged_context_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is listed with what is wrong."""
    contexts.add("a", {"url": "blip://a"})
    contexts.add("b", {"url": "blip://b"})
    (tmp_path / "braidmq" / "contexts" / "a.json").write_text("{", "utf-8")
    assert 0 == main(["context", "list"])
    rows = capsys.readouterr().out.splitlines()[2:]

    assert ["a", "b"] == [row.split("\t")[1] for row in rows]
    assert "is not a context" in rows[0]
