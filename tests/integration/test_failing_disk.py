"""The real process on a disk that fails, is full or hangs while it runs; no root is needed."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from braidmq.testing import RunningBroker
from tests.integration import vibe_peer
from tests.integration.blip.peer import ping, poll, pong, publish
from tests.integration.served import Served, served
from tests.integration.vibe.peer import ERROR, PONG

pytestmark = pytest.mark.asyncio

CONFIG: Final = """
[wal]
segment_bytes = 65536
[delivery]
window = 4
[limits]
drain_s = 0.1
"""
PRELUDE: Final = """
import errno, os, time
from braidmq.wal.disk import DiskFile
def _failing(name):
    real = getattr(DiskFile, name)
    def call(file, *args):
        while (fault := open(os.environ["FAULT"]).read().split())[:2] == [name, "hangs"]:
            time.sleep(0.01)
        if fault and fault[0] == name:
            raise OSError(getattr(errno, fault[1]), os.strerror(getattr(errno, fault[1])))
        return real(file, *args)
    setattr(DiskFile, name, call)
for name in ("pread", "pwrite", "fdatasync"):
    _failing(name)
"""
"""Lets one operation of the broker's files fail, or hang, as a file says."""


class FaultyDisk:
    """What is wrong with the disk of a broker at the moment."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fault"
        self.heal()

    def fail(self, operation: str, error: str) -> None:
        """Let *operation* fail with *error*, or hang if that is "hangs"."""
        other = self.path.with_suffix(".new")
        other.write_text(f"{operation} {error}")
        other.replace(self.path)

    def heal(self) -> None:
        self.fail("nothing", "fails")


@asynccontextmanager
async def on(disk: FaultyDisk) -> AsyncIterator[Served]:
    environment = {"FAULT": str(disk.path)}
    async with served(
        disk.path.parent, config=CONFIG, environment=environment, prelude=PRELUDE
    ) as broker:
        await broker.ready()
        yield broker


class _Addressed:
    """As much of a running broker as a Vibe peer asks for."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def address(self, strand: str) -> tuple[str, int]:
        host, _, port = self._broker.facts()[strand].rpartition(":")
        return host, int(port)


@asynccontextmanager
async def vibe(broker: Served) -> AsyncIterator[vibe_peer.Peer]:
    async with vibe_peer.connected(cast("RunningBroker", _Addressed(broker))) as peer:
        yield peer


async def test_backlog_that_the_disk_does_not_return_is_no_damage(tmp_path: Path) -> None:
    """EIO while reading ends the broker with 74; there is no advice to give anything up."""
    disk = FaultyDisk(tmp_path)
    async with on(disk) as broker, broker.peer() as peer:
        subscription = await peer.subscribe("t")
        for number in range(8):
            await peer.publish("t", b"%d" % number + bytes(20_000))
        disk.fail("pread", "EIO")
        peer.send(*(poll(number, subscription) for number in range(1, 9)))
        assert 74 == await broker.ended()
        assert "Input/output error" in broker.stderr
        assert "check the disk" in broker.stderr
        assert "accept-loss" not in broker.stderr
        assert "Traceback" not in broker.stderr


async def test_on_a_full_disk_no_pong_confirms_a_reject_that_a_kill_undoes(
    tmp_path: Path,
) -> None:
    """It gets an Error, before any Pong, and after the kill the message is there again."""
    disk = FaultyDisk(tmp_path)
    async with on(disk) as broker, vibe(broker) as peer:
        await peer.subscribe("q")
        await peer.publish_all("q", ["m"])
        await peer.delivered()
        disk.fail("pwrite", "ENOSPC")
        peer.send(vibe_peer.ack("m", result="reject"), vibe_peer.ping("p"))
        answers = [await peer.next()]
        while answers[-1].kind not in {ERROR, PONG}:
            answers.append(await peer.next())
        await broker.end(signal.SIGKILL)
    assert (ERROR, "m") == (answers[-1].kind, answers[-1].id)
    disk.heal()
    async with on(disk) as broker, vibe(broker) as peer:
        await peer.subscribe("q")
        assert "m" == (await peer.delivered()).id
        assert 0 == await broker.end()


async def test_a_disk_that_hangs_is_waited_for(tmp_path: Path) -> None:
    """Nothing is confirmed meanwhile, health answers, and it goes on when the disk does."""
    disk = FaultyDisk(tmp_path)
    async with on(disk) as broker, broker.peer() as peer:
        subscription = await peer.subscribe("t")
        disk.fail("fdatasync", "hangs")
        peer.send(publish(9, "t", b"x"), ping(7))
        answer = asyncio.create_task(peer.expect(pong(7)))
        assert 200 == (await broker.get("/healthz"))[0]
        assert not answer.done()
        disk.heal()
        await answer
        assert b"x" == (await peer.take(subscription))[1]
        assert 0 == await broker.end()
