"""Limits: body sizes before and after Connect, room for added headers, and the rate."""

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

UNAUTHENTICATED_MAX = 4096
BODY_MAX = 1024 * 1024
COMMAND_BYTES_MAX = 128 * 1024
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


async def test_4_kib_are_allowed_before_connect(broker: RunningBroker, dialect: str) -> None:
    """The broker reads a body of exactly that size."""
    async with stranger(broker, dialect) as peer:
        peer.send(frame(dialect, connect_of(UNAUTHENTICATED_MAX)))

        assert CONNECT_ACK == (await peer.next()).kind


async def test_more_than_4_kib_before_connect_closes_the_connection(
    broker: RunningBroker, dialect: str
) -> None:
    """The length alone is enough to refuse it."""
    async with stranger(broker, dialect) as peer:
        await peer.ask(PING)
        peer.send(struct.pack(">IB", UNAUTHENTICATED_MAX + 1, 0))
        answer = await peer.next()

        assert (ERROR, "INVALID_MESSAGE") == (answer.kind, answer.error_code)
        await peer.expect_close()


async def test_a_refused_connect_does_not_raise_the_limit(
    broker: RunningBroker, dialect: str
) -> None:
    """Only a successful Connect does."""
    async with stranger(broker, dialect) as peer:
        assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code
        peer.send(struct.pack(">IB", UNAUTHENTICATED_MAX + 1, 0))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


async def test_a_command_that_is_no_publish_has_at_most_128_kib(
    broker: RunningBroker, dialect: str
) -> None:
    """Room for the longest id and headers: other commands carry nothing of the peer's."""
    empty = len(body(PING, "i" * 65_535, headers=[("k", "")]))
    async with connected(broker, dialect) as peer:
        answers = []
        for spare in (0, -1):
            value = "v" * (COMMAND_BYTES_MAX - empty - spare)
            peer.send(frame(dialect, body(PING, "i" * 65_535, headers=[("k", value)])))
            answers.append(await peer.next())
        assert [PONG, ERROR] == [answer.kind for answer in answers]
        assert {"i" * 65_535} == {answer.id for answer in answers}
        assert "INVALID_MESSAGE" == answers[1].error_code
        assert "at most 131072 bytes; no setting raises it" in answers[1].error_message
        await peer.expect_close()


async def test_more_than_1_mib_is_refused_before_it_comes(
    broker: RunningBroker, dialect: str
) -> None:
    """By its length, then the connection is closed."""
    async with connected(broker, dialect) as peer:
        peer.send(struct.pack(">IB", BODY_MAX + 1, 0))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("body_max", [BODY_MAX, 8192, 4096])
async def test_a_publish_leaves_room_for_the_headers_of_its_delivery(
    dialect: str, body_max: int
) -> None:
    """256 bytes: the largest Publish is delivered; one byte more is refused."""
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


async def test_the_size_limit_is_configurable(dialect: str) -> None:
    """By `vibe.max_message_bytes`."""
    async with (
        broker_at(vibe={"max_message_bytes": 5000}) as broker,
        connected(broker, dialect) as peer,
    ):
        peer.send(frame(dialect, publish_of(5001)))

        assert "INVALID_MESSAGE" == (await peer.next()).error_code
        await peer.expect_close()


@pytest.mark.parametrize("failing", [False, True])
async def test_the_handshake_timeout_closes_even_a_busy_connection(
    dialect: str, failing: bool
) -> None:
    """It runs from accept until a Connect succeeds; neither Ping nor a failure extends it."""
    async with (
        broker_at(limits={"handshake_timeout_s": 0.3}) as broker,
        connected(broker, dialect) as known,
        stranger(broker, dialect) as peer,
    ):
        if failing:
            assert "AUTH_FAILED" == (await peer.ask(CONNECT)).error_code

        def is_closed_despite_pings() -> bool:
            if not peer.is_closed:
                peer.send(peer.frame(PING, "p"))
            return peer.is_closed

        await until(is_closed_despite_pings)
        await known.expect_silence()


async def test_the_handshake_timeout_is_10_s_by_default() -> None:
    """`limits.handshake_timeout_s`."""
    assert Config().limits.handshake_timeout_s == 10.0


async def test_a_request_above_the_rate_limit_is_refused(dialect: str) -> None:
    """RATE_LIMITED with the request's queue, until time passes; the connection stays open."""
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
async def test_the_rate_limit_counts_all_requests(dialect: str, kind: int) -> None:
    """`limits.messages_per_s` applies to requests of every kind."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker, dialect) as peer,
    ):
        await peer.publish("q", b"1")

        assert "RATE_LIMITED" == (await peer.ask(kind, "q")).error_code


async def test_acknowledgements_are_never_refused(dialect: str) -> None:
    """Nor is the Ping that confirms them."""
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


async def test_the_rate_limit_is_per_connection(dialect: str) -> None:
    """One connection cannot use up another's."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker, dialect) as one,
        connected(broker, dialect) as other,
    ):
        await one.publish("q", b"1")
        assert "RATE_LIMITED" == (await one.ask(PUBLISH, "q", b"2")).error_code
        await other.publish("q", b"3")


async def test_there_is_no_rate_limit_by_default(broker: RunningBroker, dialect: str) -> None:
    """`limits.messages_per_s` is 0."""
    async with connected(broker, dialect) as peer:
        peer.send(*(peer.frame(PUBLISH, f"m{number}", "q", b"1") for number in range(3000)))
        kinds = {(await peer.next()).kind for _ in range(3000)}

        assert {PUBLISH_ACK} == kinds


async def test_connections_are_counted(broker: RunningBroker, dialect: str) -> None:
    """The metrics count them by strand."""
    async with connected(broker, dialect):
        await until(lambda: broker.daemon.status.metrics().connections["vibe"] == 1)
    await until(lambda: broker.daemon.status.metrics().connections["vibe"] == 0)
