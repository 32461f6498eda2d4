"""The real process on a file system without room: a tmpfs of its own, where one can be mounted.

What needs no real file system is in tests/simulation and tests/unit/daemon, on the fake disk.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.blip.peer import NACK, Peer, ping, pong, publish
from tests.integration.served import Served, served

pytestmark = pytest.mark.asyncio

SIZE_BYTES: Final = 3 * 1024 * 1024
CONFIG: Final = """
[wal]
segment_bytes = 262144
snapshot_interval_s = 3600
retention_hours = 0
retention_bytes = 262144
[limits]
drain_s = 0.1
"""
PAYLOAD: Final = bytes(50_000)


def can_mount() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            check=False,
            capture_output=True,
        ).returncode
        == 0
    )


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs root that may mount a tmpfs")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Return a directory whose data directory is on a small file system of its own."""
    data = tmp_path / "data"
    data.mkdir()
    options = f"size={SIZE_BYTES},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", data], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", data], check=True)


def fill(directory: Path) -> Path:
    """Take all the room that is left, and return the file that has it."""
    path = directory / "data" / "ballast"
    with path.open("ab", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


async def is_accepted(peer: Peer) -> bool:
    """Return whether what was sent just now is committed, and not refused."""
    peer.send(ping(10))
    answer = await peer.next()
    if answer.kind == NACK:
        await peer.expect(pong(10))
    return answer.kind != NACK


async def fill_log(peer: Peer) -> int:
    """Publish until the log refuses; return how many it took."""
    for number in range(10_000):
        peer.send(publish(9, "t", b"%d" % number + PAYLOAD))
        if not await is_accepted(peer):
            return number
    raise AssertionError("the disk is never full")


@needs_mount
async def test_a_full_disk_drains_and_resumes_while_publishers_retry(small: Path) -> None:
    """Retention goes on, however often a publisher comes back."""
    async with served(small, config=CONFIG) as broker:
        await broker.ready()
        async with broker.peer() as publisher, broker.peer() as consumer:
            subscription = await consumer.subscribe("t")
            accepted = await fill_log(publisher)
            retrying = asyncio.create_task(retry(broker))
            for number in range(accepted):
                tag, payload = await consumer.take(subscription)
                assert b"%d" % number + PAYLOAD == payload
                await consumer.acknowledge(subscription, tag)
            assert await asyncio.wait_for(retrying, 60)
        assert 0 == await broker.end()


async def retry(broker: Served) -> bool:
    """Publish again and again until it is accepted."""
    async with broker.peer() as peer:
        for _ in range(100_000):
            peer.send(publish(9, "other", PAYLOAD))
            if await is_accepted(peer):
                return True
    return False


@needs_mount
async def test_a_start_on_a_full_disk_refuses_publishers_and_lets_consumers_drain(
    small: Path,
) -> None:
    """And it accepts publishers again by itself once there is room."""
    async with served(small, config=CONFIG) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            for number in range(20):
                await peer.publish("t", b"%d" % number + PAYLOAD)
        await broker.end(signal.SIGKILL)
    (small / "data" / "wal" / "reserve").unlink()
    for index in (small / "data" / "wal").glob("*.idx"):
        index.unlink()
    ballast = fill(small)
    async with served(small, config=CONFIG) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            peer.send(publish(9, "t", PAYLOAD))
            assert (NACK, 9) == (await peer.next())[:2]
            for number in range(20):
                assert b"%d" % number + PAYLOAD == (await peer.take(subscription))[1]
            ballast.unlink()
            assert await retry(broker)
        assert 0 == await broker.end()
        assert "Traceback" not in broker.stderr
