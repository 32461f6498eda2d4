"""A real broker in its own process, for tests of the commands that talk to one."""

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

from braidmq.cli.main import main

START_S_MAX = 60
STOP_S_MAX = 30
BRAIDMQ = [sys.executable, "-c", "from braidmq.cli.main import run; run()"]


@dataclass
class Broker:
    """A running broker and its addresses."""

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
        """Stop it with SIGTERM; return its exit code and its log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=STOP_S_MAX)
        return self.process.returncode, log


@contextmanager
def running(directory: Path, *flags: str) -> Iterator[Broker]:
    """Start a broker in development mode below *directory*, on free ports."""
    ready_file = directory / "ready.json"
    addresses = ["--blip", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    others = ["--vibe", "off", "--qumbed", "off", "--flight", "off"]
    paths = ["--data-dir", str(directory / "data"), "--ready-file", str(ready_file)]
    process = subprocess.Popen(
        [*BRAIDMQ, "serve", "--dev", *addresses, *others, *paths, *flags],
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
    """Configure the commands of this process with the broker's addresses."""
    for strand in ("blip", "http"):
        _, _, number = str(broker.addresses[strand]).rpartition(":")
        monkeypatch.setenv(f"BRAIDMQ_{strand.upper()}__PORT", number)
    for strand in ("vibe", "qumbed", "flight"):
        monkeypatch.setenv(f"BRAIDMQ_{strand.upper()}__ENABLED", "false")


def subscriptions(broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Return the number of subscriptions to a topic."""
    main(["topics", "--url", broker.http_url(), "--json"])
    rows = json.loads(capsys.readouterr().out)
    return sum(row["subscriptions"] for row in rows if row["name"] == topic)


def _ready(process: subprocess.Popen[str], ready_file: Path) -> dict[str, str | None]:
    deadline = time.monotonic() + START_S_MAX
    while not ready_file.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the broker did not become ready"
        time.sleep(0.01)  # another process writes it
    facts: dict[str, str | None] = json.loads(ready_file.read_text("utf-8"))
    return facts
