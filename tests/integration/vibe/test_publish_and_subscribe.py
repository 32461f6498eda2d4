"""Publish, Subscribe, Unsubscribe and Deliver: their answers, and what consumers get."""

from typing import Final

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import (
    DELIVER,
    ERROR,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    connected,
    stats,
)

pytestmark = pytest.mark.asyncio

NOW: Final = "2027-01-15T08:00:00.000Z"


async def test_a_publish_is_acknowledged_by_its_id(broker: RunningBroker, dialect: str) -> None:
    """The PublishAck has the headers messageId and queueName."""
    async with connected(broker, dialect) as peer:
        answer = await peer.ask(PUBLISH, "q", b"1", message_id="msg_123")

        assert (PUBLISH_ACK, "msg_123", "q") == (answer.kind, answer.id, answer.queue)
        assert {"messageId": "msg_123", "queueName": "q"} == answer.headers


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE])
async def test_without_auto_create_a_queue_must_exist(dialect: str, kind: int) -> None:
    """With `vibe.auto_create` off, an unknown queue is QUEUE_NOT_FOUND."""
    async with (
        broker_at(vibe={"auto_create": False}) as broker,
        connected(broker, dialect) as peer,
    ):
        answer = await peer.ask(kind, "q")
        assert (ERROR, "q", "QUEUE_NOT_FOUND") == (answer.kind, answer.queue, answer.error_code)
        assert [] == await peer.names()
        await peer.create("q")

        assert ERROR != (await peer.ask(kind, "q")).kind


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE])
async def test_auto_create_is_on_by_default(
    broker: RunningBroker, dialect: str, kind: int
) -> None:
    """The first Publish or Subscribe creates the queue."""
    async with connected(broker, dialect) as peer:
        assert ERROR != (await peer.ask(kind, "q")).kind

        assert ["q"] == await peer.names()


async def test_a_delivery_has_the_publishers_id_and_headers(
    broker: RunningBroker, dialect: str
) -> None:
    """The broker adds deliveryAttempts and timestamp."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b'{"x":1}', "msg_1", correlationId="c", priority="high")
        await peer.subscribe("q")
        got = await peer.delivered()

        assert (DELIVER, "msg_1", "q", b'{"x":1}') == got[:4]
        assert {
            "correlationId": "c",
            "priority": "high",
            "deliveryAttempts": "1",
            "timestamp": NOW,
        } == got.headers


async def test_a_delivery_always_has_two_headers(broker: RunningBroker, dialect: str) -> None:
    """deliveryAttempts and timestamp, which is the time of the Publish."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1")
        broker.clock.advance(100)
        await peer.subscribe("q")

        assert {"deliveryAttempts": "1", "timestamp": NOW} == (await peer.delivered()).headers


async def test_a_publishers_timestamp_is_kept(broker: RunningBroker, dialect: str) -> None:
    """The broker sets `timestamp` only if the publisher did not."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", timestamp="yesterday")
        await peer.subscribe("q")

        assert "yesterday" == (await peer.delivered()).headers["timestamp"]


async def test_the_brokers_own_headers_cannot_be_forged(
    broker: RunningBroker, dialect: str
) -> None:
    """deliveryAttempts, contentEncoding and death*."""
    async with connected(broker, dialect) as peer:
        await peer.publish(
            "q",
            b"1",
            deliveryAttempts="99",
            contentEncoding="base64",
            deathReason="expired",
            deathQueue="other",
            deathAttempts="3",
            deathAnything="x",
            kept="yes",
        )
        await peer.subscribe("q")

        assert {"kept": "yes", "deliveryAttempts": "1", "timestamp": NOW} == (
            await peer.delivered()
        ).headers


async def test_messages_arrive_in_the_order_of_their_publishes(
    broker: RunningBroker, dialect: str
) -> None:
    """First in, first out, for the backlog and new messages alike."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        for number in range(50):
            await source.publish("q", b"%d" % number)
        await peer.subscribe("q", 10_000)
        for number in range(50, 100):
            await source.publish("q", b"%d" % number)

        assert [b"%d" % number for number in range(100)] == await peer.payloads(100)


async def test_a_subscribe_is_answered_before_the_backlog_arrives(
    broker: RunningBroker, dialect: str
) -> None:
    """The SubscribeAck has queueName and subscriptionId; the backlog follows at once."""
    async with connected(broker, dialect) as peer:
        for number in range(3):
            await peer.publish("q", b"%d" % number)
        peer.send(peer.frame(SUBSCRIBE, "sub_1", "q"))
        answer = await peer.next()

        assert (SUBSCRIBE_ACK, "sub_1", "q") == (answer.kind, answer.id, answer.queue)
        assert {"queueName", "subscriptionId"} == set(answer.headers)
        assert "q" == answer.headers["queueName"]
        assert answer.headers["subscriptionId"]
        assert [b"0", b"1", b"2"] == await peer.payloads(3)


async def test_a_backlog_longer_than_the_window_is_delivered_to_its_end(dialect: str) -> None:
    """The broker reads it from the log as the consumer acknowledges."""
    count = 300
    async with (
        broker_at(delivery={"window": 8}) as broker,
        connected(broker, dialect) as peer,
    ):
        frames = [peer.frame(PUBLISH, f"m{n}", "q", b"%d" % n) for n in range(count)]
        peer.send(*frames)
        assert {PUBLISH_ACK} == {(await peer.next()).kind for _ in range(count)}
        await peer.subscribe("q", 5)
        for number in range(count):
            got = await peer.delivered()
            assert b"%d" % number == got.payload
            peer.ack(got.id)
        await peer.expect_silence()

        assert (0, 0) == await peer.counts("q")


async def test_prefetch_limits_what_a_consumer_holds(
    broker: RunningBroker, dialect: str
) -> None:
    """The broker delivers one more message for each that is settled."""
    async with connected(broker, dialect) as peer:
        for number in range(5):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 2)
        assert [b"0", b"1"] == await peer.payloads(2)
        await peer.expect_silence()
        assert (3, 2) == await peer.counts("q")
        peer.ack("m1")
        assert [b"2"] == await peer.payloads(1)
        await peer.expect_silence()


async def test_prefetch_is_100_by_default(broker: RunningBroker, dialect: str) -> None:
    """A Subscribe without a prefetch header."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        source.send(*(source.frame(PUBLISH, f"m{n}", "q", b"1") for n in range(150)))
        assert {PUBLISH_ACK} == {(await source.next()).kind for _ in range(150)}
        await peer.subscribe("q")
        await peer.payloads(100)
        await peer.expect_silence()

        assert (50, 100) == await peer.counts("q")


async def test_a_repeated_subscribe_updates_the_prefetch(
    broker: RunningBroker, dialect: str
) -> None:
    """It adds no second consumer and delivers no message twice."""
    async with connected(broker, dialect) as peer:
        for number in range(5):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 1)
        assert [b"0"] == await peer.payloads(1)
        await peer.expect_silence()
        await peer.subscribe("q", 3)
        assert [b"1", b"2"] == await peer.payloads(2)
        await peer.expect_silence()
        assert 1 == (await peer.info("q"))["subscriberCount"]
        await peer.subscribe("q", 1)
        peer.ack("m0")
        peer.ack("m1")
        await peer.expect_silence()
        peer.ack("m2")

        assert [b"3"] == await peer.payloads(1)
        await peer.expect_silence()


@pytest.mark.parametrize("prefetch", [1, 10_000])
async def test_prefetch_may_be_1_to_10000(
    broker: RunningBroker, dialect: str, prefetch: int
) -> None:
    """The broker accepts both ends of the range."""
    async with connected(broker, dialect) as peer:
        await peer.subscribe("q", prefetch)


async def test_unsubscribe_ends_the_deliveries(broker: RunningBroker, dialect: str) -> None:
    """New messages wait for other consumers."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.subscribe("q")
        answer = await peer.ask(UNSUBSCRIBE, "q", message_id="unsub_1")
        assert (UNSUBSCRIBE_ACK, "unsub_1", "q") == (answer.kind, answer.id, answer.queue)
        await other.publish("q", b"1")
        await peer.expect_silence()

        assert (1, 0) == await peer.counts("q")


@pytest.mark.parametrize("exists", [True, False])
async def test_unsubscribe_succeeds_without_a_subscription(
    broker: RunningBroker, dialect: str, exists: bool
) -> None:
    """It creates no queue."""
    async with connected(broker, dialect) as peer:
        if exists:
            await peer.create("q")
        for _ in range(2):
            assert UNSUBSCRIBE_ACK == (await peer.ask(UNSUBSCRIBE, "q")).kind

        assert (["q"] if exists else []) == await peer.names()


async def test_held_messages_can_be_acknowledged_after_an_unsubscribe(
    broker: RunningBroker, dialect: str
) -> None:
    """Until another consumer holds them."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q")
        await peer.payloads(2)
        await peer.unsubscribe("q")
        assert (2, 0) == await peer.counts("q")
        await peer.settle("m0")
        assert (1, 0) == await peer.counts("q")
        await other.subscribe("q")
        held = await other.delivered()
        assert ("m1", 1) == (held.id, held.attempts)
        before = stats(broker).unknown_acks
        await peer.settle("m1")

        assert before + 1 == stats(broker).unknown_acks
        assert (0, 1) == await peer.counts("q")


async def test_held_fan_out_messages_can_be_acknowledged_after_an_unsubscribe(
    broker: RunningBroker, dialect: str
) -> None:
    """Later subscribers get only those that were not acknowledged."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.create("q", deliveryMode="FanOutWithAck")
        await peer.subscribe("q")
        for number in range(3):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.payloads(3)
        await peer.unsubscribe("q")
        await peer.settle("m0")
        await peer.settle("m1", result="requeue")
        await peer.settle("m2", result="reject")
        before = stats(broker).unknown_acks
        await peer.settle("m0")
        await other.subscribe("q")

        assert ["m1", "m2"] == [(await other.delivered()).id for _ in range(2)]
        assert before + 1 == stats(broker).unknown_acks


async def test_messages_with_the_same_id_are_separate_messages(
    broker: RunningBroker, dialect: str
) -> None:
    """Each is delivered and settled by itself."""
    async with connected(broker, dialect) as peer:
        for number in range(3):
            await peer.publish("q", b"%d" % number, "same")
        await peer.subscribe("q")
        got = [await peer.delivered() for _ in range(3)]

        assert [("same", b"%d" % n) for n in range(3)] == [(one.id, one.payload) for one in got]
        await peer.settle("same")
        await peer.settle("same")
        assert (0, 1) == await peer.counts("q")


@pytest.mark.parametrize("message_id", ["x" * 60_000, "идентификатор", " ", "a\0b"])
async def test_any_text_may_be_an_id(
    broker: RunningBroker, dialect: str, message_id: str
) -> None:
    """The id the publisher chose is the message id that consumers see."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", message_id)
        await peer.subscribe("q")
        assert message_id == (await peer.delivered()).id
        await peer.settle(message_id)

        assert (0, 0) == await peer.counts("q")
