"""Run `braidmq serve` as its own process, for tests that see it from the outside."""

import asyncio
import hashlib
import http.client
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.integration.blip.peer import PATIENCE_S, Peer, until

_RUN: Final = "from braidmq.cli.main import run; run()"
COMMAND: Final = (sys.executable, "-c", _RUN, "serve")


class Served:
    """A running `braidmq serve`."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.ready_file = directory / "ready.json"
        self._stderr = bytearray()
        self._listening = asyncio.create_task(self._listen())

    @property
    def stderr(self) -> str:
        return self._stderr.decode()

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65536):
            self._stderr += data

    def facts(self) -> dict[str, Any]:
        """Return the content of the ready file, or nothing; it must never be half written."""
        try:
            text = self.ready_file.read_text()
        except FileNotFoundError:
            return {}
        facts = json.loads(text)
        assert isinstance(facts, dict)
        return facts

    async def ready(self) -> dict[str, Any]:
        def is_ready() -> bool:
            assert self.process.returncode is None, self.stderr
            return self.facts().get("pid") == self.process.pid

        await until(is_ready)
        return self.facts()

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            await self._listening
            return await self.process.wait()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.tell(number)
        return await self.ended()

    @asynccontextmanager
    async def peer(self, key: str = "dev-key") -> AsyncIterator[Peer]:
        """Connect and do the handshake."""
        host, _, port = self.facts()["blip"].rpartition(":")
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(Peer, host, int(port))
        try:
            await peer.log_in(key)
            yield peer
        finally:
            await peer.leave()

    async def get(self, path: str, key: str = "") -> tuple[int, str]:
        """Send a GET to the HTTP listener, with an API key unless that is empty."""

        def response_of() -> tuple[int, str]:
            host, _, port = self.facts()["http"].rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
            try:
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                return response.status, response.read().decode()
            finally:
                connection.close()

        return await asyncio.to_thread(response_of)


@asynccontextmanager
async def served(
    directory: Path,
    *flags: str,
    config: str = "",
    dev: bool = True,
    environment: dict[str, str] | None = None,
    ulimit: str = "",
    prelude: str = "",
) -> AsyncIterator[Served]:
    """Run a broker in *directory* on free ports; kill it at the end if it still runs.

    *ulimit* are words for the shell's command of that name: `-n 500` bounds its open files.
    *prelude* is Python that its process runs before the program.
    """
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs meanwhile
    (directory / "braidmq.toml").write_text(config)
    command = [
        *(sys.executable, "-c", prelude + _RUN, "serve"),
        *(["--dev"] if dev else []),
        *("--config", str(directory / "braidmq.toml")),
        *("--data-dir", str(directory / "data")),
        *("--blip", "127.0.0.1:0", "--vibe", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--qumbed", "127.0.0.1:0", "--flight", "off"),
        *("--ready-file", str(directory / "ready.json")),
        *flags,
    ]
    if ulimit:
        command = ["sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh", *command]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})}
    )
    broker = Served(process, directory)
    try:
        yield broker
    finally:
        if process.returncode is None:
            process.kill()
        await broker.ended()


def key_section(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (
        f'[[auth.keys]]\nname = "{name}"\nhash = "sha256:{digest}"\n'
        'publish = ["*"]\nsubscribe = ["*"]\n'
    )


async def refused(
    directory: Path,
    *flags: str,
    config: str = "",
    dev: bool = True,
    environment: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Run a broker that cannot start; return its exit code and its last line."""
    starting = served(directory, *flags, config=config, dev=dev, environment=environment)
    async with starting as broker:
        code = await broker.ended()
        last = broker.stderr.splitlines()[-1]
        assert "Traceback" not in broker.stderr
        assert last.startswith("error: "), broker.stderr
        assert not broker.ready_file.exists()
        return code, last
