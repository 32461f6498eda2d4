"""PUBLISH: every refusal, and what becomes of an accepted message."""

import asyncio
import struct
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    PUBLISH,
    broker_at,
    connected,
    frame,
    key_config,
    nack,
    ping,
    pong,
    publish,
    subscribe,
)

pytestmark = pytest.mark.asyncio


INVALID = (400, "invalid PUBLISH payload")
REFUSED = {
    "empty": (b"", INVALID),
    "qos only": (b"\x01", INVALID),
    "half a topic length": (b"\x01\x00", INVALID),
    "topic shorter than it says": (b"\x01\x00\x05demo", INVALID),
    "topic not UTF-8": (b"\x01\x00\x02\xc3\x28!", INVALID),
    "topic is a lone surrogate": (b"\x01\x00\x03\xed\xa0\x80", INVALID),
    "undecodable comes before bad qos": (b"\x09\x00\x05demo", INVALID),
    "empty topic": (b"\x01\x00\x00message", (400, "empty topic")),
    "empty topic comes before bad qos": (b"\x07\x00\x00", (400, "empty topic")),
    "qos 2": (b"\x02\x00\x04demo", (400, "invalid QoS value")),
    "qos 255": (b"\xff\x00\x04demohi", (400, "invalid QoS value")),
}


@pytest.mark.parametrize("row", REFUSED)
async def test_an_invalid_publish_is_refused(broker: RunningBroker, row: str) -> None:
    """Each bad PUBLISH gets its NACK with the same correlation id, and has no effect."""
    payload, (code, text) = REFUSED[row]
    async with connected(broker) as peer:
        peer.send(frame(PUBLISH, 77, payload))
        await peer.expect(nack(77, code, text))

        assert (0, 0, 0, 0, 0) == await peer.stats()


@pytest.mark.parametrize("qos", [0, 1])
async def test_an_accepted_publish_has_no_reply(broker: RunningBroker, qos: int) -> None:
    """A PUBLISH needs no subscriber."""
    async with connected(broker) as peer:
        peer.send(publish(5, "unread", b"hi", qos))
        await peer.expect_silence()

        assert 1 == (await peer.stats())[2]


MESSAGES = {
    "empty message": ("t", b""),
    "one byte topic": ("t", b"x"),
    "every byte": ("bytes", bytes(range(256))),
    "topic in many scripts": ("заказы/注文/🍎", b"1"),
    "NUL in the topic": ("a\x00b", b"2"),
    "longest topic": ("x" * 65_535, b"3"),
    "spaces and stars are nothing special": (" * # ", b"4"),
}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("row", MESSAGES)
async def test_topic_and_message_are_delivered_byte_for_byte(
    broker: RunningBroker, row: str, qos: int
) -> None:
    """Topics are any non-empty UTF-8 up to 65,535 bytes; messages are opaque."""
    topic, message = MESSAGES[row]
    async with connected(broker) as peer:
        subscription = await peer.subscribe(topic, qos)
        await peer.publish(topic, message, qos=qos)
        answer = await peer.poll(subscription)

        assert answer is not None
        assert publish(answer.correlation_id, topic, message, qos) == frame(*answer)


async def test_topics_match_exactly(broker: RunningBroker) -> None:
    """No wildcard, no case folding, no normal form, no prefix."""
    async with connected(broker) as peer:
        subscriptions = [
            await peer.subscribe(topic) for topic in ("a", "A", "a.", "*", "é", "e\u0301")
        ]
        await peer.publish("é", b"composed")
        answers = [await peer.poll(subscription) for subscription in subscriptions]

        assert [False] * 4 + [True, False] == [answer is not None for answer in answers]


KEYS = {
    "keys": [
        key_config("writer", "writer-key", publish=["orders.*"], subscribe=[]),
        key_config("reader", "reader-key", publish=[], subscribe=["orders.*", "dlq.orders.*"]),
    ]
}


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_forbidden_topic_is_403(qos: int) -> None:
    """The broker checks the permission after the frame itself."""
    async with broker_at(auth=KEYS) as broker:
        async with connected(broker, key="writer-key") as writer:
            writer.send(
                publish(1, "orders.eu", b"yes", qos),
                publish(2, "Orders.eu", b"no", qos),
                publish(3, "invoices", b"no", qos),
                publish(4, "invoices", b"no", 3),
                ping(5),
            )
            await writer.expect(
                nack(2, 403, "forbidden"),
                nack(3, 403, "forbidden"),
                nack(4, 400, "invalid QoS value"),
                pong(5),
            )
            assert 1 == (await writer.stats())[2]
        async with connected(broker, key="reader-key") as reader:
            reader.send(publish(6, "orders.eu", b"no", qos))
            await reader.expect(nack(6, 403, "forbidden"))
            reader.send(subscribe(7, "invoices", qos))
            await reader.expect(nack(7, 403, "forbidden"))
            await reader.subscribe("orders.eu", qos)


async def test_a_forbidden_topic_is_not_remembered() -> None:
    """A refused name appears neither in STATS nor in memory."""
    async with (
        broker_at(auth=KEYS) as broker,
        connected(broker, key="writer-key") as writer,
    ):
        writer.send(publish(1, "secret", b"", 1), subscribe(2, "orders.x"))
        await writer.expect(nack(1, 403, "forbidden"), nack(2, 403, "forbidden"))

        assert 0 == (await writer.stats())[0]


async def test_one_connection_publishes_in_order(broker: RunningBroker) -> None:
    """Messages of one connection keep their order across many batches of the log."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("order")
        for start in range(0, 500, 50):
            peer.send(*(publish(1, "order", b"%d" % n) for n in range(start, start + 50)))
            await asyncio.sleep(0)  # so that the log may take a batch
        await peer.expect_silence()
        seen = [(await peer.take(subscription))[1] for _ in range(500)]

        assert [b"%d" % number for number in range(500)] == seen


async def test_a_durable_message_is_kept_without_a_subscriber(tmp_path: Path) -> None:
    """A QoS 1 message always goes to the log: its id is taken, even after a restart."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        await peer.publish("kept", b"1", b"2", b"3")
        await peer.publish("kept", b"memory only", qos=0)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        assert 4 == await peer.subscribe("kept")


async def test_correlation_ids_need_not_be_unique(broker: RunningBroker) -> None:
    """The broker only echoes them."""
    async with connected(broker) as peer:
        peer.send(*(frame(PUBLISH, 5, struct.pack(">BH", 7, 1) + b"t") for _ in range(3)))
        await peer.expect(*[nack(5, 400, "invalid QoS value")] * 3)
