"""The greeting of `serve --dev`: what it says about each listener, and commands that work."""

import shlex
import sys
from pathlib import Path
from typing import Final

import pytest

from braidmq.cli.broker import banner as banners
from braidmq.cli.broker.banner import banner
from braidmq.server.config.loading import load

ADDRESSES: Final[dict[str, str | None]] = {
    "blip": "127.0.0.1:5555",
    "vibe": "127.0.0.1:2925",
    "qumbed": "127.0.0.1:6121",
    "http": "127.0.0.1:9100",
    "flight": "127.0.0.1:8815",
}
PAGE: Final = "http://127.0.0.1:9100/"


def greeting(*off: str, page: str | None = PAGE, **flags: object) -> str:
    config = load(None, {}, {"dev": True, **flags})
    return banner(config, ADDRESSES | dict.fromkeys(off), page)


@pytest.fixture(autouse=True)
def _name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banners, "_program", lambda: "braidmq")


def test_it_says_where_everything_is_and_what_to_type(tmp_path: Path) -> None:
    """Short enough for any terminal."""
    text = greeting(data_dir=tmp_path / "data")

    for line in (
        "  Page:   http://127.0.0.1:9100/",
        "  Key:    dev-key (it may do everything; only this machine can connect)",
        f"  Log:    {tmp_path}/data",
        "  Blip:   127.0.0.1:5555",
        "  Flight: 127.0.0.1:8815",
        "    braidmq subscribe orders",
        """    braidmq publish orders '{"n": 1}'""",
    ):
        assert line in text.splitlines()
    assert len(text.splitlines()) < 20


def test_flight_without_its_packages_is_not_an_error() -> None:
    """It says how to get them; one that was turned off is only off."""
    hint = "  Flight: off (make demo, or pip install 'braidmq[columnar]')"

    assert hint in greeting("flight").splitlines()
    assert "  Flight: off" in greeting("flight", flight="off").splitlines()


def test_another_address_is_in_the_commands() -> None:
    """Without Blip they use Vibe; without both there are none."""
    text = greeting("blip", blip="off")

    assert "    braidmq subscribe orders --url vibe://dev-key@127.0.0.1:2925" in text
    assert "braidmq subscribe" not in greeting("blip", "vibe", blip="off", vibe="off")
    assert "  Page:   off" in greeting("http", page=None, http="off").splitlines()


def test_the_program_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name where that finds it, else by its place."""
    monkeypatch.undo()
    place = tmp_path / "a b" / "bin"
    place.mkdir(parents=True)
    (place / "braidmq").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    near = greeting()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    far = greeting()
    monkeypatch.setenv("PATH", str(place))

    assert "    'a b/bin/braidmq' subscribe orders" in near.splitlines()
    assert f"    {shlex.quote(str(place / 'braidmq'))} subscribe orders" in far.splitlines()
    assert "    braidmq subscribe orders" in greeting().splitlines()
