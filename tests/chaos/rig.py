"""The rig of the chaos tests: the real daemon in its own process, with clients over sockets.

Starting Python takes longer than the daemon lives between two kills. So a launcher imports the
program once and forks for each run; the child runs `braidmq serve` with its arguments.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from braidmq.testing.clients import (
    PLANS,
    BlipClient,
    Client,
    Consumer,
    Plan,
    Publisher,
    Scene,
)
from braidmq.testing.ledger import Ledger, Violation, check
from braidmq.wire.blip import frames

BACKOFF_MAX_S: Final = 0.3
PACE_S: Final = 0.004
PUBLISHER_PACE_S: Final = 0.02
"""The pause between two steps of a client: enough load, but not a flood."""

UNANSWERED_MAX: Final = 4
LOOK_S: Final = 0.002
START_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 20.0
DRAIN_ROUNDS_MAX: Final = 3000
PUBLISHERS: Final = 2
BREAK_CHANCE: Final = 0.01

SETTINGS: Final = {
    "BRAIDMQ_WAL__SEGMENT_BYTES": "65536",
    "BRAIDMQ_WAL__SNAPSHOT_INTERVAL_S": "0.2",
    "BRAIDMQ_WAL__RETENTION_HOURS": "0.0002",
    "BRAIDMQ_DELIVERY__RETRY_BACKOFF_MS": "100",
    "BRAIDMQ_DELIVERY__RETRY_BACKOFF_MAX_MS": str(int(BACKOFF_MAX_S * 1000)),
    # A kill loses deliveries on the wire, and those count as attempts. So this must be high
    # enough that no message comes to its last attempt before a consumer has seen it.
    "BRAIDMQ_DELIVERY__MAX_RETRIES": "6",
    "BRAIDMQ_DELIVERY__WINDOW": "64",
}
_LAUNCHER: Final = """
import json, os, signal, sys
import braidmq.daemon.daemon
from braidmq.cli.main import run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while line := sys.stdin.readline():
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a socket must not get this number
        sys.argv = ["braidmq", *json.loads(line)]
        run()
    print(pid, flush=True)
"""


class Daemon:
    """The broker's process, started and killed many times."""

    def __init__(
        self,
        directory: Path,
        data_dir: Path,
        settings: dict[str, str],
        *,
        qumbed: str = "off",
        http: str = "off",
        prelude: str = "",
    ) -> None:
        self._ready_file = directory / "ready.json"
        self._log = directory / "daemon.log"
        self._flags = ["--dev", "--data-dir", str(data_dir), "--blip", "127.0.0.1:0"]
        self._flags += ["--vibe", "127.0.0.1:0", "--qumbed", qumbed, "--http", http]
        self._flags += ["--flight", "off"]
        self._flags += ["--ready-file", str(self._ready_file)]
        with self._log.open("a") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-c", prelude + _LAUNCHER],
                env={**os.environ, **SETTINGS, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pid = 0
        self.port = 0
        self.vibe_port = 0
        self.http_port = 0  # set while HTTP is on
        self.qumbed_port = 0  # set while Qumbed is on, like the two below
        self.fingerprint = ""
        self.gateway_key = b""

    def start(self) -> None:
        """Start the broker, and wait until it accepts connections."""
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._ready_file.unlink(missing_ok=True)
        self._launcher.stdin.write(json.dumps(["serve", *self._flags]) + "\n")
        self._launcher.stdin.flush()
        self.pid = int(self._launcher.stdout.readline())
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            assert self.is_alive(), f"the broker did not start: {self.last_words()}"
            assert time.monotonic() < deadline, "the broker did not get ready"
            time.sleep(LOOK_S)
        facts = json.loads(self._ready_file.read_text())
        self.port = int(facts["blip"].rpartition(":")[2])
        self.vibe_port = int(facts["vibe"].rpartition(":")[2])
        if facts["http"] is not None:
            self.http_port = int(facts["http"].rpartition(":")[2])
        if facts["qumbed"] is not None:
            self.qumbed_port = int(facts["qumbed"].rpartition(":")[2])
            self.fingerprint = facts["qumbed_fingerprint"]
            self.gateway_key = bytes.fromhex(facts["gateway_public_key"])

    def is_alive(self) -> bool:
        """Say whether the process is running."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Kill the broker as `kill -9` does, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.is_alive():
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Kill the broker and the launcher."""
        if self.pid:
            self.kill()
        with self._launcher:
            self._launcher.kill()

    def last_words(self) -> str:
        """Return the last lines of the broker's log."""
        return self._log.read_text()[-2000:]


class Carrier(asyncio.Protocol):
    """The connection of a client over a socket, whatever protocol it speaks."""

    client: Client | None = None

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        self.heard = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.heard.set()

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """Drop the connection."""
        assert self.transport is not None
        self.transport.abort()

    async def answered(self, unanswered_max: int) -> None:
        """Wait until at most *unanswered_max* requests are open, or the connection is gone."""
        assert self.client is not None
        while self.client.unanswered > unanswered_max and not self.gone.is_set():
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), ANSWER_TIMEOUT_S)


class SocketClient(Carrier):
    """The connection of a Blip client."""

    client: BlipClient | None = None

    def __init__(self) -> None:
        super().__init__()
        self._decoder = frames.FrameDecoder()

    def data_received(self, data: bytes) -> None:
        assert self.client is not None
        self._decoder.receive_data(data)
        while kind := self._decoder.advance():
            self.client.receive(kind, self._decoder.correlation_id, self._decoder.payload())
        self.heard.set()


@dataclass
class Rig:
    """One data directory, the broker that runs on it again and again, and one ledger."""

    directory: Path
    seed: int
    data_dir: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    qumbed: str = "off"
    http: str = "off"
    prelude: str = ""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ledger = Ledger(self.directory / "ledger.jsonl")
        self.scene = self.new_scene()
        self._names = 0
        data_dir = self.data_dir if self.data_dir is not None else self.directory / "data"
        self.daemon = Daemon(
            self.directory,
            data_dir,
            self.settings,
            qumbed=self.qumbed,
            http=self.http,
            prelude=self.prelude,
        )

    def new_scene(self) -> Scene:
        """Return the state that all clients share."""
        return Scene(self.rng, self.ledger)

    def close(self) -> None:
        """Kill all processes."""
        self.daemon.close()
        self.ledger.close()

    async def live(self, seconds: float) -> list["asyncio.Task[None]"]:
        """Put load on the broker for a while; return the tasks of the clients."""
        tasks = [asyncio.create_task(work) for work in self.load()]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return tasks

    def load(self) -> list[Coroutine[None, None, None]]:
        """Return the clients' work, each for as long as the broker runs."""
        works = [self._keep(None) for _ in range(PUBLISHERS)]
        for plan in PLANS:
            works += [self._keep(plan, number) for number in range(plan.consumers)]
        return works

    async def rest(self, tasks: list["asyncio.Task[None]"]) -> None:
        """Stop the load, after the broker is gone."""
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _keep(self, role: Plan | None, number: int = 0) -> None:
        """Keep a client of this role connected; replace it when its connection is lost."""
        while True:
            waits = role not in self.scene.roles()
            second = number > 0 and role not in self.scene.subscriptions
            if waits or second:
                await asyncio.sleep(PACE_S)
                continue
            try:
                carrier = await self.connect(role)
            except OSError:
                return  # the broker is gone
            try:
                await self._work(carrier, role)
            finally:
                carrier.abort()

    async def _work(self, carrier: Carrier, role: Plan | None) -> None:
        may_break = role is None or not role.ordered
        pace_s = PUBLISHER_PACE_S if role is None else PACE_S
        await self.work(carrier, may_break=may_break, pace_s=pace_s)

    async def work(self, carrier: Carrier, *, may_break: bool, pace_s: float) -> None:
        """Let a client work until its connection is lost or it drops it itself."""
        assert carrier.client is not None
        while not carrier.gone.is_set():
            if may_break and self.rng.random() < BREAK_CHANCE:
                return
            self.act(carrier.client)
            await carrier.answered(UNANSWERED_MAX)
            await asyncio.sleep(pace_s)

    def act(self, client: Client) -> None:
        """Let a client take one step."""
        client.act()

    async def connect(self, role: Plan | None) -> SocketClient:
        """Connect a consumer of a plan, or a publisher."""
        loop = asyncio.get_running_loop()
        _, carrier = await loop.create_connection(SocketClient, "127.0.0.1", self.daemon.port)
        name = self.new_name()
        if role is None:
            carrier.client = Publisher(self.scene, name, carrier.send)
        else:
            carrier.client = Consumer(self.scene, name, carrier.send, role)
        return carrier

    def new_name(self) -> str:
        """Return a name that no connection has had yet."""
        self._names += 1
        return f"{self.daemon.pid}.{self._names}"

    def start(self) -> None:
        """Start the broker."""
        self.daemon.start()

    async def drain_and_judge(self, drains: int = 2) -> list[Violation]:
        """Drain the broker, kill it and drain it again; return the violations.

        Messages taken in the first round must not come back in the second.
        """
        for _ in range(drains):
            self.start()
            await self.drain()
            self.daemon.kill()
        return self.verdict()

    def verdict(self) -> list[Violation]:
        """Return the violations in the ledger after everything was drained."""
        for subscription in self.scene.subscriptions.values():
            self.ledger.drained(subscription)
        return check(self.ledger)

    async def drain(self) -> None:
        """Take every message that the broker has, until no more come."""
        carriers = await self.connect_drainers()
        quiet = 0
        for _ in range(DRAIN_ROUNDS_MAX):
            taken = sum([await self.drain_once(carrier) for carrier in carriers])
            quiet = 0 if taken or self.has_backlog(carriers) else quiet + 1
            if quiet > 1:
                break
            if not taken:
                await asyncio.sleep(2 * BACKOFF_MAX_S)
        else:
            raise AssertionError("the broker never runs out of messages")
        for carrier in carriers:
            carrier.abort()
            await carrier.gone.wait()

    def has_backlog(self, carriers: list[Carrier]) -> bool:
        """Say whether the broker reports a backlog, even if it delivers nothing now."""
        del carriers  # Blip cannot report one
        return False

    async def connect_drainers(self) -> list[Carrier]:
        """Connect the consumers that take every message."""
        return [await self.connect(plan) for plan in list(self.scene.subscriptions)]

    async def drain_once(self, carrier: Carrier) -> int:
        """Take the messages that come now, and return how many they were."""
        drainer = carrier.client
        assert isinstance(drainer, Consumer)
        assert not carrier.gone.is_set(), self.daemon.last_words()
        if not drainer.subscription:
            return 0
        drainer.care = 1.0
        before = drainer.delivered
        drainer.ask(32)
        drainer.fence()
        await carrier.answered(0)
        drainer.acknowledge_all()
        await carrier.answered(0)
        return drainer.delivered - before
