"""Servers under load: each its own process, on loopback, in a directory of its own.

Each is stopped by the handle that started it, whatever happens in between. The load itself is
defined elsewhere.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

import braidmq
from bench.streams import BrokenRunError, Elapsed, Sample

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 60.0
"""Time to answer, including the recovery of a long log; later, the start has failed."""

STOP_S_MAX: Final = 30.0
"""A server that takes longer to stop is killed."""

LOOK_AGAIN_S: Final = 0.002
LOG_LINES_SHOWN: Final = 5


class Server:
    """A process that listens; `started_s` is when it was started, by `time.perf_counter`."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: dict[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._log = directory / "server.log"
        self.started_s = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def rss_bytes(self) -> int:
        """Resident memory in bytes."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    @property
    def cpu_s(self) -> float:
        """CPU time of all threads so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def measure(self, messages: int, run: Callable[[], Elapsed]) -> Sample:
        """Return the sample of *run*, with the CPU time of this server."""
        before = self.cpu_s
        elapsed = run()
        return Sample(messages, elapsed.seconds, self.cpu_s - before, elapsed.cpu_s)

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait for the start; stop the process and raise BrokenRunError if it fails."""
        try:
            while not is_ready():
                self._check()
                time.sleep(LOOK_AGAIN_S)
        except BaseException:
            self.stop()
            raise

    def _check(self) -> None:
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            told = "\n".join(lines)
            raise BrokenRunError(f"{self._process.args!r} ended: {told}")
        if time.perf_counter() - self.started_s > START_S_MAX:
            raise BrokenRunError(f"nothing answered within {START_S_MAX:.0f} s")

    def stop(self) -> None:
        """Stop the process and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


class Broker(Server):
    """A running BraidMQ daemon; *package* is the copy of the program to run, if any."""

    def __init__(
        self,
        directory: Path,
        *,
        package: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        ready = directory / "ready.json"
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        ready.unlink(missing_ok=True)
        program = str(Path(sys.executable).parent / "braidmq")
        command = [program, "serve", "--dev", "--data-dir", str(data), "--ready-file"]
        command += [str(ready), "--blip", f"{HOST}:0", "--http", f"{HOST}:0"]
        command += ["--vibe", f"{HOST}:0", "--qumbed", f"{HOST}:0", "--flight", "off"]
        environment = dict(settings or {})
        if package is not None:
            # PYTHONPATH comes before the installed package, whose modules may be compiled.
            environment |= {"BRAIDMQ_PURE": "1", "PYTHONPATH": str(package)}
        super().__init__(command, directory, environment)
        self.wait_until(ready.exists)
        self.ready_s = time.perf_counter() - self.started_s
        facts = json.loads(ready.read_text())
        self.blip: str = facts["blip"]
        self.vibe: str = facts["vibe"]
        self.http: str = facts["http"]
        self.qumbed: str = facts["qumbed"]
        self.qumbed_fingerprint: str = facts["qumbed_fingerprint"]


class Peer(Server):
    """Another product's server, on a port of our choice."""

    def __init__(self, command: Sequence[str], directory: Path, port: int) -> None:
        super().__init__(command, directory)
        self.address = f"{HOST}:{port}"
        self.wait_until(lambda: _accepts(port))


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def interpreted_package(directory: Path) -> Path:
    """Copy the package without its compiled modules; return the entry for PYTHONPATH."""
    source = Path(braidmq.__file__).parent
    without = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(source, directory / source.name, ignore=without)
    return directory


def _accepts(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
        return True
    return False
