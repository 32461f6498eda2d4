"""Admission: the broker treats a publish alike, whichever of the five ways it comes in.

Each way is an adapter that publishes to the queue `q` over a real socket and returns the text
of the error, or "" once the message is stored. The broker is the real daemon on a fake disk
that can fill up.
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
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import PATIENCE_S, broker_at, until, until_committed
from tests.integration.flights import in_thread, rows
from tests.integration.qumbed import peer as qumbed
from tests.integration.vibe import peer as vibe

pytestmark = pytest.mark.asyncio

Publish = Callable[[str], Awaitable[str]]
"""Publishes a message with the given deduplication id, and returns the error or ""."""

Way = Callable[[RunningBroker], "AsyncIterator[Publish]"]

NO_ROOM: Final = "space"
"""A word in every refusal by a full log."""


# The five ways to publish.


async def by_blip(broker: RunningBroker) -> AsyncIterator[Publish]:
    """Blip: a NACK or, before the PONG, nothing. It has no deduplication ids."""
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
    """Qumbed: an Ack or an Error; the broker recognises a duplicate by the frame's id."""
    async with qumbed.connected(broker) as peer:
        stream = peer.open()

        async def publish(dedup_id: str) -> str:
            answer = await stream.ask(qumbed.publish("q", b"new", frame_id=dedup_id))
            return "" if answer["t"] == qumbed.ACK else str(answer["e"]["message"])

        yield publish


async def by_http(broker: RunningBroker) -> AsyncIterator[Publish]:
    """HTTP: 201, or another status with a text."""

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
        return await in_thread(post, dedup_id)

    yield publish


async def by_sink(broker: RunningBroker) -> AsyncIterator[Publish]:
    """The Spark sink: a batch of one row, staged in advance; duplicates share its key."""
    endpoint = Endpoint(broker.endpoint, "dev-key")
    ids = [
        (await in_thread(endpoint.stage, None, batch.schema, [batch])).id
        for batch in 3 * rows("q")
    ]

    async def publish(query: str) -> str:
        try:
            await in_thread(endpoint.commit, SinkKey(query, "", 0), [ids.pop()])
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
    """The disk that the broker will use."""
    found = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _, spare: found)
    return found


@pytest_asyncio.fixture
async def broker(disk: FakeDisk, tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """A broker on that disk, with Flight for the sink."""
    del disk
    wal = {"segment_bytes": 64 * 1024}
    async with broker_at(tmp_path, wal=wal, flight={}) as running:
        yield running


def engine_of(broker: RunningBroker) -> Engine:
    engine = broker.daemon.status.engine
    assert engine is not None
    return engine


async def full_queue(broker: RunningBroker, strategy: str) -> Queue:
    """Declare `q` with room for one message, and fill it."""
    async with vibe.connected(broker) as peer:
        await peer.create("q", maxQueueSize=1, overflowStrategy=strategy)
        await peer.publish("q", b"0")
    return engine_of(broker).broker.queues.by_name["q"]


def dead_letters(broker: RunningBroker) -> int:
    """Return the number of dead letters of `q`."""
    found = engine_of(broker).broker.queues.by_name.get("dlq.q")
    return 0 if found is None else found.waiting()


async def fill(broker: RunningBroker, disk: FakeDisk) -> None:
    """Fill the disk, and publish until the log notices."""
    async with blip.connected(broker) as peer:
        disk.capacity = disk.used_bytes
        peer.send(blip.publish(1, "large", bytes(60_000)))
        assert blip.NACK == (await peer.next()).kind


@asynccontextmanager
async def opened(way: Way, broker: RunningBroker) -> AsyncIterator[Publish]:
    """Run an adapter."""
    adapter = way(broker)
    yield await anext(adapter)
    async for _ in adapter:
        raise AssertionError("an adapter yields once")


async def until_blocked(
    broker: RunningBroker, way: Way, publishing: "asyncio.Task[str]"
) -> None:
    """Wait until the publisher is blocked, as far as a test can tell."""
    queue = engine_of(broker).broker.queues.by_name["q"]
    sinks = engine_of(broker).broker.sinks
    if way is by_http:
        await asyncio.sleep(0)  # whether the request has arrived yet makes no difference
    elif way is by_sink:
        await until(lambda: sinks.open is not None and sinks.waits_for)
        # Until its intent is committed, a full log would refuse the whole batch.
        engine_of(broker).end_turn()
        await until_committed(broker)
    else:
        await until(lambda: queue.blocked)
    assert not publishing.done()


# While the broker drains.


@every_way
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "BlockPublisher", "DropNewest"])
async def test_a_draining_broker_refuses_durable_publishes(
    broker: RunningBroker, way: Way, strategy: str
) -> None:
    """Even those to a full queue, whatever its overflow strategy."""
    await full_queue(broker, strategy)
    async with opened(way, broker) as publish:
        engine_of(broker).drain()
        answer = await publish("1")

    assert SHUTTING_DOWN in answer
    assert (0, 0) == (dead_letters(broker), engine_of(broker).broker.stats.dead_lettered)


@every_way
async def test_a_blocked_publisher_is_refused_when_the_broker_drains(
    broker: RunningBroker, way: Way
) -> None:
    """No consumer will make room any more, so it need not wait for the close."""
    await full_queue(broker, "BlockPublisher")
    async with opened(way, broker) as publish:
        publishing = asyncio.ensure_future(publish("1"))
        await until_blocked(broker, way, publishing)
        engine_of(broker).drain()
        async with asyncio.timeout(PATIENCE_S):
            answer = await publishing

    assert SHUTTING_DOWN in answer


# While the log refuses.


@every_way
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "BlockPublisher", "DropNewest"])
async def test_a_full_log_refuses_every_publish(
    broker: RunningBroker, disk: FakeDisk, way: Way, strategy: str
) -> None:
    """Even to a full queue that would otherwise block its publishers."""
    queue = await full_queue(broker, strategy)
    async with opened(way, broker) as publish:
        await fill(broker, disk)
        async with asyncio.timeout(PATIENCE_S):
            answer = await publish("1")
        disk.capacity = None

    assert NO_ROOM in answer
    assert (1, 0, 0) == (queue.waiting(), queue.pending, dead_letters(broker))


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: way.__name__)
async def test_a_blocked_publisher_is_refused_when_the_log_is_full(
    broker: RunningBroker, disk: FakeDisk, way: Way
) -> None:
    """Just like a new one."""
    await full_queue(broker, "BlockPublisher")
    async with opened(way, broker) as publish:
        publishing = asyncio.ensure_future(publish("1"))
        await until_blocked(broker, way, publishing)
        await fill(broker, disk)
        async with asyncio.timeout(PATIENCE_S):
            answer = await publishing
        disk.capacity = None

    assert NO_ROOM in answer


async def test_a_sink_batch_in_progress_outlasts_a_full_log(
    broker: RunningBroker, disk: FakeDisk
) -> None:
    """It waits for the queue, then for the log, and is stored once there is room."""
    queue = await full_queue(broker, "BlockPublisher")
    async with opened(by_sink, broker) as publish:
        publishing = asyncio.ensure_future(publish("1"))
        await until_blocked(broker, by_sink, publishing)
        await fill(broker, disk)
        engine = engine_of(broker)
        engine.broker.queues.purge(queue, engine.now_us())
        disk.capacity = None
        async with asyncio.timeout(PATIENCE_S):
            answer = await publishing

    assert ("", 1) == (answer, queue.waiting())


# Duplicates.


@every_way
async def test_duplicates_make_one_dead_letter(broker: RunningBroker, way: Way) -> None:
    """A dedup id, a Qumbed frame's id and a batch's key identify redirected messages, too.

    Blip publishers cannot choose an id: there every PUBLISH is a new message.
    """
    await full_queue(broker, "RedirectToDlq")
    async with opened(way, broker) as publish:
        answers = [await publish("same") for _ in range(3)]
        await until_committed(broker)

    count = 3 if way is by_blip else 1
    assert (["", "", ""], count) == (answers, dead_letters(broker))
    assert count == engine_of(broker).broker.stats.dead_lettered


@pytest.mark.parametrize("way", [by_vibe, by_qumbed, by_http], ids=lambda way: way.__name__)
@pytest.mark.parametrize("strategy", ["RedirectToDlq", "DropOldest"])
async def test_a_publish_that_the_log_refused_does_not_count_as_a_duplicate(
    broker: RunningBroker, disk: FakeDisk, way: Way, strategy: str
) -> None:
    """Its retry is stored, in the queue or as a dead letter, once there is room again."""
    await full_queue(broker, strategy)
    stats = engine_of(broker).broker.stats
    async with opened(way, broker) as publish:
        disk.fail("*", 28, nth=1)  # ENOSPC, once: the log rolls back the pending batch
        first = await publish("same")
        disk.heal()
        await until(lambda: not engine_of(broker).broker.refusal)
        second = [await publish("same") for _ in range(2)]

    redirected = int(strategy == "RedirectToDlq")
    assert (True, ["", ""], 1) == (NO_ROOM in first, second, stats.duplicates)
    assert (redirected, redirected) == (dead_letters(broker), stats.dead_lettered)


# Redirected letters are as safe as those that settle a delivery.


@every_way
async def test_a_letter_outlives_what_is_declared_of_its_queue(
    tmp_path: Path, way: Way
) -> None:
    """The publisher was told that it is durable: neither a restart nor a TTL takes it."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock, flight={}) as broker:
        async with vibe.connected(broker) as peer:
            await peer.create("graves", durable="false", messageTtl=1000)
            await peer.create("q", maxQueueSize=1, deadLetterQueueName="graves")
            await peer.publish("q", b"0")
        async with opened(way, broker) as publish:
            assert not await publish("1")
    clock.advance(60)
    async with broker_at(tmp_path, clock) as broker, vibe.connected(broker) as peer:
        await peer.subscribe("graves")
        letter = await peer.delivered()

    assert ("overflow", "q") == (letter.headers["deathReason"], letter.headers["deathQueue"])
