"""`braidmq demo`: one whole run with a real kill, and how signals end it."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.integration.cli.brokers import BRAIDMQ


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_succeeds_and_leaves_only_tables(tmp_path: Path) -> None:
    """It publishes, kills, restarts, dead-letters, tabulates and counts, in plain text."""
    temporary, tables = tmp_path / "temporary", tmp_path / "tables"
    temporary.mkdir()
    done = subprocess.run(
        [*BRAIDMQ, "demo", "--readings", "600", "--tables", str(tables)],
        capture_output=True,
        check=False,
        env=os.environ | {"TMPDIR": str(temporary), "BRAIDMQ_DELIVERY__MAX_RETRIES": "1"},
        text=True,
        timeout=350,
    )

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert "KILL -9" in done.stdout
    assert "gave up on reading 225: it is now a dead letter\n" in done.stdout
    assert "sent 1 letter back from dlq.demo.readings\n" in done.stdout
    assert "handled reading 225 this time\n" in done.stdout
    assert "critical ones first: [3, 7, 11] ...\n" in done.stdout
    assert "The counts agree: nothing that was confirmed is missing.\n" in done.stdout
    assert "readings in Spark's tables" in done.stdout
    assert re.search(r"^commands replayed, in order +60 +60  ok$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout
    assert [] == list(temporary.iterdir())
    assert (tables / "report" / "report.html").is_file()
    assert f"the report about them                      {tables}/report/report.html" in [
        line.strip() for line in done.stdout.splitlines()[-4:]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_ends_the_demo_and_its_broker(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """In the middle of a run; no traceback, process or directory is left."""
    process = subprocess.Popen(
        [*BRAIDMQ, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "so far" in line:
            break
    (directory,) = tmp_path.iterdir()
    pid = json.loads((directory / "ready.json").read_text("utf-8"))["pid"]
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)

    assert (code, "") == (process.returncode, stderr)
    assert not psutil.pid_exists(pid)
    assert [] == list(tmp_path.iterdir())
