"""Contexts: their files, which one is used, and what is refused."""

import json
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli import contexts
from braidmq.cli.contexts import Place, named_place, place_of

PROD = {"url": "blip://bk_secret@prod:5555", "http": "https://prod:9100"}
DEV = Place("blip://dev-key@127.0.0.1:5555", "http://127.0.0.1:9100", "context dev")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "braidmq"


def modes(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in [home, *home.rglob("*")]}


def test_without_contexts_it_is_the_development_broker(home: Path) -> None:
    """Reading makes no files."""
    assert DEV == place_of(None)
    assert (["dev"], "dev") == (contexts.names(), contexts.current())
    assert not home.exists()


def test_only_the_owner_can_read_the_files(home: Path) -> None:
    """They hold keys."""
    contexts.add("prod", PROD)
    contexts.use("prod")

    expected = {"braidmq": 0o700, "contexts": 0o700, "prod.json": 0o600, "context": 0o600}
    assert expected == modes(home)
    assert PROD == json.loads((home / "contexts" / "prod.json").read_text("utf-8"))


def test_the_nearest_choice_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """--url, BRAIDMQ_URL, BRAIDMQ_CONTEXT, the context in use, the development broker."""
    contexts.add("prod", PROD)
    contexts.add("stage", {"url": "vibe://k@stage"})
    found = [place_of(None)]
    contexts.use("prod")
    found.append(place_of(None))
    assert None is named_place(None)
    monkeypatch.setenv("BRAIDMQ_CONTEXT", "stage")
    found.append(place_of(None))
    monkeypatch.setenv("BRAIDMQ_URL", "http://env")
    found.append(place_of(None))
    found.append(place_of("qumbed://option"))

    assert [
        DEV,
        Place(PROD["url"], PROD["http"], "context prod"),
        Place("vibe://k@stage", None, "context stage"),
        Place("http://env", None, "BRAIDMQ_URL"),
        Place("qumbed://option", None, "--url"),
    ] == found
    monkeypatch.setenv("BRAIDMQ_URL", "")
    monkeypatch.setenv("BRAIDMQ_CONTEXT", "dev")
    assert DEV == place_of(None)


def test_a_removed_context_is_no_longer_in_use() -> None:
    """Its key is gone, and the development broker takes its place."""
    contexts.add("prod", PROD)
    contexts.add("other", PROD)
    contexts.use("prod")

    assert not contexts.remove("other")
    assert contexts.remove("prod")
    assert (["dev"], "dev") == (contexts.names(), contexts.current())


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a b", 65 * "a", "é"]
)
def test_a_name_cannot_leave_the_directory(name: str, home: Path) -> None:
    """It is the name of a file."""
    for act in (contexts.use, contexts.remove, lambda name: contexts.add(name, PROD)):
        with pytest.raises(ConfigError, match="the name of a context has 1 to 64 letters"):
            act(name)

    assert not home.exists()


def test_names_that_are_taken_or_unknown_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing one would lose its key."""
    contexts.add("prod", PROD)
    with pytest.raises(ConfigError, match="exists; `braidmq context remove prod` first"):
        contexts.add("prod", {"url": "blip://other"})
    with pytest.raises(ConfigError, match="the context dev is built in"):
        contexts.add("dev", PROD)
    with pytest.raises(ConfigError, match="the context dev is built in"):
        contexts.remove("dev")
    unknown = "there is no context nope; `braidmq context list` lists the existing ones"
    for act in (contexts.use, contexts.remove):
        with pytest.raises(ConfigError, match=unknown):
            act("nope")
    monkeypatch.setenv("BRAIDMQ_CONTEXT", "nope")
    with pytest.raises(ConfigError, match=f"BRAIDMQ_CONTEXT: {unknown}"):
        place_of(None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"url": 5}', "{}", '{"url":"a","http":1}', "é"]
)
def test_a_file_that_is_no_context_is_reported(text: str, home: Path) -> None:
    """With its path, and not with its content, which may hold a key."""
    contexts.add("prod", PROD)
    path = home / "contexts" / "prod.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="is not a context; remove it and add it again"):
        contexts.context_of("prod")


def test_a_file_that_others_may_read_is_not_used(home: Path) -> None:
    """As ssh does with private keys."""
    contexts.add("prod", PROD)
    (home / "contexts" / "prod.json").chmod(0o640)
    with pytest.raises(ConfigError, match="other users may read"):
        contexts.context_of("prod")


def test_a_relative_directory_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the specification of XDG_CONFIG_HOME demands; ~/.config takes its place."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    contexts.add("prod", PROD)

    assert (tmp_path / ".config" / "braidmq" / "contexts" / "prod.json").exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("blip://bk_secret@h:1", "blip://****@h:1"),
        ("vibe://user:pass@h", "vibe://****@h"),
        ("blip://a@b@h", "blip://****@h"),
        ("qumbed://h:1?fingerprint=ab", "qumbed://h:1?fingerprint=ab"),
        ("blip://k@h\x1b[2J", "blip://****@h\\x1b[2J"),
    ],
)
def test_a_key_is_never_shown(url: str, shown: str) -> None:
    """Nor a password, nor a part of them."""
    assert shown == contexts.masked(url)
