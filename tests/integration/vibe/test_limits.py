"""Limits: the size of a body before and after Connect, the room for headers, the rate."""

import struct

import pytest

from braidmq.server.config.config import Config
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import (
    CONNECT,
    CONNECT_ACK,
    ERROR,
    LIST_QUEUES,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE,
    TOKEN,
    body,
    connected,
    frame,
    stranger,
)

pytestmark = pytest.mark.asyncio

UNKNOWN_MAX = 4096
BODY_MAX = 1024 * 1024
SPARE = 256


def connect_of(size: int) -> bytes:
    """Return a Connect whose body has *size* bytes."""
    filled = [*TOKEN, ("filling", "")]
    missing = size - len(body(CONNECT, "c", headers=filled))
    return body(CONNECT, "c", headers=[*TOKEN, ("filling", "x" * missing)])


def publish_of(size: int, message_id: str = "m") -> bytes:
    """Return a Publish whose body has *size* bytes."""
    missing = size - len(body(PUBLISH, message_id, "q", b'""'))
    return body(PUBLISH, message_id, "q", b'"' + b"x" * missing + b'"')


async def test_a_stranger_may_send_4_kib(broker: RunningBroker, dialect: str) -> None:
    """4 KiB before Connect succeeded: at the limit it is read."""
    async with stranger(broker, dialect) as peer:
        peer.send(frame(dialect, connect_of(UNKNOWN_MAX)))

        assert CONNECT_ACK == (await peer.next()).kind


async def test_a_stranger_may_not_send_more(broker: RunningBroker, dialect: str) -> None:
    """Oversize is lost framing, and told by the length alone."""
    async with stranger(broker, dialect) as peer:
        await peer.ask(PING)
        peer.send(struct.pack(">IB", UNKNOWN_MAX + 1, 0))
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()


async def test_a_refused_connect_does_not_raise_the_limit(
    broker: RunningBroker, dialect: str
) -> None:
    """It is raised when Connect has succeeded."""
    async with stranger(broker, dialect) as peer:
        assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        peer.send(struct.pack(">IB", UNKNOWN_MAX + 1, 0))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


async def test_a_known_peer_may_send_1_mib(broker: RunningBroker, dialect: str) -> None:
    """1 MiB per body, of anything that is not a Publish."""
    async with connected(broker, dialect) as peer:
        payload = b'"' + b"x" * (BODY_MAX - len(body(PING, "p")) - 2) + b'"'
        peer.send(frame(dialect, body(PING, "p", payload=payload)))
        assert PONG == (await peer.next()).kind
        peer.send(struct.pack(">IB", BODY_MAX + 1, 0))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("body_max", [BODY_MAX, 8192, 4096])
async def test_a_publish_leaves_room_for_what_delivery_adds(
    dialect: str, body_max: int
) -> None:
    """256 bytes spare: the largest Publish arrives, one byte more is refused and no more."""
    async with (
        broker_at(vibe={"max_message_bytes": body_max}) as broker,
        connected(broker, dialect) as peer,
    ):
        await peer.subscribe("q")
        for size in (body_max, body_max - SPARE + 1):
            peer.send(frame(dialect, publish_of(size)))
            answer = await peer.next()
            assert (ERROR, "m", "q") == (answer.kind, answer.id, answer.queue)
            assert "INVALID_MESSAGE" == answer.error_code
        peer.send(frame(dialect, publish_of(body_max - SPARE)))
        answers = {answer.kind: answer for answer in [await peer.next(), await peer.next()]}

        assert PUBLISH_ACK in answers
        answers.pop(PUBLISH_ACK)
        (delivered,) = answers.values()
        assert publish_of(body_max - SPARE).endswith(delivered.payload + bytes(2))


async def test_the_limit_can_be_set(dialect: str) -> None:
    """`vibe.max_message_bytes`."""
    async with (
        broker_at(vibe={"max_message_bytes": 5000}) as broker,
        connected(broker, dialect) as peer,
    ):
        peer.send(frame(dialect, publish_of(5001)))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("failing", [False, True])
async def test_a_stranger_has_a_while_to_connect_whatever_it_sends(
    dialect: str, failing: bool
) -> None:
    """10 s from accept until Connect succeeds; neither Ping nor a refusal extends it."""
    async with (
        broker_at(limits={"handshake_timeout_s": 0.3}) as broker,
        connected(broker, dialect) as known,
        stranger(broker, dialect) as peer,
    ):
        if failing:
            assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code

        def is_closed_though_it_pings() -> bool:
            if not peer.is_closed:
                peer.send(peer.frame(PING, "p"))
            return peer.is_closed

        await until(is_closed_though_it_pings)
        await known.expect_silence()


async def test_the_while_is_10_s_unless_said_otherwise() -> None:
    """The default of `limits.handshake_timeout_s`."""
    assert Config().limits.handshake_timeout_s == 10.0


async def test_more_than_the_rate_is_refused(dialect: str) -> None:
    """RATE_LIMITED with the request's id and queue; the connection stays, time heals."""
    async with (
        broker_at(limits={"messages_per_s": 3}) as broker,
        connected(broker, dialect) as peer,
    ):
        for number in range(3):
            await peer.publish("q", b"%d" % number)
        refused = await peer.ask(PUBLISH, "q", b"3")
        assert (ERROR, "q", "RATE_LIMITED") == (refused.kind, refused.queue, refused.error_code)
        broker.clock.advance(1)
        await peer.publish("q", b"4")
        await peer.subscribe("q")

        assert [b"0", b"1", b"2", b"4"] == await peer.payloads(4)


@pytest.mark.parametrize("kind", [SUBSCRIBE, QUEUE_INFO, LIST_QUEUES])
async def test_the_rate_is_that_of_all_requests(dialect: str, kind: int) -> None:
    """More than `limits.messages_per_s` messages, of whatever kind."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker, dialect) as peer,
    ):
        await peer.publish("q", b"1")

        assert "RATE_LIMITED" == (await peer.ask(kind, "q")).error_code


async def test_acknowledgements_are_never_refused(dialect: str) -> None:
    """Nor is the Ping that asks whether they count."""
    async with (
        broker_at(limits={"messages_per_s": 4}) as broker,
        connected(broker, dialect) as source,
        connected(broker, dialect) as peer,
    ):
        await peer.subscribe("q")
        for number in range(4):
            await source.publish("q", b"%d" % number, f"m{number}")
        await peer.payloads(4)
        for _ in range(3):
            await peer.ask(QUEUE_INFO, "q")
        assert "RATE_LIMITED" == (await peer.ask(QUEUE_INFO, "q")).error_code
        for number in range(4):
            peer.ack(f"m{number}")
        await peer.expect_silence()
        broker.clock.advance(1)

        assert (0, 0) == await peer.counts("q")


async def test_the_rate_is_per_connection(dialect: str) -> None:
    """What one has used up is there for the other."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker, dialect) as one,
        connected(broker, dialect) as other,
    ):
        await one.publish("q", b"1")
        assert "RATE_LIMITED" == (await one.ask(PUBLISH, "q", b"2")).error_code
        await other.publish("q", b"3")


async def test_by_default_there_is_no_rate(broker: RunningBroker, dialect: str) -> None:
    """Default 0 = off."""
    async with connected(broker, dialect) as peer:
        peer.send(*(peer.frame(PUBLISH, f"m{number}", "q", b"1") for number in range(3000)))
        kinds = {(await peer.next()).kind for _ in range(3000)}

        assert {PUBLISH_ACK} == kinds


async def test_connections_are_counted(broker: RunningBroker, dialect: str) -> None:
    """Those of this strand are told apart from others."""
    async with connected(broker, dialect):
        await until(lambda: broker.daemon.status.metrics().connections["vibe"] == 1)
    await until(lambda: broker.daemon.status.metrics().connections["vibe"] == 0)
