"""The browser tests on a machine without a browser: skipped with one line, but not in CI."""

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


def run_browser_tests(path: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run them with an empty PATH; return the exit code and the output."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")  # the latter loads for long
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, *arguments],
        cwd=ROOT,
        env={**inherited, "PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    return run.returncode, run.stdout


def test_without_a_browser_they_are_all_skipped_with_one_line(tmp_path: Path) -> None:
    """The line says what is missing, and `.ci/run` looks for it."""
    code, output = run_browser_tests(tmp_path, "tests/browser")
    (pattern,) = re.findall(r"grep -E '(\^SKIPPED [^']*)'", (ROOT / ".ci/run").read_text())
    lines = [line for line in output.splitlines() if re.search(pattern, line)]

    assert 1 == len(lines), output
    assert "no chromium on this machine (apt-get install chromium)" in lines[0]
    assert re.fullmatch(r"\d+ skipped in .*", output.splitlines()[-1])
    assert pytest.ExitCode.NO_TESTS_COLLECTED == code


def test_in_ci_they_fail_without_a_browser(tmp_path: Path) -> None:
    """A run that left them out must not count as passed."""
    code, output = run_browser_tests(tmp_path, "tests/browser/test_report_page.py", CI="true")

    assert 1 == code, output
    assert "no chromium on this machine (apt-get install chromium): " in output
    assert re.fullmatch(r"\d+ errors in .*", output.splitlines()[-1])
