"""The browser tests on a machine without a browser: skipped in one line, but not in CI."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
RUN_S_MAX: Final = 100.0

pytestmark = pytest.mark.slow


def browser_tests(place: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run them with a PATH that holds nothing; return the exit code and what was printed."""
    told = {name: value for name, value in os.environ.items() if name != "CI"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**told, "PATH": str(place), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    return run.returncode, run.stdout


def test_without_a_browser_all_of_them_are_skipped_in_one_line(tmp_path: Path) -> None:
    """It says what is missing, and is a line that `.ci/run` looks for."""
    code, told = browser_tests(tmp_path, "tests/browser")
    (pattern,) = re.findall(r"grep -E '(\^SKIPPED [^']*)'", (ROOT / ".ci/run").read_text())
    lines = [line for line in told.splitlines() if re.search(pattern, line)]

    assert 1 == len(lines), told
    assert "no chromium on this machine (apt-get install chromium)" in lines[0]
    assert re.fullmatch(r"\d+ skipped in .*", told.splitlines()[-1])
    assert pytest.ExitCode.NO_TESTS_COLLECTED == code, "of those that were asked for"


def test_where_ci_is_set_they_fail_for_want_of_it(tmp_path: Path) -> None:
    """Nobody takes a run that has left them out for one that has passed."""
    code, told = browser_tests(tmp_path, "tests/browser/test_report_page.py", CI="true")

    assert 1 == code, told
    assert "no chromium on this machine (apt-get install chromium): " in told
    assert re.fullmatch(r"\d+ errors in .*", told.splitlines()[-1])
