"""A real broker in a process of its own, for tests of the commands that talk to one."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S_MAX = 60
STOP_S_MAX = 30
BRAIDMQ = [sys.executable, "-c", "from braidmq.cli.main import run; run()"]


@dataclass
class Broker:
    """A running broker and where it listens."""

    process: subprocess.Popen[str]
    addresses: dict[str, str | None]
    ready_file: Path

    def url(self, key: str = "dev-key") -> str:
        return f"blip://{key}@{self.addresses['blip']}"

    def qumbed_url(self, key: str = "dev-key") -> str:
        pin = self.addresses["qumbed_fingerprint"]
        return f"qumbed://{key}@{self.addresses['qumbed']}?fingerprint={pin}"

    def strand_url(self, strand: str, key: str = "dev-key") -> str:
        if strand == "qumbed":
            return self.qumbed_url(key)
        return f"{strand}://{key}@{self.addresses[strand]}"

    def http_url(self, key: str = "dev-key") -> str:
        return f"http://{key}@{self.addresses['http']}"

    def stop(self) -> tuple[int, str]:
        """Ask it to end; return its exit code and its log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=STOP_S_MAX)
        return self.process.returncode, log


@contextmanager
def running(directory: Path, *flags: str) -> Iterator[Broker]:
    """Start a broker in development mode below *directory*, on free ports."""
    ready_file = directory / "ready.json"
    addresses = ["--blip", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    others = ["--vibe", "off", "--qumbed", "off", "--flight", "off"]
    places = ["--data-dir", str(directory / "data"), "--ready-file", str(ready_file)]
    process = subprocess.Popen(
        [*BRAIDMQ, "serve", "--dev", *addresses, *others, *places, *flags],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Broker(process, _ready(process, ready_file), ready_file)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def addresses_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure doctor as the broker is."""
    for strand in ("blip", "http"):
        _, _, number = str(broker.addresses[strand]).rpartition(":")
        monkeypatch.setenv(f"BRAIDMQ_{strand.upper()}__PORT", number)
    for strand in ("vibe", "qumbed", "flight"):
        monkeypatch.setenv(f"BRAIDMQ_{strand.upper()}__ENABLED", "false")


def _ready(process: subprocess.Popen[str], ready_file: Path) -> dict[str, str | None]:
    deadline = time.monotonic() + START_S_MAX
    while not ready_file.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the broker does not become ready"
        time.sleep(0.01)  # the condition is in another process
    facts: dict[str, str | None] = json.loads(ready_file.read_text("utf-8"))
    return facts
