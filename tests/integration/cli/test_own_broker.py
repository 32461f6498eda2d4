"""A command's own broker restarts on its port."""

import asyncio
import socket
from pathlib import Path

import pytest

from braidmq.cli import own_broker as demo_broker
from braidmq.cli.own_broker import BrokerProcess


@pytest.mark.asyncio
async def test_a_restart_retries_a_port_that_is_briefly_in_use(tmp_path: Path) -> None:
    """The kernel may give the free port to a client that looks for the broker."""
    broker = BrokerProcess(tmp_path, listeners=["qumbed"])
    await broker.start()
    host, port = broker.addresses["qumbed"].split(":")
    await broker.kill()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((host, int(port)))
        starting = asyncio.ensure_future(broker.start())
        log = tmp_path / "broker.log"
        while "already in use" not in log.read_text():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(demo_broker.LOOK_S)
    await starting

    assert f"{host}:{port}" == broker.addresses["qumbed"]
    assert 0 == await broker.stop()
