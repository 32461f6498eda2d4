"""`braidmq serve` with its Flight endpoint, as a process that tests kill and restart."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.spark.running import Running

COMMAND = (sys.executable, "-c", "from braidmq.cli.main import run; run()", "serve", "--dev")
SETTINGS = {
    "BRAIDMQ_WAL__RETENTION_HOURS": "0"
}  # the logs of tests are older than any retention
PATIENCE_S = 200
LOOK_S = 0.01


def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition."""
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up, "timed out"
        time.sleep(LOOK_S)


class Serving(Running):
    """A broker that can be killed and restarted at the same address."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "")
        self._ready_file = path.parent / f"{path.name}.ready.json"
        self._log = path.parent / f"{path.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._ready_file.unlink(missing_ok=True)
        port = self.port if self.address else 0
        listeners = [f"--{name}=off" for name in ("blip", "vibe", "qumbed", "http")]
        places = [f"--data-dir={self.path}", f"--ready-file={self._ready_file}"]
        command = [*COMMAND, *listeners, *places, f"--flight=127.0.0.1:{port}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stderr=log, env={**os.environ, **SETTINGS}
            )
        until(self._is_up)
        self.address = "grpc://" + json.loads(self._ready_file.read_text())["flight"]

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        return self._ready_file.exists()

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, by default with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)

    def values(self, topic: str) -> list[str]:
        """Return the values of a topic, read from the log."""
        return [row["value"].decode() for row in self.rows() if row["topic"] == topic]

    def staging(self) -> list[Path]:
        """Return the stages being written that have received any rows."""
        found = (self.path / "stages").glob("*.tmp")
        return [file for file in found if file.stat().st_size > 0]


@contextmanager
def serving(path: Path) -> Iterator[Serving]:
    """Run a broker on a data directory until the block ends."""
    broker = Serving(path)
    broker.start()
    try:
        yield broker
    finally:
        broker.end()
