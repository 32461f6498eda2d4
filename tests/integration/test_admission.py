"""One admission: a publish is judged alike whichever of the five ways brings it.

Each way in is an adapter: it publishes once to the queue `q`, over a real socket, and returns
what its publisher is told, "" when the message is stored. The broker is the real daemon, its
disk one that can be full.
"""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from braidmq.base.errors import BraidError
from braidmq.broker.delivery.queue import Queue
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from braidmq.daemon import daemon
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import SHUTTING_DOWN
from braidmq.testing.broker import RunningBroker
from braidmq.testing.disk import FakeDisk
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S, broker_at, until, until_committed
from tests.integration.flights import asked, rows
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe import peer as vibe

pytestmark = pytest.mark.asyncio

Publish = Callable[[str], Awaitable[str]]
"""Publishes a message whose own id, where the way in has one, is given; returns the answer."""

Way = Callable[[RunningBroker], "AsyncIterator[Publish]"]

NO_ROOM: Final = "space"
"""What every refusal of a full log says, among other words."""


# The ways in.


async def by_blip(broker: RunningBroker) -> AsyncIterator[Publish]:
    """Blip: silence, proven by a PONG, or a NACK. It has no dedup ids."""
    async with blip.connected(broker) as peer:

        async def publish(_: str) -> str:
            peer.send(blip.publish(77, "q", b"new"), blip.ping(78))
            answer = await peer.next()
            if answer.kind == blip.PONG:
                return ""
            assert (blip.NACK, 77) == answer[:2]
            await peer.expect(blip.pong(78))
            return answer.payload[4:].decode()

        yield publish


async def by_vibe(broker: RunningBroker) -> AsyncIterator[Publish]:
    """Vibe: a PublishAck or an Error."""
    async with vibe.connected(broker) as peer:

        async def publish(dedup_id: str) -> str:
            answer = await peer.ask(vibe.PUBLISH, "q", b"1", {"dedupId": dedup_id})
            assert answer.kind in {vibe.PUBLISH_ACK, vibe.ERROR}
            return answer.error_message

        yield publish


async def by_qumbed(broker: RunningBroker) -> AsyncIterator[Publish]:
    """Qumbed: an Ack or an Error; the frame's id is what a repeat is recognised by."""
    async with qumbed.connected(broker) as peer:
        stream = peer.open()

        async def publish(dedup_id: str) -> str:
            answer = await stream.ask(qumbed.publish("q", b"new", frame_id=dedup_id))
            return "" if answer["t"] == qumbed.ACK else str(answer["e"]["message"])

        yield publish


async def by_http(broker: RunningBroker) -> AsyncIterator[Publish]:
    """HTTP: 201, or a status and a text."""

    def post(dedup_id: str) -> str:
        connection = http.client.HTTPConnection(*broker.address("http"), timeout=PATIENCE_S)
        body = json.dumps({"payload": 1, "headers": {"dedupId": dedup_id}})
        try:
            sent = {"Authorization": "Bearer dev-key"}
            connection.request("POST", "/api/topics/q/messages", body=body, headers=sent)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        return "" if response.status == 201 else f"{response.status} {text}"

    async def publish(dedup_id: str) -> str:
        return await asked(post, dedup_id)

    yield publish


async def by_sink(broker: RunningBroker) -> AsyncIterator[Publish]:
    """The Spark sink: a batch of one row, staged beforehand; its key is what repeats share."""
    endpoint = Endpoint(broker.endpoint, "dev-key")
    ids = [
        (await asked(endpoint.stage, None, batch.schema, [batch])).id for batch in 3 * rows("q")
    ]

    async def publish(query: str) -> str:
        try:
            await asked(endpoint.commit, SinkKey(query, "", 0), [ids.pop()])
        except BraidError as error:
            return str(error)
        return ""

    yield publish
    endpoint.close()


WAYS: Final = [by_blip, by_vibe, by_qumbed, by_http, by_sink]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


# The broker.


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    """Return the disk that the broker will work on."""
    found = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _: found)
    return found


@pytest_asyncio.fixture
async def broker(disk: FakeDisk, tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """Return a broker on that disk, with Flight, for the sink."""
    del disk
    wal = {"segment_bytes": 64 * 1024}
    async with broker_at(tmp_path, wal=wal, flight={}) as running:
        yield running


def engine_of(broker: RunningBroker) -> Engine:
    engine = broker.daemon.status.engine
    assert engine is not None
    return engine


async def full_queue(broker: RunningBroker, strategy: str) -> Queue:
    """Declare `q` with room for one message, and publish that one."""
    async with vibe.connected(broker) as peer:
        await peer.create("q", maxQueueSize=1, overflowStrategy=strategy)
        await peer.publish("q", b"0")
    return engine_of(broker).broker.queues.by_name["q"]


def letters(broker: RunningBroker) -> int:
    """Return how many dead letters of `q` there are."""
    found = engine_of(broker).broker.queues.by_name.get("dlq.q")
    return 0 if found is None else found.waiting()


async def fill(broker: RunningBroker, disk: FakeDisk) -> None:
    """Fill the disk, and have the log find that out."""
    async with blip.connected(broker) as peer:
        disk.capacity = disk.used_bytes
        peer.send(blip.publish(1, "large", bytes(60_000)))
        assert blip.NACK == (await peer.next()).kind


@asynccontextmanager
async def opened(way: Way, broker: RunningBroker) -> AsyncIterator[Publish]:
    """Open a way in."""
    ways = way(broker)
    yield await anext(ways)
    async for _ in ways:
        raise AssertionError("an adapter yields once")


async def parked(broker: RunningBroker, way: Way, asking: "asyncio.Task[str]") -> None:
    """Wait until a publisher waits for room, as far as can be seen from outside."""
    queue = engine_of(broker).broker.queues.by_name["q"]
    sinks = engine_of(broker).broker.sinks
    if way is by_http:
        await asyncio.sleep(0)  # whether it has come yet changes nothing of what it is told
    elif way is by_sink:
        await until(lambda: sinks.open is not None and sinks.waits_for)
        # Until its intent is committed, a log that refuses would refuse the whole batch.
        engine_of(broker).end_turn()
        await until_committed(broker)
    else:
        await until(lambda: queue.blocked)
    assert not asking.done()


# The first disagreement: draining.


@every_way
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "BlockPublisher", "DropNewest"])
async def test_while_draining_no_durable_publish_is_taken(
    broker: RunningBroker, way: Way, strategy: str
) -> None:
    """The broker stops accepting durable publishes, also those to a full queue."""
    await full_queue(broker, strategy)
    async with opened(way, broker) as publish:
        engine_of(broker).drain()
        told = await publish("1")

    assert SHUTTING_DOWN in told
    assert (0, 0) == (letters(broker), engine_of(broker).broker.stats.dead_lettered)


@every_way
async def test_a_parked_publisher_is_told_that_the_broker_drains(
    broker: RunningBroker, way: Way
) -> None:
    """Nothing will make room any more: it does not wait until the connection is closed."""
    await full_queue(broker, "BlockPublisher")
    async with opened(way, broker) as publish:
        asking = asyncio.ensure_future(publish("1"))
        await parked(broker, way, asking)
        engine_of(broker).drain()
        async with asyncio.timeout(PATIENCE_S):
            told = await asking

    assert SHUTTING_DOWN in told


# The second: a log that refuses.


@every_way
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "BlockPublisher", "DropNewest"])
async def test_while_the_log_refuses_every_publisher_is_told(
    broker: RunningBroker, disk: FakeDisk, way: Way, strategy: str
) -> None:
    """Also one whose queue is full, and would have it wait."""
    queue = await full_queue(broker, strategy)
    async with opened(way, broker) as publish:
        await fill(broker, disk)
        async with asyncio.timeout(PATIENCE_S):
            told = await publish("1")
        disk.capacity = None

    assert NO_ROOM in told
    assert (1, 0, 0) == (queue.waiting(), queue.pending, letters(broker))


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
async def test_a_parked_publisher_is_told_that_the_log_refuses(
    broker: RunningBroker, disk: FakeDisk, way: Way
) -> None:
    """It is refused as one that comes now would be."""
    await full_queue(broker, "BlockPublisher")
    async with opened(way, broker) as publish:
        asking = asyncio.ensure_future(publish("1"))
        await parked(broker, way, asking)
        await fill(broker, disk)
        async with asyncio.timeout(PATIENCE_S):
            told = await asking
        disk.capacity = None

    assert NO_ROOM in told


async def test_a_batch_that_was_begun_outlasts_a_log_that_refuses(
    broker: RunningBroker, disk: FakeDisk
) -> None:
    """The sink waits for the queue, then for the log, and stores its row once there is room."""
    queue = await full_queue(broker, "BlockPublisher")
    async with opened(by_sink, broker) as publish:
        asking = asyncio.ensure_future(publish("1"))
        await parked(broker, by_sink, asking)
        await fill(broker, disk)
        engine = engine_of(broker)
        engine.broker.queues.purge(queue, engine.now_us())
        disk.capacity = None
        async with asyncio.timeout(PATIENCE_S):
            told = await asking

    assert ("", 1) == (told, queue.waiting())


# The third: repeats.


@every_way
async def test_a_repeat_makes_one_dead_letter(broker: RunningBroker, way: Way) -> None:
    """A dedup id, a Qumbed frame's id and a batch's key hold for redirected messages, too.

    Blip has no id that a publisher chooses: there every PUBLISH is a message.
    """
    await full_queue(broker, "RedirectToDlq")
    async with opened(way, broker) as publish:
        told = [await publish("same") for _ in range(3)]
        await until_committed(broker)

    count = 3 if way is by_blip else 1
    assert (["", "", ""], count) == (told, letters(broker))
    assert count == engine_of(broker).broker.stats.dead_lettered


@pytest.mark.parametrize("way", [by_vibe, by_qumbed, by_http], ids=lambda way: way.__name__)
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "DropOldest"])
async def test_a_publish_that_the_log_refused_is_not_remembered(
    broker: RunningBroker, disk: FakeDisk, way: Way, strategy: str
) -> None:
    """Its repeat is stored, in its queue or as a letter, when there is room again."""
    await full_queue(broker, strategy)
    stats = engine_of(broker).broker.stats
    async with opened(way, broker) as publish:
        disk.fail("*", 28, nth=1)  # ENOSPC, once: what is on its way is taken back
        first = await publish("same")
        disk.heal()
        await until(lambda: not engine_of(broker).broker.refusal)
        second = [await publish("same") for _ in range(2)]

    is_letter = int(strategy == "RedirectToDlq")
    assert (True, ["", ""], 1) == (NO_ROOM in first, second, stats.duplicates)
    assert (is_letter, is_letter) == (letters(broker), stats.dead_lettered)
