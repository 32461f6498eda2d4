"""Readiness while the broker starts, from the real daemon over HTTP."""

import asyncio
import http.client
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.testing import FakeClock, running_broker
from tests.unit.admin.queue_broker import publish

PATIENCE_S: Final = 20.0
ALIVE: Final = ("/healthz", "/livez")
FREE_PORTS: Final = {
    "dev": True,
    "flight": {"enabled": False},
    **{listener: {"port": 0} for listener in ("blip", "vibe", "qumbed", "http")},
}


class Gate:
    """Blocks the recovery that reports to it until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _done: int, _total: int) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


def getter(daemon: Daemon) -> Callable[[str], tuple[int, bytes]]:
    """Return a function that requests a path and returns the status and the body."""
    host, _, port = str(daemon.addresses["http"]).rpartition(":")

    def get(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    return get


@pytest.mark.asyncio
async def test_the_broker_is_not_ready_until_the_log_is_recovered(tmp_path: Path) -> None:
    """It is alive meanwhile, so that a supervisor does not restart it."""
    clock, gate = FakeClock(), Gate()
    async with running_broker(data_dir=tmp_path, clock=clock) as broker:
        await publish(broker, "orders", b"kept")
    config = Config.model_validate({"data_dir": tmp_path, **FREE_PORTS})
    daemon = Daemon(config, clock=clock, watch=gate)
    starting = asyncio.create_task(daemon.start())
    try:
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        get = getter(daemon)
        not_ready = await asyncio.to_thread(get, "/readyz")
        alive = [(await asyncio.to_thread(get, path))[0] for path in ALIVE]
        gate.opened.set()
        await starting
        ready = await asyncio.to_thread(get, "/readyz")
    finally:
        gate.opened.set()
        await asyncio.gather(starting, return_exceptions=True)
        await daemon.stop()

    assert (503, b'{"error":"recovering the log"}') == not_ready
    assert [200, 200] == alive
    assert (200, b'{"status":"ready"}') == ready
