"""The commands of docs/benchmarks.md work; the tests add options that keep them short.

An option that exists only on the page would end in a usage error. `test_bench.py` covers all
rows in a quick run.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bench.__main__ import NAMES
from tests.docs.test_snippets import ROOT, read
from tests.docs.told import commands_in

PAGE: Final = "docs/benchmarks.md"
PYTHON: Final = ".venv/bin/python"
SHORT: Final = "--quick --only queues"
"""The quickest row."""
RUN_S_MAX: Final = 300.0
COMMANDS: Final = commands_in(PAGE)[0]


def shortened(command: str, place: Path) -> str:
    """Return a short form of *command* with the tests' interpreter and files in *place*."""
    missing = [
        option
        for option in re.findall(r"--\w+(?: [a-z]\w*)?", SHORT)
        if option.split()[0] not in command.split()
    ]
    command = command.replace(PYTHON, sys.executable).replace(
        "FILE", str(place / "figures.json")
    )
    return " ".join([command, *missing])


def recipe_of(command: str) -> str:
    """Return the last command of a make target, after those that update the environment."""
    shown = subprocess.check_output(
        [*command.split(), "--dry-run", "--no-print-directory"], cwd=ROOT, text=True
    )
    return shown.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    """It exits with 0 and prints a table; a named file holds the figures."""
    line = recipe_of(command) if command.startswith("make ") else command
    run = subprocess.run(
        ["sh", "-euc", shortened(line, tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )

    assert (0, "") == (run.returncode, run.stderr)
    assert re.search(r"^ +BraidMQ  ", run.stdout, re.MULTILINE)
    assert ("FILE" in command) is (tmp_path / "figures.json").exists()
    if "FILE" in command:
        assert json.loads((tmp_path / "figures.json").read_text("utf-8"))["rows"]


def test_the_page_has_four_commands() -> None:
    """Each starts with a program of the repository."""
    assert 4 == len(COMMANDS)
    assert {"make bench", f"{PYTHON} -m"} == {" ".join(c.split()[:2]) for c in COMMANDS}


def test_rows_that_the_page_names_can_be_selected() -> None:
    """Those next to `--only`, and those in the table."""
    (beside,) = re.findall(r"--only \w+ # (.*), \.\.\.;", read(PAGE))
    named = {
        *beside.split(", "),
        *re.findall(r"^\| [^|]*\(`([a-z-]+)`\)", read(PAGE), re.MULTILINE),
    }

    assert set() == named - set(NAMES)
