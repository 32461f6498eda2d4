"""The process's memory with a subscriber that never reads and a publisher that floods.

test_limits.py checks the same limits from the inside.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    Stream,
    opened,
    publish,
)
from tests.integration.qumbed.process import MIB, address, joined, rss_bytes
from tests.integration.qumbed.slow import slow
from tests.integration.served import served

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

PAYLOAD: Final = bytes(48_000)
COUNT: Final = 180
LOAD_BYTES: Final = COUNT * len(PAYLOAD)
WINDOW_BYTES: Final = 64 * 1024
PIPELINED: Final = 20

FLOOD_BYTES: Final = 12 * MIB

GROWTH_BYTES_MAX: Final = 3 * MIB
"""A stuck subscriber may cost a window and one read of the log. A flood may cost the output
buffer full of answers, a stream's window, the read-ahead and one batch for the log. On top
comes what the allocator keeps."""

CONFIG: Final = f"""
[qumbed]
window_bytes = {WINDOW_BYTES}
[limits]
output_buffer_bytes = 100000
"""

# If the broker held either load in memory, the test would notice.
assert min(LOAD_BYTES, FLOOD_BYTES // 2) > 1.8 * GROWTH_BYTES_MAX


async def load(reader: Stream, writer: Stream, *, routed: int) -> None:
    """Publish more than a stuck subscriber has room for; *reader* gets all of it."""
    for first in range(0, COUNT, PIPELINED):
        numbers = range(first, min(first + PIPELINED, COUNT))
        for number in numbers:
            writer.send(publish("t", b"%d:" % number + PAYLOAD))
        for number in numbers:
            assert routed == (await writer.answer())["a"]["delivered"]
            payload = opened(await reader.message(), BOB)
            assert b"%d" % number == payload.partition(b":")[0]


async def test_a_stuck_subscriber_costs_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    """With megabytes waiting for it the process hardly grows; others get everything."""
    async with served(tmp_path, config=CONFIG) as broker:
        await broker.ready()
        async with (
            slow(address(broker, "qumbed"), broker.facts()["qumbed_fingerprint"]) as peer,
            joined(broker) as other,
        ):
            reader, writer = other.open(), other.open()
            await reader.subscribe("t", BOB)
            await load(reader, writer, routed=1)  # warm-up: what any load leaves behind
            before = rss_bytes(broker.process.pid)
            stuck = await peer.stuck_subscriber("t", ALICE)
            await load(reader, writer, routed=2)
            grown = rss_bytes(broker.process.pid) - before
            assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.1f} MiB"
            stuck.resume()
            for number in range(COUNT):
                (message,) = await stuck.frames(1)
                assert b"%d" % number == opened(message, ALICE).partition(b":")[0]

            grown = rss_bytes(broker.process.pid) - before
            assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.1f} MiB"


async def test_a_flooding_publisher_costs_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    """The broker stops reading from a publisher that reads no answers; others are served."""
    async with served(tmp_path, config=CONFIG) as broker:
        await broker.ready()
        async with (
            slow(address(broker, "qumbed"), broker.facts()["qumbed_fingerprint"]) as peer,
            joined(broker) as other,
        ):
            reader, writer = other.open(), other.open()
            await reader.subscribe("u", BOB)
            flooder = peer.open()
            flood = [publish("t", bytes(1_000))] * 100
            for _ in range(10):  # warm-up: what any load leaves behind
                flooder.send(*flood)
                await flooder.frames(len(flood))
            before = rss_bytes(broker.process.pid)
            flooder.pause()
            sent = 0
            while flooder.unsent_bytes() < FLOOD_BYTES:
                flooder.send(*flood)
                sent += len(flood)
                await asyncio.sleep(0)
                assert sent < 50_000  # the broker must stop reading well before that
            left = 0
            while left != (left := flooder.unsent_bytes()):  # until the broker stops reading it
                for number in range(50):
                    assert 1 == (await writer.publish("u", b"%d" % number))["delivered"]
                    assert b"%d" % number == opened(await reader.message(), BOB)
            grown = rss_bytes(broker.process.pid) - before
            assert left > FLOOD_BYTES // 2
            assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.1f} MiB"
            flooder.resume()

            assert all(one["a"]["ok"] for one in await flooder.frames(sent))
