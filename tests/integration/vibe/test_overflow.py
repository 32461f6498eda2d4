"""Overflow: what becomes of a Publish to a queue that is full, by its strategy."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip import peer as blip
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
    """Publish messages whose ids are their payloads behind an m; return the answers."""
    return [
        await peer.ask(PUBLISH, "q", payload, headers, message_id=f"m{payload.decode()}")
        for payload in payloads
    ]


async def fill(peer: Peer, strategy: str, size: int = 2) -> None:
    """Declare a queue of *size* messages and publish as many."""
    await peer.create("q", maxQueueSize=size, overflowStrategy=strategy)
    answers = await publish(peer, *(b"%d" % number for number in range(size)))
    assert {PUBLISH_ACK} == {answer.kind for answer in answers}


def is_blocked(running: RunningBroker) -> bool:
    return bool(core(running).queues.by_name["q"].blocked)


async def test_drop_oldest_makes_room(broker: RunningBroker, dialect: str) -> None:
    """DropOldest: the new one is taken, the oldest waiting one is gone and counted."""
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
async def test_a_refused_publish_is_told(
    broker: RunningBroker, dialect: str, options: dict[str, str]
) -> None:
    """DropNewest, RedirectToDlq without DLQ: SERVER_ERROR "queue full"."""
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


async def test_a_full_queue_refuses_blip_too(broker: RunningBroker, dialect: str) -> None:
    """Overflow refusal on Blip: NACK 500."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as other:
        await fill(peer, "DropNewest")
        other.send(blip.publish(7, "q", b"2"))
        await other.expect(blip.nack(7, 500, "queue full"))

        assert (2, 0) == await peer.counts("q")


@pytest.mark.parametrize("options", [{"overflowStrategy": "RedirectToDlq"}, {}])
async def test_redirect_takes_the_new_message_to_the_dead_letters(
    broker: RunningBroker, dialect: str, options: dict[str, str]
) -> None:
    """RedirectToDlq, also when a size is given without a strategy: PublishAck, overflow."""
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
async def test_what_is_in_flight_does_not_count(
    broker: RunningBroker, dialect: str, strategy: str
) -> None:
    """Judged on waiting messages, never in flight."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as source:
        await source.create("q", maxQueueSize=1, overflowStrategy=strategy)
        await peer.subscribe("q", 3)
        answers = await publish(source, b"0", b"1", b"2", b"3")

        assert [PUBLISH_ACK] * 4 == [answer.kind for answer in answers]
        assert [b"0", b"1", b"2"] == await peer.payloads(3)
        assert (1, 3) == await source.counts("q")
        assert ["q"] == await source.names()


async def test_a_pipeline_of_publishes_is_judged_exactly(
    broker: RunningBroker, dialect: str
) -> None:
    """What is accepted and not committed yet counts as waiting."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=3, overflowStrategy="DropNewest")
        peer.send(*(peer.frame(PUBLISH, f"m{n}", "q", b"%d" % n) for n in range(10)))
        kinds = [(await peer.next()).kind for _ in range(10)]

        assert [PUBLISH_ACK] * 3 + [ERROR] * 7 == kinds


async def test_block_publisher_waits_for_room(broker: RunningBroker, dialect: str) -> None:
    """BlockPublisher: the Publish is acknowledged when there is room, nothing is lost."""
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


async def test_others_do_not_wait_behind_a_blocked_publisher(
    broker: RunningBroker, dialect: str
) -> None:
    """Other connections go on, on other queues and this one."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        await other.publish("free", b"1")

        assert (2, 0) == await other.counts("q")
        assert b"" == peer.unread


async def test_acks_go_on_behind_a_blocked_publish(broker: RunningBroker, dialect: str) -> None:
    """A consumer that publishes to the queue it consumes makes room by its own Ack."""
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


async def test_unsubscribe_goes_on_behind_a_blocked_publish(
    broker: RunningBroker, dialect: str
) -> None:
    """It is done at once; its answer keeps its place."""
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


async def test_more_than_the_buffer_holds_comes_through_in_order(
    broker: RunningBroker, dialect: str
) -> None:
    """Publish frames wait in a bounded buffer; the rest is not read until there is room."""
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
async def test_whoever_goes_takes_the_blocked_publish_along(
    broker: RunningBroker, dialect: str, politely: bool
) -> None:
    """It was never accepted."""
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


async def test_a_half_closed_publisher_is_still_heard(
    broker: RunningBroker, dialect: str
) -> None:
    """Whoever merely sends no more gets its answer when there is room, and then the end."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        peer.transport.write_eof()
        await until(lambda: is_blocked(broker))
        await other.subscribe("q")

        assert [b"0", b"1", b"2"] == await other.payloads(3)
        assert PUBLISH_ACK == (await peer.next()).kind
        await until(lambda: peer.is_closed)


async def test_a_deleted_queue_lets_its_publishers_go(
    broker: RunningBroker, dialect: str
) -> None:
    """What waited for room goes to the queue that is made anew."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await fill(peer, "BlockPublisher")
        peer.send(peer.frame(PUBLISH, "m2", "q", b"2"))
        await until(lambda: is_blocked(broker))
        await other.ask(DELETE_QUEUE, "q")

        assert PUBLISH_ACK == (await peer.next()).kind
        assert (1, 0) == await other.counts("q")


async def test_fan_out_is_judged_by_the_slowest(broker: RunningBroker, dialect: str) -> None:
    """In fan-out on the slowest subscriber's backlog."""
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


async def test_drop_oldest_in_fan_out_is_the_slow_ones_loss(
    broker: RunningBroker, dialect: str
) -> None:
    """Its own backlog is cut; the quick one has all."""
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


async def test_drop_oldest_by_priority_drops_the_least_urgent(
    broker: RunningBroker, dialect: str
) -> None:
    """DropOldest in PriorityBased drops the oldest of the lowest priority."""
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
