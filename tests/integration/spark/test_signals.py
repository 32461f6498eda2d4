"""Signals to all processes of a pipeline at once, as `timeout` and systemd send them.

The test has its own JVM, as the session of the other tests must survive.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spark.conftest import QUICK
from tests.integration.spark.outputs import archived, readings
from tests.integration.spark.serving import PATIENCE_S, serving, until
from tests.unit.columnar.logs import plain_rows, write_log
from tests.unit.spark.running import KEY

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-c", "from braidmq.cli.main import run; run()", "pipeline")
STOPPED = "archive: stopped; the next run resumes here"


def test_a_signal_that_reaches_java_as_well_is_not_an_error(tmp_path: Path) -> None:
    """Even while the query waits for a broker that is down; it prints nothing else."""
    log, out, output = tmp_path / "log", tmp_path / "out", tmp_path / "output.txt"
    write_log(log, readings(60))
    with serving(log) as broker, output.open("w") as stderr:
        source = [f"--endpoint={broker.address}", f"--api-key={KEY}", f"--out={out}"]
        config = [f"--conf={name}={value}" for name, value in QUICK.items()]
        command = [*COMMAND, "archive", *source, "--trigger=1s", *config]
        with subprocess.Popen(command, stderr=stderr, start_new_session=True) as process:
            try:
                until(lambda: "batch 0," in output.read_text() or process.poll() is not None)
                broker.end()
                os.killpg(process.pid, signal.SIGTERM)
                code = process.wait(PATIENCE_S)
            finally:
                process.kill()
    lines = output.read_text().splitlines()

    assert (0, STOPPED) == (code, lines[-1])
    assert all("batch" in line for line in lines[:-1]), lines
    assert plain_rows(log) == archived(out)
