"""The real process without a free descriptor, or memory for a thread: the log goes on."""

import asyncio
import resource
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.integration.blip.peer import until
from tests.integration.served import Served, served

pytestmark = pytest.mark.asyncio

CONFIG: Final = """
[wal]
segment_bytes = 65536
snapshot_interval_s = 1
[delivery]
window = 4
"""
COUNT: Final = 40
PAYLOAD: Final = bytes(20_000)
BELOW_STACK_BYTES: Final = 4 * 1024 * 1024
"""Some memory, but less than the stack of a thread takes."""


def opened(broker: Served) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{broker.process.pid}/fd").iterdir()}


async def use_up_descriptors(broker: Served, strangers: AsyncExitStack) -> None:
    """Let strangers take every descriptor, but for those that the broker holds."""
    host, _, port = broker.facts()["blip"].rpartition(":")
    highest = max(opened(broker))
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
    for _ in range(highest + 1 - len(opened(broker))):
        _, writer = await asyncio.open_connection(host, int(port))
        strangers.callback(writer.close)
    await until(lambda: len(opened(broker)) == highest + 1)


async def test_without_a_free_descriptor_the_log_goes_on(tmp_path: Path) -> None:
    """It rotates, takes snapshots and reads backlog; nothing that it confirms is lost."""
    taken = tmp_path / "data" / "snapshot"
    async with served(tmp_path, config=CONFIG) as broker:
        await broker.ready()
        async with (
            broker.peer() as publisher,
            broker.peer() as consumer,
            AsyncExitStack() as strangers,
        ):
            subscription = await consumer.subscribe("t")
            await use_up_descriptors(broker, strangers)
            for number in range(COUNT):
                await publisher.publish("t", b"%d" % number + PAYLOAD)
            before = sorted(taken.glob("*.snap"))
            await publisher.publish("other", b"so that the next snapshot has another name")
            await until(lambda: sorted(taken.glob("*.snap")) != before)
            for number in range(COUNT):
                tag, payload = await consumer.take(subscription)
                assert b"%d" % number + PAYLOAD == payload
                await consumer.acknowledge(subscription, tag)
        assert len(list((tmp_path / "data" / "wal").glob("*.wal"))) > COUNT // 4
        assert 0 == await broker.end()
        assert "Traceback" not in broker.stderr
    async with served(tmp_path, config=CONFIG) as broker:
        await broker.ready()
        assert 0 == await broker.end()


def mapped_bytes(broker: Served) -> int:
    pages = Path(f"/proc/{broker.process.pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


async def test_without_memory_for_a_thread_the_log_goes_on(tmp_path: Path) -> None:
    """The threads of snapshots, reads, password checks and pages run before they are needed."""
    taken = tmp_path / "data" / "snapshot"
    async with served(tmp_path, config=CONFIG) as broker:
        await broker.ready()
        limit = mapped_bytes(broker) + BELOW_STACK_BYTES
        resource.prlimit(broker.process.pid, resource.RLIMIT_AS, (limit, limit))
        async with broker.peer() as peer:
            subscription = await peer.subscribe("t")
            for number in range(COUNT):
                await peer.publish("t", b"%d" % number + PAYLOAD)
            await until(lambda: list(taken.glob("*.snap")))
            for number in range(COUNT):
                tag, payload = await peer.take(subscription)
                assert b"%d" % number + PAYLOAD == payload
                await peer.acknowledge(subscription, tag)
        assert 0 == await broker.end()
        assert "Traceback" not in broker.stderr
