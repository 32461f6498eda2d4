"""Ten thousand idle strangers and one key that uses up its quotas, beside a healthy client.

The bound on memory is asserted, and that nothing of the healthy client is lost. Its p99 is
printed with and without them: times differ from machine to machine, and from hour to hour.
"""

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from braidmq.base.errors import BraidError
from braidmq.broker.quotas import (
    CURSORS,
    DEFAULTS,
    FLIGHT_STREAMS,
    QUEUES,
    SUBSCRIPTIONS,
    TOPICS,
    UNFINISHED_BYTES,
)
from braidmq.columnar.endpoint import Endpoint
from tests.chaos.watched import Watched, healthy, p99_alone, report
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import Peer
from tests.integration.served import Served, key_section, served
from tests.integration.vibe import peer as vibe

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.campaign,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

STRANGERS: Final = 10_000
CHUNK: Final = 500
"""Requests that are sent at a time."""

FRAME_BYTES: Final = 15 * 1024 * 1024
ATTACK_S: Final = 10.0


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process hold as many sockets as it is allowed to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address_of(broker: Served, listener: str) -> tuple[str, int]:
    host, _, port = broker.facts()[listener].rpartition(":")
    return host, int(port)


def strangers_of(broker: Served) -> list[socket.socket]:
    """Return idle connections to every TCP listener, some of which the broker has closed."""
    listeners = ("blip", "vibe", "http", "flight")
    held = []
    for number in range(STRANGERS):
        with suppress(OSError):
            address = address_of(broker, listeners[number % len(listeners)])
            held.append(socket.create_connection(address, timeout=10))
    return held


async def blip_peer(broker: Served, key: str) -> Peer:
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_connection(Peer, *address_of(broker, "blip"))
    await peer.log_in(key)
    return peer


async def until_refused(peer: Peer, request: Callable[[int], bytes], count: int) -> int:
    """Send a request *count* times, a chunk at a time; return how many were refused."""
    refused = 0
    for start in range(0, count, CHUNK):
        numbers = range(start, min(count, start + CHUNK))
        peer.send(*(request(number) for number in numbers), blip.ping(7))
        while (answer := await peer.next()).kind != blip.PONG:
            refused += answer.kind == blip.NACK
    return refused


async def use_up_quotas(broker: Served, key: str, open_ones: AsyncExitStack) -> list[str]:
    """Hold all that a key may hold, and ask for more; return what was never refused."""
    peer = await blip_peer(broker, key)
    open_ones.push_async_callback(peer.leave)
    refused = {
        SUBSCRIPTIONS: await until_refused(
            peer, lambda n: blip.subscribe(3, f"sub.{n}"), DEFAULTS[SUBSCRIPTIONS] + 10
        ),
        TOPICS: await until_refused(
            peer, lambda n: blip.publish(4, f"topic.{n}", b"x"), DEFAULTS[TOPICS] + 10
        ),
        QUEUES: await use_up_queues(broker, key),
    }
    for _ in range(DEFAULTS[UNFINISHED_BYTES] // FRAME_BYTES + 1):
        sender = await blip_peer(broker, key)
        open_ones.push_async_callback(sender.leave)
        whole = blip.publish(5, "unfinished", bytes(FRAME_BYTES))
        sender.send(whole[:-1])
    endpoint = Endpoint("grpc://" + broker.facts()["flight"], key)
    open_ones.callback(endpoint.close)
    refused[CURSORS] = await asyncio.to_thread(use_up_cursors, endpoint)
    for _ in range(DEFAULTS[FLIGHT_STREAMS]):
        batches = iter(endpoint.batches())
        first: pa.RecordBatch | None = await asyncio.to_thread(next, batches, None)
        assert first is not None
        open_ones.callback(batches.__iter__)  # keeps the unread stream until the end
    return [quota for quota, count in refused.items() if not count]


async def use_up_queues(broker: Served, key: str) -> int:
    """Declare as many queues as a key may, and more; return how many were refused."""
    reader, writer = await asyncio.open_connection(*address_of(broker, "vibe"))
    refused = 0

    async def ask(kind: int, name: str, headers: dict[str, str]) -> bytes:
        writer.write(vibe.frame(vibe.V1_1, vibe.body(kind, name, name, b"", headers)))
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size + 1)

    await ask(vibe.CONNECT, "c", {"authToken": key})
    for number in range(DEFAULTS[QUEUES] + 10):
        answer = await ask(vibe.CREATE_QUEUE, f"queue.{number}", {})
        refused += b"quota" in answer
    writer.close()
    return refused


def use_up_cursors(endpoint: Endpoint) -> int:
    for number in range(DEFAULTS[CURSORS] + 1):
        try:
            endpoint.open_cursor(f"cursor.{number}")
        except BraidError:
            return 1
    return 0


@pytest.mark.usefixtures("many_files")
async def test_strangers_and_a_greedy_key_disturb_no_other(tmp_path: Path) -> None:
    """Memory stays within its budget, and whatever a healthy client published arrives."""
    config = key_section("greedy", "greedy-key") + "admin = true\n"
    async with served(tmp_path, "--flight", "127.0.0.1:0", config=config) as broker:
        await broker.ready()
        url = "vibe://dev-key@{}:{}".format(*address_of(broker, "vibe"))
        watched = Watched(broker)
        alone_ms = await p99_alone(url)
        async with AsyncExitStack() as open_ones:
            for one in await asyncio.to_thread(strangers_of, broker):
                open_ones.callback(one.close)
            never = await use_up_quotas(broker, "greedy-key", open_ones)
            async with healthy(url, count_min=1_000) as client:
                await asyncio.sleep(ATTACK_S)
                watched.rss_bytes()
            report("10,000 strangers and a greedy key", alone_ms, client)
        assert [] == never
        await watched.check()
