"""A broker that a command starts for itself, in a process of its own.

The demo kills and restarts it; `braidmq bench` measures it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from braidmq.base.errors import EXIT_ADDRESS_IN_USE, BraidError

PROGRAM: Final = (sys.executable, "-c", "from braidmq.cli.main import run; run()")
LISTENERS: Final = ("blip", "vibe", "qumbed", "http", "flight")
START_S_MAX: Final = 60.0
LOOK_S: Final = 0.02
SETTINGS: Final = {"BRAIDMQ_QUMBED__OFFLINE_S": "60"}
"""Qumbed subscribers that reconnect after the kill get what they missed meanwhile."""


class DemoError(BraidError):
    """A command that starts its own broker could not finish."""


class BrokerProcess:
    """A broker with its files in *directory*, on free ports that it keeps when restarted."""

    def __init__(
        self,
        directory: Path,
        *,
        listeners: Sequence[str] = LISTENERS,
        settings: Mapping[str, str] = SETTINGS,
    ) -> None:
        self.data_dir = directory / "data"
        self._ready_file = directory / "ready.json"
        self._log_file = directory / "broker.log"
        self._process: asyncio.subprocess.Process | None = None
        self._settings = settings
        self.addresses = dict.fromkeys(LISTENERS, "off")
        self.addresses.update(dict.fromkeys(listeners, "127.0.0.1:0"))
        if find_spec("pyarrow") is None:
            self.addresses["flight"] = "off"
        self._fingerprint = ""

    def url(self, scheme: str) -> str:
        """Return the address that clients and commands connect to."""
        pinned = f"?fingerprint={self._fingerprint}" if scheme == "qumbed" else ""
        return f"{scheme}://dev-key@{self.addresses[scheme]}{pinned}"

    async def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises:
            DemoError: It did not start.
        """
        deadline = time.monotonic() + START_S_MAX
        # A restart wants the same ports. While the broker is down, the kernel may hand one of
        # them to a reconnecting client as its own port, but only for a moment: try again.
        code = await self._run(deadline)
        while code == EXIT_ADDRESS_IN_USE and time.monotonic() < deadline:
            code = await self._run(deadline)
        if not self._ready_file.exists():
            raise DemoError(f"the broker did not start: {self._last_words()}")
        # The broker chose free ports. From now on ask for these, so that clients find it again.
        facts = json.loads(self._ready_file.read_text("utf-8"))
        self.addresses = {listener: facts[listener] or "off" for listener in LISTENERS}
        self._fingerprint = facts["qumbed_fingerprint"] or ""

    async def _run(self, deadline: float) -> int | None:
        """Start it once; return its exit code if it ends before it is ready."""
        self._ready_file.unlink(missing_ok=True)
        places = ("--data-dir", str(self.data_dir), "--ready-file", str(self._ready_file))
        listeners = [f"--{name}={address}" for name, address in self.addresses.items()]
        whole = (*PROGRAM, "serve", "--dev", *places, *listeners)
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *whole, stderr=log, env={**environment(), **self._settings}
            )
        while not self._ready_file.exists() and time.monotonic() < deadline:
            if self._process.returncode is not None:
                return self._process.returncode
            await asyncio.sleep(LOOK_S)
        return None

    async def command(self, *words: str) -> str:
        """Run a command against this broker; return its output.

        Raises:
            DemoError: It failed.
        """
        whole = (*PROGRAM, *words, "--url", self.url("http"))
        process = await asyncio.create_subprocess_exec(
            *whole, stdout=PIPE, stderr=STDOUT, env=environment()
        )
        said = (await process.communicate())[0].decode().strip()
        if process.returncode != 0:
            raise DemoError(f"braidmq {' '.join(words)}: {said}")
        return said

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would: it can write nothing more."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        """Stop it with SIGTERM; return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self._process.wait()

    def _last_words(self) -> str:
        said = self._log_file.read_text("utf-8", "replace").splitlines()
        return said[-1] if said else "it printed nothing"


def environment() -> dict[str, str]:
    """Return the environment without BRAIDMQ_ variables, which configure another broker."""
    return {k: v for k, v in os.environ.items() if not k.startswith("BRAIDMQ_")}
