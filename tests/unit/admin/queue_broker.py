"""Helpers that fill a broker's topics and queues, for tests that inspect it from outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import braidmq
from braidmq.admin.status import Status
from braidmq.broker.dead_letters import REJECTED, letter_of
from braidmq.broker.policy import for_dead_letters
from braidmq.broker.topics import (
    MESSAGE_ID_HEADER,
    ORIGIN_VIBE,
    Message,
    body_of,
    encode_headers,
)
from braidmq.server.engine.engine import Engine
from braidmq.testing.broker import RunningBroker, running_broker

OFF: dict[str, object] = {
    listener: {"enabled": False} for listener in ("blip", "vibe", "qumbed", "http")
}


@asynccontextmanager
async def quiet_broker(
    data_dir: Path | None = None, **config: object
) -> AsyncIterator[RunningBroker]:
    """Run the whole daemon without listeners, which take most of its time to start and stop."""
    async with running_broker(data_dir=data_dir, config={**OFF, **config}) as broker:
        yield broker


@asynccontextmanager
async def subscribed_on_every_strand() -> AsyncIterator[tuple[RunningBroker, braidmq.Client]]:
    """Run a broker with one subscription on each strand; yield it and its Blip client."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as blip,
        braidmq.connect(broker.url("vibe")) as vibe,
        braidmq.connect(broker.url("qumbed")) as qumbed,
        blip.subscribe("t", qos=1),
        vibe.subscribe("v"),
        qumbed.subscribe("t"),
    ):
        yield broker, blip


def status_of(broker: RunningBroker) -> Status:
    return broker.daemon.status


def engine_of(broker: RunningBroker) -> Engine:
    engine = broker.daemon.status.engine
    assert engine is not None
    return engine


async def publish(broker: RunningBroker, queue: str, *payloads: bytes, **options: int) -> None:
    """Publish as a strand does, and wait for the commit."""
    engine = engine_of(broker)
    put(engine, queue, *payloads, **options)
    await engine.waiters.committed(engine.broker.barrier())


async def bury(
    broker: RunningBroker, queue: str, *payloads: bytes, letters: str = "", priority: int = 1
) -> None:
    """Make dead letters of messages of *queue*, and wait for the commit."""
    engine = engine_of(broker)
    put_letters(engine, queue, *payloads, letters=letters, priority=priority)
    await engine.waiters.committed(engine.broker.barrier())


def put(engine: Engine, queue: str, *payloads: bytes, **options: int) -> None:
    """Publish as a strand does, without ending the turn."""
    for payload in payloads:
        engine.broker.publish(_message(engine, queue, payload, **options), engine.now_us())


def put_letters(
    engine: Engine, queue: str, *payloads: bytes, letters: str = "", priority: int = 1
) -> None:
    """Make dead letters of messages of *queue*, as if each had been rejected once."""
    topic = engine.broker.topics.get(letters or f"dlq.{queue}")
    assert topic is not None
    if topic.queue is None:
        engine.broker.queues.declare(topic, for_dead_letters(), engine.now_us())
    for payload in payloads:
        message = _message(engine, queue, payload, priority=priority)
        message.headers = encode_headers(
            {MESSAGE_ID_HEADER: f"id-{payload[:20].decode()}", "trace": "t"}
        )
        letter = letter_of(
            message, topic, REJECTED, attempts=1, keep_id=True, now_us=engine.now_us()
        )
        engine.broker.publish(letter, engine.now_us())


def _message(engine: Engine, queue: str, payload: bytes, *, priority: int = 1) -> Message:
    topic = engine.broker.topics.get(queue)
    assert topic is not None
    message = Message(topic, 1, body_of(topic, payload))
    message.origin = ORIGIN_VIBE
    message.priority = priority
    return message
