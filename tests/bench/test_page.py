"""The commands of docs/benchmarks.md are run, with what makes them short.

An option that the page has and the benchmarks do not would end with a usage error; figures
that the page promises are looked for. All rows, in a quick run, are in `test_bench.py`.
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
from tests.docs.told import told

PAGE: Final = "docs/benchmarks.md"
PYTHON: Final = ".venv/bin/python"
SHORT: Final = "--quick --only queues"
"""The row that takes least."""
RUN_S_MAX: Final = 300.0
COMMANDS: Final = told(PAGE)[0]


def shortened(command: str, place: Path) -> str:
    """Return *command* as it is run here: the interpreter of the tests, files in *place*."""
    missing = [
        option
        for option in re.findall(r"--\w+(?: [a-z]\w*)?", SHORT)
        if option.split()[0] not in command.split()
    ]
    command = command.replace(PYTHON, sys.executable).replace(
        "FILE", str(place / "figures.json")
    )
    return " ".join([command, *missing])


def what_make_runs(command: str) -> str:
    """Return the command of a target, as make shows it, without what brings us up to date."""
    shown = subprocess.check_output(
        [*command.split(), "--dry-run", "--no-print-directory"], cwd=ROOT, text=True
    )
    return shown.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    """It ends with 0 and prints a table; where a file is named, the figures are in it."""
    line = what_make_runs(command) if command.startswith("make ") else command
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
    """Each of them begins with a program of the repository."""
    assert 4 == len(COMMANDS)
    assert {"make bench", f"{PYTHON} -m"} == {" ".join(c.split()[:2]) for c in COMMANDS}


def test_rows_that_the_page_names_can_be_asked_for() -> None:
    """Those beside `--only`, and those in the table."""
    (beside,) = re.findall(r"--only \w+ # (.*), \.\.\.;", read(PAGE))
    named = {
        *beside.split(", "),
        *re.findall(r"^\| [^|]*\(`([a-z-]+)`\)", read(PAGE), re.MULTILINE),
    }

    assert set() == named - set(NAMES)
