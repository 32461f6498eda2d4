"""Publish, Subscribe, Unsubscribe and Deliver: what each is answered with, and what arrives."""

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
    """PublishAck, headers messageId and queueName."""
    async with connected(broker, dialect) as peer:
        answer = await peer.ask(PUBLISH, "q", b"1", message_id="msg_123")

        assert (PUBLISH_ACK, "msg_123", "q") == (answer.kind, answer.id, answer.queue)
        assert {"messageId": "msg_123", "queueName": "q"} == answer.headers


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE])
async def test_without_auto_create_a_queue_must_exist(dialect: str, kind: int) -> None:
    """Queue unknown and `vibe.auto_create` off: QUEUE_NOT_FOUND."""
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
async def test_auto_create_is_on_unless_said_otherwise(
    broker: RunningBroker, dialect: str, kind: int
) -> None:
    """The first Publish or Subscribe makes the queue."""
    async with connected(broker, dialect) as peer:
        assert ERROR != (await peer.ask(kind, "q")).kind

        assert ["q"] == await peer.names()


async def test_a_delivery_has_the_publishers_id_and_headers(
    broker: RunningBroker, dialect: str
) -> None:
    """Deliver: id = message id, the publisher's headers plus deliveryAttempts, timestamp."""
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


async def test_a_delivery_without_headers_of_its_own_has_two(
    broker: RunningBroker, dialect: str
) -> None:
    """deliveryAttempts, and as timestamp the time of the Publish, not of the delivery."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1")
        broker.clock.advance(100)
        await peer.subscribe("q")

        assert {"deliveryAttempts": "1", "timestamp": NOW} == (await peer.delivered()).headers


async def test_a_publishers_timestamp_is_kept(broker: RunningBroker, dialect: str) -> None:
    """`timestamp` is the broker's unless the publisher gave one."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", timestamp="yesterday")
        await peer.subscribe("q")

        assert "yesterday" == (await peer.delivered()).headers["timestamp"]


async def test_some_headers_are_always_the_brokers(broker: RunningBroker, dialect: str) -> None:
    """deliveryAttempts, contentEncoding and death* cannot be forged."""
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
    """First in, first out; backlog and new ones alike."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        for number in range(50):
            await source.publish("q", b"%d" % number)
        await peer.subscribe("q", 10_000)
        for number in range(50, 100):
            await source.publish("q", b"%d" % number)

        assert [b"%d" % number for number in range(100)] == await peer.payloads(100)


async def test_subscribe_is_answered_and_then_the_backlog_flows(
    broker: RunningBroker, dialect: str
) -> None:
    """SubscribeAck, headers queueName and subscriptionId; the backlog starts at once."""
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


async def test_a_backlog_longer_than_a_window_flows_to_its_end(dialect: str) -> None:
    """The backlog lives in the log, and is read as it is acknowledged."""
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


async def test_prefetch_is_what_a_consumer_may_hold(
    broker: RunningBroker, dialect: str
) -> None:
    """Unacknowledged deliveries up to it, and one more for each that is settled."""
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


async def test_prefetch_is_100_unless_said_otherwise(
    broker: RunningBroker, dialect: str
) -> None:
    """The default."""
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
    """Once per connection and queue: no second consumer, no message twice."""
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
async def test_prefetch_has_its_bounds(
    broker: RunningBroker, dialect: str, prefetch: int
) -> None:
    """1 to 10,000 are allowed."""
    async with connected(broker, dialect) as peer:
        await peer.subscribe("q", prefetch)


async def test_unsubscribe_ends_the_flow(broker: RunningBroker, dialect: str) -> None:
    """UnsubscribeAck; nothing more comes, and it waits for others."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.subscribe("q")
        answer = await peer.ask(UNSUBSCRIBE, "q", message_id="unsub_1")
        assert (UNSUBSCRIBE_ACK, "unsub_1", "q") == (answer.kind, answer.id, answer.queue)
        await other.publish("q", b"1")
        await peer.expect_silence()

        assert (1, 0) == await peer.counts("q")


@pytest.mark.parametrize("exists", [True, False])
async def test_unsubscribe_succeeds_also_when_not_subscribed(
    broker: RunningBroker, dialect: str, exists: bool
) -> None:
    """And makes no queue."""
    async with connected(broker, dialect) as peer:
        if exists:
            await peer.create("q")
        for _ in range(2):
            assert UNSUBSCRIBE_ACK == (await peer.ask(UNSUBSCRIBE, "q")).kind

        assert (["q"] if exists else []) == await peer.names()


async def test_what_is_held_at_an_unsubscribe_stays_ackable(
    broker: RunningBroker, dialect: str
) -> None:
    """Held deliveries stay ackable, until another consumer holds them."""
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


async def test_what_is_held_of_a_fan_out_at_an_unsubscribe_stays_ackable(
    broker: RunningBroker, dialect: str
) -> None:
    """It is settled for whoever joins later; what was not acknowledged is still to come."""
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


async def test_two_strands_of_the_same_message_id_are_two_messages(
    broker: RunningBroker, dialect: str
) -> None:
    """Two live messages with the same id are told apart inside."""
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
