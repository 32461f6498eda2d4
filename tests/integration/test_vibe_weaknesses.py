"""Promises that VibeMQ does not keep, part one: delivery.

Each test is named after the promise; its docstring starts with the number of the weakness in
the research notes on the original, where the test would fail.
"""

import asyncio
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import DISCONNECT, ERROR, PUBLISH, PUBLISH_ACK, SUBSCRIBE, core
from tests.integration.vibe_peer import (
    Peer,
    ack,
    connected,
    ping,
    publish,
    until_connected,
)

pytestmark = pytest.mark.asyncio

BACKOFFS_S = (32, 34, 38)
"""Delays after deliveries 1 to 3: the 30 s timeout plus a backoff of 2, 4 and 8 s."""

FEW = [str(number) for number in range(5)]


async def taken(peer: Peer, count: int) -> list[str]:
    """Return the ids of the next deliveries."""
    return [(await peer.delivered()).id for _ in range(count)]


async def test_a_backlog_is_delivered_as_soon_as_a_consumer_subscribes(
    broker: RunningBroker,
) -> None:
    """1: it needs no further publish to start, and nothing is left behind."""
    async with connected(broker) as peer:
        await peer.publish_all("q", FEW)
        await peer.subscribe("q")

        assert FEW == await taken(peer, 5)
        await peer.acknowledge(*FEW)
        assert (0, 0) == await peer.counts("q")


async def test_a_lost_consumers_messages_go_to_the_next(broker: RunningBroker) -> None:
    """1: returned messages need no further publish, either."""
    async with connected(broker) as peer:
        async with connected(broker) as lost:
            await lost.subscribe("q")
            await peer.publish_all("q", FEW)
            await lost.deliveries(5)
        await until_connected(broker, 1)
        await peer.subscribe("q")

        assert FEW == await taken(peer, 5)


async def test_recovered_messages_are_delivered_at_once(tmp_path: Path) -> None:
    """1: nor do recovered messages."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as first, connected(first) as peer:
        await peer.publish_all("q", FEW)
    async with broker_at(tmp_path, clock) as second, connected(second) as peer:
        await peer.subscribe("q")

        assert FEW == await taken(peer, 5)


async def test_an_unacknowledged_message_becomes_a_dead_letter(broker: RunningBroker) -> None:
    """2: by default the broker keeps it after the last attempt, with the reason."""
    async with connected(broker) as peer:
        await peer.subscribe("q")
        await peer.publish_all("q", ["m"], payload=b'"kept"', key="value")
        for attempt, seconds in enumerate(BACKOFFS_S, start=1):
            assert attempt == (await peer.delivered()).attempts
            broker.clock.advance(seconds - 0.001)
            await peer.expect_silence()
            broker.clock.advance(0.001)
        await peer.expect_silence()
        await peer.subscribe("dlq.q")
        letter = await peer.delivered()

        assert ("m", b'"kept"', "value") == (letter.id, letter.payload, letter.headers["key"])
        death = [letter.headers[f"death{name}"] for name in ("Reason", "Queue", "Attempts")]
        assert ["maxRetries", "q", "3"] == death


async def test_in_a_fan_out_each_subscriber_must_acknowledge(broker: RunningBroker) -> None:
    """3: an acknowledgement counts for one subscriber only; retries are separate."""
    async with connected(broker) as one, connected(broker) as two:
        await one.create("q", deliveryMode="FanOutWithAck")
        await one.subscribe("q")
        await two.subscribe("q")
        await one.publish_all("q", ["m"])
        assert ["m", "m"] == [*await taken(one, 1), *await taken(two, 1)]
        await one.acknowledge("m")
        broker.clock.advance(BACKOFFS_S[0])
        again = await two.delivered()

        assert ("m", 2) == (again.id, again.attempts)
        await one.expect_silence()
        await two.acknowledge("m")
        assert (0, 0) == await two.counts("q")


@pytest.mark.parametrize(
    "options",
    [
        {"deliveryMode": "FanOutWithoutAck"},
        {"maxQueueSize": "1", "overflowStrategy": "DropOldest"},
    ],
)
async def test_a_broadcast_or_dropped_message_does_not_return(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """4: not even after a restart, and it pins no segment of the log."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as first, connected(first) as peer:
        await peer.create("q", **options)
        await peer.publish_all("q", FEW)
        await peer.subscribe("q")
        if "maxQueueSize" in options:
            assert ["4"] == await taken(peer, 1)
            await peer.acknowledge("4")
        await peer.expect_silence()
        assert core(first).committed_id + 1 == core(first).needed_id()
    async with broker_at(tmp_path, clock) as second, connected(second) as peer:
        await peer.subscribe("q")
        await peer.expect_silence()

        assert (0, 0) == await peer.counts("q")


async def test_expired_messages_can_be_read_as_dead_letters(tmp_path: Path) -> None:
    """5: they go to the configured dead-letter queue, even across a restart."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as first, connected(first) as peer:
        await peer.create("q", messageTtl="5000", deadLetterQueueName="graves")
        await peer.publish_all("q", ["m"], payload=b"[1]")
    async with broker_at(tmp_path, clock) as second, connected(second) as peer:
        await peer.subscribe("graves")
        clock.advance(4)
        await peer.expect_silence()
        clock.advance(2)
        letter = await peer.delivered()

        assert ("m", b"[1]", "expired", "q") == (
            letter.id,
            letter.payload,
            letter.headers["deathReason"],
            letter.headers["deathQueue"],
        )


async def test_the_broker_acknowledges_only_stored_messages() -> None:
    """6: a publisher gets an error for a full queue and for an unknown one."""
    async with broker_at(vibe={"auto_create": False}) as broker, connected(broker) as peer:
        await peer.create("q", maxQueueSize="1", overflowStrategy="DropNewest")
        await peer.publish_all("q", ["m"])
        full = await peer.ask(PUBLISH, "q", b"1")
        unknown = await peer.ask(PUBLISH, "other", b"1")

        assert (ERROR, ("SERVER_ERROR", "queue full")) == (full.kind, full.error)
        assert (ERROR, "QUEUE_NOT_FOUND") == (unknown.kind, unknown.error_code)
        assert (1, 0) == await peer.counts("q")


async def test_a_blocked_publisher_loses_nothing(broker: RunningBroker) -> None:
    """7: BlockPublisher blocks, and everything is stored and delivered in the end."""
    many = [str(number) for number in range(200)]
    async with connected(broker) as publisher, connected(broker) as consumer:
        await publisher.create("q", maxQueueSize="3", overflowStrategy="BlockPublisher")
        publisher.send(*(publish(each, "q") for each in many), ping("done"))
        for each in many[:3]:
            assert PUBLISH_ACK == (await publisher.reply(each)).kind
        await until(lambda: core(broker).queues.by_name["q"].blocked)
        assert (3, 0) == await consumer.counts("q")
        await consumer.subscribe("q", 1)
        for each in many:
            assert [each] == await taken(consumer, 1)
            consumer.send(ack(each))

        for each in many[3:]:
            assert PUBLISH_ACK == (await publisher.reply(each)).kind
        await publisher.reply("done")


async def test_an_overflow_drops_the_least_urgent_message(broker: RunningBroker) -> None:
    """7: in a priority queue DropOldest drops the oldest of the lowest priority."""
    async with connected(broker) as peer:
        await peer.create(
            "q", deliveryMode="PriorityBased", maxQueueSize="4", overflowStrategy="DropOldest"
        )
        levels = {"l": "low", "h": "high", "c": "critical"}
        for name in ("l1", "c1", "l2", "h1", "c2", "c3"):
            await peer.publish_all("q", [name], priority=levels[name[0]])
        await peer.subscribe("q")

        assert ["c1", "c2", "c3", "h1"] == await taken(peer, 4)
        await peer.expect_silence()


async def test_messages_of_one_priority_keep_their_order(broker: RunningBroker) -> None:
    """7: the order is stable, however many messages there are."""
    levels = ["low", "critical", "normal", "high"]
    async with connected(broker) as peer:
        await peer.create("q", deliveryMode="PriorityBased")
        wanted: dict[str, list[str]] = {level: [] for level in levels}
        for number in range(100):
            level = levels[number * 7 % 4]
            wanted[level].append(str(number))
            peer.send(publish(str(number), "q", priority=level))
            await peer.reply(str(number))
        await peer.subscribe("q", 1000)
        in_order = [*wanted["critical"], *wanted["high"], *wanted["normal"], *wanted["low"]]

        assert in_order == await taken(peer, 100)


async def test_an_unknown_priority_is_normal(broker: RunningBroker) -> None:
    """8: neither low, nor above critical."""
    async with connected(broker) as peer:
        await peer.create("q", deliveryMode="PriorityBased")
        for priority in ("low", "urgent", "99", "normal", "critical"):
            await peer.publish_all("q", [priority], priority=priority)
        await peer.subscribe("q")

        assert ["critical", "urgent", "99", "normal", "low"] == await taken(peer, 5)


async def test_a_subscribe_creates_no_queue_when_auto_create_is_off() -> None:
    """9: `vibe.auto_create` applies to consumers too."""
    async with broker_at(vibe={"auto_create": False}) as broker, connected(broker) as peer:
        answer = await peer.ask(SUBSCRIBE, "q")

        assert (ERROR, "QUEUE_NOT_FOUND") == (answer.kind, answer.error_code)
        assert [] == await peer.names()


async def test_a_retry_goes_to_any_free_consumer(broker: RunningBroker) -> None:
    """10: it is not tied to the consumer that did not answer."""
    async with connected(broker) as silent, connected(broker) as other:
        await silent.subscribe("q")
        await silent.publish_all("q", ["m"])
        broker.clock.advance(20)
        await silent.publish_all("q", ["n"])
        assert ["m", "n"] == await taken(silent, 2)
        await other.subscribe("q")
        broker.clock.advance(BACKOFFS_S[0] - 20)
        again = await other.delivered()

        assert ("m", 2) == (again.id, again.attempts)


async def test_returned_messages_keep_their_order_and_attempts(broker: RunningBroker) -> None:
    """10: they go before newer messages, oldest first, and the count continues."""
    async with connected(broker) as peer:
        async with connected(broker) as lost:
            await lost.subscribe("q", 3)
            await peer.publish_all("q", FEW)
            await lost.deliveries(3)
        await until_connected(broker, 1)
        await peer.subscribe("q")
        found = await peer.deliveries(5)

        assert FEW == [each.id for each in found]
        assert [2, 2, 2, 1, 1] == [each.attempts for each in found]


async def test_a_consumer_cannot_acknowledge_anothers_message(broker: RunningBroker) -> None:
    """11: such an Ack changes nothing, and the broker counts it."""
    async with connected(broker) as owner, connected(broker) as other:
        await owner.subscribe("q")
        await owner.publish_all("q", ["m"])
        await owner.delivered()
        await other.acknowledge("m")

        assert (0, 1) == await owner.counts("q")
        assert 1 == core(broker).stats.unknown_acks
        await owner.acknowledge("m")
        assert (0, 0) == await owner.counts("q")


async def test_messages_with_the_same_id_do_not_collide(broker: RunningBroker) -> None:
    """11: publishers choose the ids; each message is stored, delivered and acknowledged."""
    async with connected(broker) as peer:
        await peer.publish_all("q", ["m"], payload=b"1")
        await peer.publish_all("q", ["m"], payload=b"2")
        await peer.publish_all("other", ["m"], payload=b"3")
        await peer.subscribe("q")
        await peer.subscribe("other")
        assert [b"1", b"2", b"3"] == await peer.payloads(3)
        await peer.acknowledge("m", "m", "m")

        assert [(0, 0), (0, 0)] == [await peer.counts("q"), await peer.counts("other")]


async def test_a_consumer_that_does_not_read_delays_no_other(broker: RunningBroker) -> None:
    """12: publishers get their answers, and other consumers their messages, meanwhile."""
    big = b'"' + b"x" * 100_000 + b'"'
    many = [str(number) for number in range(200)]
    async with (
        connected(broker) as stuck,
        connected(broker) as consumer,
        connected(broker) as publisher,
    ):
        await stuck.subscribe("q", 10_000)
        stuck.transport.pause_reading()
        await consumer.subscribe("q", 1)
        publishing = asyncio.create_task(publisher.publish_all("q", many, payload=big))
        seen = 0
        while not publishing.done():
            looking = asyncio.create_task(consumer.delivered())
            await asyncio.wait([looking, publishing], return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                looking.cancel()
                break
            consumer.send(ack(looking.result().id))
            seen += 1
        await publishing

        assert seen > 10


async def test_a_stopping_broker_still_accepts_acknowledgements(tmp_path: Path) -> None:
    """13: a consumer may finish the message that it works on when the broker stops."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock, limits={"drain_s": 20.0}) as first:
        async with connected(first) as peer:
            await peer.subscribe("q")
            await peer.publish_all("q", ["m"])
            await peer.delivered()
            stopping = asyncio.create_task(first.daemon.stop())
            engine = first.daemon.status.engine
            assert engine is not None
            await until(lambda: engine.draining)
            peer.send(ack("m"))
            goodbye = await peer.next()
            await stopping

        assert DISCONNECT == goodbye.kind
        assert {"reason": "server_shutdown"} == goodbye.headers
    async with broker_at(tmp_path, clock) as second, connected(second) as peer:
        await peer.subscribe("q")
        await peer.expect_silence()


async def test_a_message_returned_at_shutdown_does_not_lose_an_attempt(tmp_path: Path) -> None:
    """13: a consumer that did not finish in time gets it again as attempt 1."""
    clock = FakeClock()
    async with (
        broker_at(tmp_path, clock, limits={"drain_s": 0.0}) as first,
        connected(first) as peer,
    ):
        await peer.subscribe("q")
        await peer.publish_all("q", FEW)
        await peer.deliveries(5)
        await first.daemon.stop()
    async with broker_at(tmp_path, clock) as second, connected(second) as peer:
        await peer.subscribe("q")
        found = await peer.deliveries(5)

        assert [(each, 1) for each in FEW] == [(one.id, one.attempts) for one in found]


async def test_a_message_may_have_no_payload(broker: RunningBroker) -> None:
    """14: it is delivered, and can become a dead letter."""
    async with connected(broker) as peer:
        await peer.subscribe("q")
        await peer.publish_all("q", ["m"], payload=b"")
        assert b"" == (await peer.delivered()).payload
        peer.send(ack("m", result="reject"))
        await peer.subscribe("dlq.q")
        letter = await peer.delivered()

        assert ("m", b"", "rejected") == (
            letter.id,
            letter.payload,
            letter.headers["deathReason"],
        )
