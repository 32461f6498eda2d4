"""`make pictures` makes pictures from a real run, and the repository has such pictures.

Here the script runs in its short form: the same session and the same page, without the minutes
in which the charts fill.
"""

import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

from docs import draw
from tests.browser.stage import skip_without_browser
from tests.docs.test_snippets import ROOT, read

SECONDS_MAX: Final = 110
PHOTOGRAPHS: Final = ("dashboard-light.png", "dashboard-dark.png")
TERMINAL: Final = "terminal.svg"
SVG: Final = "{http://www.w3.org/2000/svg}"


def shown(path: Path) -> list[str]:
    """Return the lines of a recording."""
    root = ET.fromstring(path.read_text("utf-8"))  # noqa: S314 - our own file
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def assert_photographs(place: Path) -> None:
    """Two different PNGs of the whole viewport, each below the limit for one picture."""
    light, dark = ((place / name).read_bytes() for name in PHOTOGRAPHS)
    assert light != dark
    for data in (light, dark):
        assert b"\x89PNG\r\n\x1a\n" == data[:8]
        assert tuple(draw.SIZE.values()) == struct.unpack(">II", data[16:24])
        assert len(data) < draw.BYTES_MAX


def assert_recording(place: Path) -> None:
    """Published, killed, started again, delivered: in this order, each once."""
    lines = shown(place / TERMINAL)
    story = [line for line in lines if re.search(r"published|Killed|^\{|^\$ kill", line)]
    assert ["published 3 to jobs", "$ kill -9 $!; wait"] == story[:2]
    assert "Killed" in story[2]
    assert 3 * ['{"order": 42}'] == story[3:]
    assert "$ export BRAIDMQ_URL=vibe://dev-key@127.0.0.1:2925" in lines


def test_the_pictures_of_the_repository_are_those_of_the_script() -> None:
    """In kind: their sizes, their themes and what happens in the terminal."""
    assert_photographs(draw.PLACE)
    assert_recording(draw.PLACE)


@pytest.mark.slow
def test_the_script_makes_pictures_from_a_real_run(tmp_path: Path) -> None:
    """In its short form, all of them."""
    skip_without_browser()
    done = subprocess.run(
        [sys.executable, "-m", "docs.draw", "--short", "--out", str(tmp_path)],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        timeout=SECONDS_MAX,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert_photographs(tmp_path)
    assert_recording(tmp_path)


@pytest.mark.parametrize("path", sorted(draw.PLACE.glob("*.svg")), ids=lambda path: path.name)
def test_drawings_load_nothing(path: Path) -> None:
    """No font, script or picture from anywhere: the namespace is the only address."""
    text = path.read_text("utf-8")

    assert {"http://www.w3.org/2000/svg"} == set(re.findall(r"https?://[^\"\s<]+", text))
    assert "<script" not in text
    assert len(text) < draw.BYTES_MAX


def test_make_pictures_runs_the_script() -> None:
    """The target and this test start the same module."""
    assert "\n\t$(BIN)/python -m docs.draw\n" in read("Makefile")
