"""A pipeline as a process of its own, whose JVM is killed at a random moment of its work."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import psutil

from tests.integration.spark.conftest import QUICK

PROGRAM = (sys.executable, "-c", "from braidmq.cli.main import run; run()", "pipeline")
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
NO_WORK = {"_spark.log", "_lock", "_held", "windows", "replay.json"}
"""What is written before Spark is up."""

PATIENCE_S = 600
LOOK_S = 0.01
CONF = [f"--conf={name}={value}" for name, value in QUICK.items()]


def files_of(directories: Iterable[Path]) -> set[tuple[Path, int]]:
    """The files below directories, each with its time; what is gone meanwhile is left out."""
    found = set()
    for directory in directories:
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):
                if path.name not in NO_WORK:
                    found.add((path, path.stat().st_mtime_ns))
    return found


class Life:
    """One life of a pipeline."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def said(self) -> str:
        return self._log.read_text()

    def end(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        return self._process.wait(PATIENCE_S)

    def java(self) -> psutil.Process | None:
        """Spark's JVM, once there is one: before it, another one only finds its command."""
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name() == "java" and SUBMIT in child.cmdline():
                    return child
        return None

    def kill_java(self, *watched: Path, changes: int) -> bool:
        """Kill the JVM when so much has changed in directories; False: it was too late.

        So a moment is one of its work, however fast the machine is.
        """
        before, seen, pause = files_of(watched), set[tuple[Path, int]](), Event()
        give_up = time.monotonic() + PATIENCE_S
        while len(seen) < changes and not self.is_over:
            assert time.monotonic() < give_up, self.said()
            pause.wait(LOOK_S)
            seen |= files_of(watched) - before
        java = None if self.is_over else self.java()
        if java is None:
            return False
        java.kill()
        assert self.end() == 1, self.said()
        assert "Java process has ended" in self.said()
        return True

    def kill(self) -> None:
        """End what is left of it, when a test has failed."""
        for child in psutil.Process(self._process.pid).children(recursive=True):
            child.kill()
        self._process.kill()
        self._process.wait(PATIENCE_S)


@contextmanager
def life(directory: Path, *arguments: str) -> Iterator[Life]:
    """Start a pipeline; whatever becomes of it, nothing is left running."""
    log = directory / "pipeline.log"
    command: Sequence[str] = (*PROGRAM, *arguments, "--master=local[2,4]", *CONF)
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr, env=dict(os.environ))
    found = Life(process, log)
    try:
        yield found
    finally:
        if not found.is_over:
            found.kill()
