"""`make chaos` asks for more; `make setup` installs a browser where it may, and never fails."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SKIPPED: Final = "chromium is not installed: the browser tests will be skipped\n"
TOOLS: Final = ("sh", "touch", "cat", "sed", "grep", "expand")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the Makefile, as if its environment had been made."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "place").write_text(f"{tmp_path}\n", "utf-8")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def program(place: Path, name: str, script: str) -> None:
    path = place / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)


def made(place: Path) -> str:
    """Return what the step says; it never fails."""
    make = shutil.which("make")
    assert make is not None
    return subprocess.check_output(
        [make, "--no-print-directory", ".venv/browser"],
        cwd=place,
        env={"PATH": str(place / "bin"), "HOME": os.environ.get("HOME", "/")},
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_make_chaos_asks_for_more_of_everything() -> None:
    """Every number that the long runs have for the suite, but for seeds, is set there."""
    asked = " ".join(
        re.findall(
            r"^chaos:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
        )
    )
    numbers = re.compile(r'environ\.get\("(BRAIDMQ_\w+)", "\d+"\)')
    found = {
        name
        for room in ("chaos", "simulation")
        for file in (ROOT / "tests" / room).glob("test_*.py")
        for name in numbers.findall(file.read_text("utf-8"))
    }

    assert {"BRAIDMQ_KILLS", "BRAIDMQ_SPARK_KILLS"} <= found
    assert {"BRAIDMQ_CHAOS_SEED"} == {name for name in found if f"{name}=$(" not in asked}


def test_where_it_is_nothing_is_said(place: Path) -> None:
    """And nothing is done, by whomever it is asked."""
    program(place, "chromium", "exit 1")
    program(place, "id", "echo 0")
    program(place, "apt-get", "echo called > apt.log")

    assert "" == made(place)
    assert not (place / "apt.log").exists()


def test_who_may_not_install_it_is_told_once(place: Path) -> None:
    """The second time there is nothing to do."""
    program(place, "id", "echo 1000")
    program(place, "apt-get", "echo called > apt.log")

    assert SKIPPED == made(place)
    assert not (place / "apt.log").exists()
    assert "up to date" in made(place)


def test_root_gets_it_from_the_distribution(place: Path) -> None:
    """Without a question, and without the distribution's words on the screen."""
    program(place, "id", "echo 0")
    program(place, "apt-get", 'echo "$@" >> apt.log; echo noise')

    assert "chromium was installed, for the browser tests\n" == made(place)
    assert ["update", "install --yes --no-install-recommends chromium"] == (
        (place / "apt.log").read_text("utf-8").splitlines()
    )


def test_a_distribution_that_fails_does_not_end_the_set_up(place: Path) -> None:
    """Without a network everything else still works."""
    program(place, "id", "echo 0")
    program(place, "apt-get", "exit 100")

    assert SKIPPED == made(place)
