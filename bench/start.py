"""How long a program waits for us: importing the library, printing --help, starting a broker.

Processor time is what we can change; on a busy machine the wall clock mostly shows the others.
A broker's start is measured to the ready file, by the clock, as an operator sees it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from bench import report
from bench.servers import Broker

NAME: Final = "start"
STARTS: Final = 10
IMPORT_BAR_MS: Final = 50.0
HELP_BAR_S: Final = 0.3
READY_BAR_S: Final = 1.5
MS_PER_S: Final = 1_000


def rows(directory: Path, starts: int = STARTS) -> Iterator[report.Row]:
    """Return the rows, each the median of some starts."""
    program = str(Path(sys.executable).parent / "braidmq")
    python = [sys.executable, "-c"]
    run_s([*python, "import braidmq"])  # once for the bytecode and the disk's cache
    empty_s = median(run_s([*python, "pass"]) for _ in range(starts))
    import_s = median(run_s([*python, "import braidmq"]) for _ in range(starts))
    yield report.amount_row(
        "import braidmq, processor time",
        max(0.0, import_s - empty_s) * MS_PER_S,
        "ms",
        bar=IMPORT_BAR_MS,
        note=f"Python itself {empty_s * MS_PER_S:.0f} ms",
    )
    run_s([program, "--help"])
    help_s = median(run_s([program, "--help"]) for _ in range(starts))
    yield report.amount_row("braidmq --help, processor time", help_s, "s", bar=HELP_BAR_S)
    ready = [_ready(directory / f"start{number}") for number in range(starts)]
    yield report.amount_row(
        "braidmq serve, ready",
        median(seconds for seconds, _ in ready),
        "s",
        bar=READY_BAR_S,
        note=f"processor time {median(cpu_s for _, cpu_s in ready):.2f} s",
    )


def run_s(command: Sequence[str]) -> float:
    """Run a program to its end; return the processor time that it took."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise OSError(f"{command!r} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def _ready(directory: Path) -> tuple[float, float]:
    with Broker(directory) as broker:
        return broker.ready_s, broker.cpu_s
