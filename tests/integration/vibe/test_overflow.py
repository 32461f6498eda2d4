"""Overflow: what happens to a Publish to a full queue under each strategy."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import until
from tests.integration.vibe.peer import (
    DELETE_QUEUE,
    DISCONNECT,
    ERROR,
    PING,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Message,
    Peer,
    connected,
    core,
    stats,
)

pytestmark = pytest.mark.asyncio

FULL = ("SERVER_ERROR", "queue full")


async def publish(peer: Peer, *payloads: bytes, **headers: str) -> list[Message]:
    """Publish messages with the id "m" + payload; return the answers."""
    return [
        await peer.ask(PUBLISH, "q", payload, headers, message_id=f"m{payload.decode()}")
        for payload in payloads
    ]


async def fill(peer: Peer, strategy: str, size: int = 2) -> None:
    """Declare a queue for *size* messages and fill it."""
    await peer.create("q", maxQueueSize=size, overflowStrategy=strategy)
    answers = await publish(peer, *(b"%d" % number for number in range(size)))
    assert {PUBLISH_ACK} == {answer.kind for answer in answers}


def is_blocked(running: RunningBroker) -> bool:
    return bool(core(running).queues.by_name["q"].blocked)


async def test_drop_oldest_makes_room(broker: RunningBroker, dialect: str) -> None:
    """The broker accepts the new message, and drops and counts the oldest waiting one."""
    async with connected(broker, dialect) as peer:
        await fill(peer, "DropOldest")
        assert [PUBLISH_ACK] * 2 == [one.kind for one in await publish(peer, b"2", b"3")]
        assert (2, 0) == await peer.counts("q")
        assert 2 == stats(broker).dropped.overflow
        await peer.subscribe("q")

        assert [b"2", b"3"] == await peer.payloads(2)
        await peer.expect_silence()


@pytest.mark.parametrize(
    "options",
    [
        {"overflowStrategy": "DropNewest"},
        {"overflowStrategy": "RedirectToDlq", "enableDeadLetterQueue": "false"},
    ],
)
async def test_a_full_queue_refuses_the_publish(
    broker: RunningBroker, dialect: str, options: dict[str, str]
) -> None:
    """SERVER_ERROR "queue full" for DropNewest, and for RedirectToDlq without a DLQ."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=2, **options)
        await publish(peer, b"0", b"1")
        (answer,) = await publish(peer, b"2")

        assert (ERROR, "m2", "q") == (answer.kind, answer.id, answer.queue)
        assert FULL == answer.error
        assert ["q"] == await peer.names()
        await peer.subscribe("q", 1)
        await peer.delivered()
        assert PUBLISH_ACK == (await publish(peer, b"3"))[0].kind


@pytest.mark.parametrize("options", [{"overflowStrategy": "RedirectToDlq"}, {}])
async def test_redirect_makes_the_new_message_a_dead_letter(
    broker: RunningBroker, dialect: str, options: dict[str, str]
) -> None:
    """The publisher gets a PublishAck. RedirectToDlq is the default strategy."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=1, **options)
        answers = await publish(peer, b"0", b"1", mine="x")
        assert [PUBLISH_ACK] * 2 == [answer.kind for answer in answers]
        await peer.subscribe("dlq.q")
        letter = await peer.delivered()

        assert ("m1", b"1", "x") == (letter.id, letter.payload, letter.headers["mine"])
        assert ("overflow", "q", "0") == tuple(
            letter.headers[key] for key in ("deathReason", "deathQueue", "deathAttempts")
        )
        assert (1, 0) == await peer.counts("q")


@pytest.mark.parametrize("strategy", ["DropOldest", "DropNewest", "RedirectToDlq"])
async def test_messages_in_flight_do_not_count(
    broker: RunningBroker, dialect: str, strategy: str
) -> None:
    """The size of a queue is the number of waiting messages."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        await source.create("q", maxQueueSize=1, overflowStrategy=strategy)
        await peer.subscribe("q", 3)
        answers = await publish(source, b"0", b"1", b"2", b"3")

        assert [PUBLISH_ACK] * 4 == [answer.kind for answer in answers]
        assert [b"0", b"1", b"2"] == await peer.payloads(3)
        assert (1, 3) == await source.counts("q")
        assert ["q"] == await source.names()


async def test_pipelined_publishes_respect_the_limit(
    broker: RunningBroker, dialect: str
) -> None:
    """Messages that are accepted but not yet committed count as waiting."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=3, overflowStrategy="DropNewest")
        peer.send(*(peer.frame(PUBLISH, f"m{n}", "q", b"%d" % n) for n in range(10)))
        kinds = [(await peer.next()).kind for _ in range(10)]

        assert [PUBLISH_ACK] * 3 + [ERROR] * 7 == kinds


async def test_block_publisher_waits_for_room(broker: RunningBroker, dialect: str) -> None:
    """The broker acknowledges the Publish once there is room; nothing is lost."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"), peer.frame(PING, "p"))
        await until(lambda: is_blocked(broker))
        await other.subscribe("q", 1)
        assert b"0" == (await other.delivered()).payload
        answers = [await peer.next() for _ in range(2)]

        assert ["m2", "p"] == [answer.id for answer in answers]
        other.ack("m0")
        assert b"1" == (await other.delivered()).payload
        other.ack("m1")
        assert b"2" == (await other.delivered()).payload


async def test_other_connections_do_not_wait_for_a_blocked_publisher(
    broker: RunningBroker, dialect: str
) -> None:
    """They can use other queues and this one."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        await other.publish("free", b"1")

        assert (2, 0) == await other.counts("q")
        assert b"" == peer.unread


async def test_acks_are_handled_behind_a_blocked_publish(
    broker: RunningBroker, dialect: str
) -> None:
    """A consumer that publishes to its own queue makes room with its own Ack."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=1, overflowStrategy="BlockPublisher")
        await peer.subscribe("q", 1)
        await publish(peer, b"0", b"1")
        assert b"0" == (await peer.delivered()).payload
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        peer.ack("m0")
        got = {(await peer.next()).id for _ in range(2)}

        assert {"m1", "m2"} == got
        peer.ack("m1")
        assert b"2" == (await peer.delivered()).payload


async def test_an_unsubscribe_is_handled_behind_a_blocked_publish(
    broker: RunningBroker, dialect: str
) -> None:
    """It takes effect at once; its answer waits its turn."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.subscribe("work")
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"), peer.frame(UNSUBSCRIBE, "u", "work"))
        queues = core(broker).queues
        await until(lambda: not queues.by_name["work"].consumers)
        assert is_blocked(broker)
        assert b"" == peer.unread
        await other.subscribe("q")
        answers = [await peer.next() for _ in range(2)]

        assert [("m2", PUBLISH_ACK), ("u", UNSUBSCRIBE_ACK)] == [
            (answer.id, answer.kind) for answer in answers
        ]


async def test_replies_behind_a_blocked_publish_keep_their_order(
    broker: RunningBroker, dialect: str
) -> None:
    """Publishes to other queues, refusals and requests wait their turn."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        kinds = [PUBLISH, PING, PUBLISH, 77, QUEUE_INFO, PUBLISH, PING]
        wanted = [f"x{number}" for number in range(len(kinds))]
        peer.send(
            *(peer.frame(kind, one, "q", b"1") for kind, one in zip(kinds, wanted, strict=True))
        )
        await until(lambda: is_blocked(broker))
        await other.subscribe("q")

        assert wanted == [(await peer.next()).id for _ in wanted]


async def test_more_publishes_than_the_buffer_holds_arrive_in_order(
    broker: RunningBroker, dialect: str
) -> None:
    """Publishes wait in a bounded buffer; the broker reads the rest once there is room."""
    count = 3000
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher", 1)
        peer.send(*(peer.frame(PUBLISH, f"x{n}", "q", b"%d" % n) for n in range(count)))
        await until(lambda: is_blocked(broker))
        await other.subscribe("q", 50)
        got = []
        for _ in range(count + 1):
            message = await other.delivered()
            got.append(message.id)
            other.ack(message.id)

        assert ["m0", *(f"x{n}" for n in range(count))] == got
        assert [f"x{n}" for n in range(count)] == [(await peer.next()).id for _ in range(count)]


@pytest.mark.parametrize("politely", [True, False])
async def test_a_blocked_publish_is_dropped_with_its_connection(
    broker: RunningBroker, dialect: str, politely: bool
) -> None:
    """The broker had not accepted it."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        if politely:
            peer.send(peer.frame(DISCONNECT, "d"))
            await peer.expect_close()
        else:
            await peer.break_off()
        await until(lambda: broker.daemon.status.metrics().connections["vibe"] == 1)
        await other.subscribe("q")

        assert [b"0", b"1"] == await other.payloads(2)
        await other.expect_silence()


async def test_a_blocked_publish_survives_a_half_close(
    broker: RunningBroker, dialect: str
) -> None:
    """Once there is room the publisher gets its answer, and then the broker closes."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        peer.transport.write_eof()
        await until(lambda: is_blocked(broker))
        await other.subscribe("q")

        assert [b"0", b"1", b"2"] == await other.payloads(3)
        assert PUBLISH_ACK == (await peer.next()).kind
        await until(lambda: peer.is_closed)


async def test_deleting_a_queue_unblocks_its_publishers(
    broker: RunningBroker, dialect: str
) -> None:
    """The blocked publish then creates the queue again."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        await other.ask(DELETE_QUEUE, "q")

        assert PUBLISH_ACK == (await peer.next()).kind
        assert (1, 0) == await other.counts("q")


async def test_the_slowest_subscriber_determines_the_size_in_fan_out(
    broker: RunningBroker, dialect: str
) -> None:
    """A fan-out queue is full when the longest backlog is."""
    async with (
        connected(broker, dialect) as slow,
        connected(broker, dialect) as quick,
        connected(broker, dialect) as source,
    ):
        await source.create(
            "q", deliveryMode="FanOutWithAck", maxQueueSize=1, overflowStrategy="DropNewest"
        )
        await slow.subscribe("q", 1)
        await quick.subscribe("q", 10)
        answers = await publish(source, b"0", b"1", b"2")

        assert [PUBLISH_ACK, PUBLISH_ACK, ERROR] == [answer.kind for answer in answers]
        assert [b"0", b"1"] == await quick.payloads(2)
        assert [b"0"] == await slow.payloads(1)
        slow.ack("m0")
        assert [b"1"] == await slow.payloads(1)
        assert PUBLISH_ACK == (await publish(source, b"3"))[0].kind


async def test_drop_oldest_in_fan_out_affects_only_the_slow_subscriber(
    broker: RunningBroker, dialect: str
) -> None:
    """The broker trims its backlog; the quick subscriber gets everything."""
    async with (
        connected(broker, dialect) as slow,
        connected(broker, dialect) as quick,
        connected(broker, dialect) as source,
    ):
        await source.create(
            "q", deliveryMode="FanOutWithAck", maxQueueSize=1, overflowStrategy="DropOldest"
        )
        await slow.subscribe("q", 1)
        await quick.subscribe("q", 10)
        await publish(source, b"0", b"1", b"2")
        assert [b"0", b"1", b"2"] == await quick.payloads(3)
        assert [b"0"] == await slow.payloads(1)
        slow.ack("m0")

        assert [b"2"] == await slow.payloads(1)


async def test_drop_oldest_drops_the_least_urgent_message(
    broker: RunningBroker, dialect: str
) -> None:
    """In a PriorityBased queue, the oldest one of the lowest priority."""
    async with connected(broker, dialect) as peer:
        await peer.create(
            "q", deliveryMode="PriorityBased", maxQueueSize=3, overflowStrategy="DropOldest"
        )
        for payload, priority in ((b"0", "low"), (b"1", "high"), (b"2", "low"), (b"3", "low")):
            await publish(peer, payload, priority=priority)
        await publish(peer, b"4", priority="critical")
        await peer.subscribe("q")

        assert [b"4", b"1", b"3"] == await peer.payloads(3)
        await peer.expect_silence()
