"""SUBSCRIBE: every refusal, what a new subscription gets, and the effective QoS."""

import shutil
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    SUBSCRIBE,
    ack,
    broker_at,
    connected,
    frame,
    nack,
    ping,
    poll,
    pong,
    publish,
    subscribe,
)

pytestmark = pytest.mark.asyncio


INVALID = (400, "invalid SUBSCRIBE payload")
REFUSED = {
    "empty": (b"", INVALID),
    "one byte": (b"\x00", INVALID),
    "no qos": (b"\x00\x04demo", INVALID),
    "length only": (b"\x00\x00", INVALID),
    "topic shorter than it says": (b"\x00\x09demo\x01", INVALID),
    "trailing byte": (b"\x00\x04demo\x01\x00", INVALID),
    "topic not UTF-8": (b"\x00\x02\xff\xff\x01", INVALID),
    "empty topic": (b"\x00\x00\x01", (400, "empty topic")),
    "empty topic comes before bad qos": (b"\x00\x00\x09", (400, "empty topic")),
    "qos 2": (b"\x00\x04demo\x02", (400, "invalid QoS value")),
    "qos 255": (b"\x00\x04demo\xff", (400, "invalid QoS value")),
}


@pytest.mark.parametrize("row", REFUSED)
async def test_an_invalid_subscribe_is_refused(broker: RunningBroker, row: str) -> None:
    """Each bad SUBSCRIBE gets its NACK and creates nothing."""
    payload, (code, text) = REFUSED[row]
    async with connected(broker) as peer:
        peer.send(frame(SUBSCRIBE, 77, payload))
        await peer.expect(nack(77, code, text))

        assert (0, 0, 0, 0, 0) == await peer.stats()


# (QoS of the publish, QoS of the subscription): QoS of the delivery; only 1 has a tag to ACK
EFFECTIVE = {(0, 0): 0, (0, 1): 0, (1, 0): 0, (1, 1): 1}


@pytest.mark.parametrize(("published", "subscribed"), EFFECTIVE)
async def test_the_effective_qos_is_the_lower_one(
    broker: RunningBroker, published: int, subscribed: int
) -> None:
    """A QoS 1 delivery has a tag, a QoS 0 delivery the POLL's correlation id."""
    effective = EFFECTIVE[published, subscribed]
    async with connected(broker) as peer:
        subscription = await peer.subscribe("both", subscribed)
        peer.send(publish(3, "both", b"hi", published), ping(4), poll(5555, subscription))
        await peer.expect(pong(4))
        answer = await peer.next()

        tag = subscription + 1 if effective else 5555
        assert publish(tag, "both", b"hi", effective) == frame(*answer)
        assert None is await peer.poll(subscription)
        peer.send(ack(answer.correlation_id, subscription))
        if effective == 0:
            text = "unknown subscription or delivery tag"
            await peer.expect(nack(answer.correlation_id, 404, text))
        await peer.expect_silence()


@pytest.mark.parametrize("qos", [0, 1])
async def test_each_subscribe_is_a_new_subscription(broker: RunningBroker, qos: int) -> None:
    """Subscriptions to one topic are independent: each gets every message."""
    async with connected(broker) as peer:
        first = await peer.subscribe("same", qos)
        second = await peer.subscribe("same", qos)
        await peer.publish("same", b"for both", qos=qos)

        assert first < second
        assert b"for both" == (await peer.take(first))[1]
        assert b"for both" == (await peer.take(second))[1]
        assert None is await peer.poll(first)


async def test_a_subscription_gets_only_later_messages(broker: RunningBroker) -> None:
    """It gets the messages whose ids are above that of its own record."""
    async with connected(broker) as peer:
        await peer.publish("later", b"before")
        peer.send(
            publish(1, "later", b"just before"),
            subscribe(2, "later"),
            publish(3, "later", b"just after"),
            ping(4),
        )
        await peer.expect(ack(2, 3), pong(4))

        assert (4, b"just after") == await peer.take(3)
        assert None is await peer.poll(3)


async def test_a_subscription_gets_a_memory_only_message_pipelined_behind_it(
    broker: RunningBroker,
) -> None:
    """The broker handles the frames of one connection in order, QoS 0 included."""
    async with connected(broker) as peer:
        peer.send(
            subscribe(1, "quick", 0),
            publish(2, "quick", b"one", 0),
            subscribe(3, "quick"),
            publish(4, "quick", b"two", 0),
            ping(5),
        )
        await peer.expect(ack(1, 1), ack(3, 2), pong(5))

        assert b"one" == (await peer.take(1))[1]
        assert b"two" == (await peer.take(1))[1]
        assert b"two" == (await peer.take(2))[1]


async def test_the_subscription_id_is_a_record_id(broker: RunningBroker) -> None:
    """Every SUBSCRIBE writes a record; delivery tags are message ids."""
    async with connected(broker) as peer:
        assert 1 == await peer.subscribe("ids", 0)
        assert 2 == await peer.subscribe("ids", 1)
        await peer.publish("ids", b"x")
        assert 4 == await peer.subscribe("ids", 0)
        assert (3, b"x") == await peer.take(2)


@pytest.mark.parametrize("qos", [0, 1])
async def test_ids_are_never_reused_however_the_broker_ended(tmp_path: Path, qos: int) -> None:
    """After a clean stop, and after a crash right after the ACK."""
    crashed = tmp_path / "crashed"
    stopped = tmp_path / "stopped"
    async with broker_at(stopped) as broker, connected(broker) as peer:
        given = [await peer.subscribe("grow", qos) for _ in range(3)]
        shutil.copytree(stopped, crashed)
    for directory in (stopped, crashed):
        async with broker_at(directory) as broker, connected(broker) as peer:
            assert max(given) < await peer.subscribe("grow", qos)
