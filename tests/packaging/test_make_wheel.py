"""The commands of docs/howto/wheel.md work in a copy of the repository.

The copy uses the environment that runs the tests, so that nothing is downloaded. The
dependencies that pip would download are installed already; `test_requirements.py` checks that
the list of them is right.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.docs.test_snippets import read
from tests.docs.told import commands_in
from tests.packaging.wheels import ROOT, SECONDS_MAX, link_dependencies

PAGE: Final = "docs/howto/wheel.md"
HOT: Final = "braidmq.broker.settings"
"""The only hot module of the copy, as compiling them all would take minutes."""

pytestmark = pytest.mark.slow


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\nexec {script}\n", "utf-8")
    path.chmod(0o755)


class Clone:
    """A copy of the repository with an environment, in which commands are run."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("Makefile", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, place)
        for lock in ROOT.glob("requirements*.lock"):
            shutil.copy(lock, place)
        unwanted = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / "src", place / "src", ignore=unwanted)
        # Compiled in place earlier: the build must neither pack it nor remove it.
        (place / "src/braidmq/stale.so").touch()
        hot = place / "src/braidmq/base/build.py"
        text = hot.read_text("utf-8")
        only = re.sub(r"(?ms)(^HOT_MODULES: Final = \()[^)]*", rf'\1"{HOT}",', text)
        hot.write_text(only, "utf-8")
        (place / ".venv/bin").mkdir(parents=True)
        program(place / ".venv/bin/python", f'{sys.executable} "$@"')
        (place / ".venv/place").write_text(f"{place}\n", "utf-8")
        for step in ("server", "installed", "build"):
            (place / ".venv" / step).touch()

    def type(self, line: str, **variables: str) -> str:
        """Run a line of the page; return the last line that it prints."""
        # Without the variables of a `make` that runs the tests: they change make's output.
        others = ("BRAIDMQ_", "PYTHON", "MAKE", "MFLAGS")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        output = subprocess.check_output(
            ["sh", "-euc", line],
            cwd=self.place,
            env={**kept, **variables},
            text=True,
            timeout=SECONDS_MAX,
        )
        return output.splitlines()[-1] if output else ""


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    place = tmp_path / "braidmq"
    place.mkdir()
    return Clone(place)


def commands() -> tuple[str, str, list[str], list[str]]:
    """Return the page's commands: for this machine, for any, to install, and with extras."""
    (here,), (anywhere,), install, *extras = commands_in(PAGE)
    return here, anywhere, install, [line for lines in extras for line in lines]


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_with_a_compiler_the_wheel_is_for_this_platform(clone: Clone) -> None:
    """It holds compiled modules and their sources; modules compiled in place stay there."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip("there is no C compiler here")
    made = clone.type(commands()[0], BRAIDMQ_STRICT_BUILD="1")
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    names = names_in(clone.place / made)

    assert made.endswith(f"-{version}-{version}-{platform}.whl")
    if version == "cp311" and platform == "linux_x86_64":
        assert f"`{version}-{version}-{platform}.whl`" in read(PAGE)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert {"braidmq/broker/settings.py", f"braidmq/broker/settings{suffix}"} <= names
    assert "braidmq/stale.so" not in names
    assert (clone.place / "src/braidmq/stale.so").exists()


def test_without_a_compiler_the_wheel_is_for_any_platform(clone: Clone) -> None:
    """It is alone in its directory, as the install commands expect, and it works."""
    _, anywhere, install, with_extras = commands()
    (clone.place / "dist").mkdir()
    (clone.place / "dist/braidmq-0.0.1-py3-none-any.whl").touch()
    made = clone.type(anywhere)
    programs = clone.place / "venv/bin"
    clone.type(f"{sys.executable} -m venv --without-pip venv")
    program(programs / "pip", f'{sys.executable} -m pip --python {programs}/python "$@"')
    link_dependencies(clone.place / "venv", clone.place / made)
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
    }

    assert re.fullmatch(r"dist/braidmq-[\d.]+-py3-none-any\.whl", made)
    assert "`py3-none-any.whl`" in read(PAGE)
    assert [made] == [f"dist/{path.name}" for path in (clone.place / "dist").iterdir()]
    assert [] == [name for name in names_in(clone.place / made) if name.endswith(".so")]
    printed = [clone.type(line, **variables) for line in install]
    assert f"braidmq {made.split('-')[1]}" == printed[-1]
    assert ["server", "server,columnar", "all"] == [
        re.findall(r"\[([\w,]+)\]", line)[-1] for line in with_extras
    ]
    for line in with_extras:
        clone.type(f"{line} --force-reinstall", **variables)


def test_pages_that_install_a_wheel_link_to_the_page_that_builds_it() -> None:
    """It cannot be downloaded from anywhere."""
    pages = ["README.md", "docs/start.md", "docs/howto/systemd.md", "docs/howto/upgrade.md"]

    assert pages == [page for page in pages if "wheel.md)" in read(page)]
