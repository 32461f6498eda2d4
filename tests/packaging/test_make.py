"""`make chaos` raises every count; `make setup` installs a browser if it can."""

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
    """A directory with the Makefile and an environment that seems complete."""
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


def set_up(place: Path) -> str:
    """Run the browser step, which never fails; return its output."""
    make = shutil.which("make")
    assert make is not None
    return subprocess.check_output(
        [make, "--no-print-directory", ".venv/browser"],
        cwd=place,
        env={"PATH": str(place / "bin"), "HOME": os.environ.get("HOME", "/")},
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_make_chaos_raises_every_count() -> None:
    """It sets each count that the chaos and simulation tests read, but no seed."""
    recipe = " ".join(
        re.findall(
            r"^chaos:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
        )
    )
    numbers = re.compile(r'environ\.get\("(BRAIDMQ_\w+)", "\d+"\)')
    found = {
        name
        for folder in ("chaos", "simulation")
        for file in (ROOT / "tests" / folder).glob("test_*.py")
        for name in numbers.findall(file.read_text("utf-8"))
    }

    assert {"BRAIDMQ_KILLS", "BRAIDMQ_SPARK_KILLS"} <= found
    assert {"BRAIDMQ_CHAOS_SEED"} == {name for name in found if f"{name}=$(" not in recipe}


def test_an_installed_browser_needs_no_step(place: Path) -> None:
    """The step prints and installs nothing, even for root."""
    program(place, "chromium", "exit 1")
    program(place, "id", "echo 0")
    program(place, "apt-get", "echo called > apt.log")

    assert "" == set_up(place)
    assert not (place / "apt.log").exists()


def test_a_user_without_root_gets_one_note(place: Path) -> None:
    """The second time the step is up to date."""
    program(place, "id", "echo 1000")
    program(place, "apt-get", "echo called > apt.log")

    assert SKIPPED == set_up(place)
    assert not (place / "apt.log").exists()
    assert "up to date" in set_up(place)


def test_root_installs_it_from_the_distribution(place: Path) -> None:
    """Without questions, and without the output of apt-get."""
    program(place, "id", "echo 0")
    program(place, "apt-get", 'echo "$@" >> apt.log; echo noise')

    assert "chromium was installed, for the browser tests\n" == set_up(place)
    assert ["update", "install --yes --no-install-recommends chromium"] == (
        (place / "apt.log").read_text("utf-8").splitlines()
    )


def test_a_failing_installation_does_not_fail_the_set_up(place: Path) -> None:
    """Everything else still works without a network."""
    program(place, "id", "echo 0")
    program(place, "apt-get", "exit 100")

    assert SKIPPED == set_up(place)
