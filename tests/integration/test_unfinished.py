"""Unhandled input over the real listeners: one key's keeps no other key from sending."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from braidmq.base.limits import MIB
from braidmq.broker.policy import BLOCK_PUBLISHER
from braidmq.broker.quotas import refusal
from braidmq.server.engine.unfinished import SLACK_BYTES
from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at, until
from tests.integration.qumbed import peer as qumbed
from tests.integration.test_quotas import KEYS, engine_of, running, topics_of
from tests.integration.vibe import peer as vibe
from tests.integration.vibe_peer import CREATE_USER
from tests.unit.broker.drive import policy_of

pytestmark = pytest.mark.asyncio

# Frames that are begun and not ended.

UNFINISHED: Final = 60_000


@asynccontextmanager
async def blip_frame(broker: RunningBroker) -> AsyncIterator[Any]:
    async with blip.connected(broker, key="low-key") as peer:
        yield peer, blip.publish(7, "low.t", bytes(70_000))


@asynccontextmanager
async def vibe_frame(broker: RunningBroker) -> AsyncIterator[Any]:
    async with vibe.connected(broker, headers=(("authToken", "low-key"),)) as peer:
        yield peer, peer.frame(vibe.PUBLISH, "m", "low.t", b"7" * 70_000, {})


@asynccontextmanager
async def qumbed_frame(broker: RunningBroker) -> AsyncIterator[Any]:
    async with qumbed.connected(broker) as peer:
        stream = peer.open()
        await stream.ask(qumbed.publish("low.t", b"1", frame_id="0", key="low-key"))
        yield stream, qumbed.publish("low.t", bytes(50_000), frame_id="1", key="low-key")


every_frame = pytest.mark.parametrize(
    "begun", [blip_frame, vibe_frame, qumbed_frame], ids=lambda way: way.__name__
)


@every_frame
async def test_unfinished_frames_of_one_principal_are_bounded(
    tmp_path: Path, begun: Callable[[RunningBroker], Any]
) -> None:
    """The one that exceeds the quota is told so and closed; the first is finished."""
    async with running(tmp_path) as broker:
        account = topics_of(broker).accounts.of("low")
        async with begun(broker) as (one, frame), begun(broker) as (two, _):
            one.send(frame[:UNFINISHED])
            await until(lambda: account.used("unfinished_bytes") >= UNFINISHED)
            two.send(frame[:UNFINISHED])
            await until(lambda: topics_of(broker).accounts.refused["unfinished_bytes"])
            kept = account.used("unfinished_bytes")
            one.send(frame[UNFINISHED:])
            await until(lambda: account.used("unfinished_bytes") == 0)
            await until(lambda: topics_of(broker).find("low.t") is not None)

        assert UNFINISHED == kept
        assert 0 == engine_of(broker).unfinished.bytes


@every_frame
async def test_an_unfinished_frame_without_progress_is_closed(
    tmp_path: Path, begun: Callable[[RunningBroker], Any]
) -> None:
    """What it holds is free again; one that grows may take its time."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock, auth=KEYS, qumbed={"auth": "key"}) as broker:
        unfinished = engine_of(broker).unfinished
        async with begun(broker) as (peer, frame):
            peer.send(frame[:UNFINISHED])
            await until(lambda: unfinished.bytes == UNFINISHED)
            clock.advance(29)
            engine_of(broker).tick()
            in_time = unfinished.bytes
            clock.advance(2)
            engine_of(broker).tick()

            assert (UNFINISHED, 0) == (in_time, unfinished.bytes)
            await until(lambda: not unfinished)


async def test_a_refused_frame_is_told_why_on_each_strand(tmp_path: Path) -> None:
    """NACK 500 without a correlation id; Error SERVER_ERROR on the other two."""
    text = refusal("unfinished_bytes", 100_000, "low")
    async with running(tmp_path) as broker:
        async with blip.connected(broker, key="low-key") as peer:
            peer.send(blip.publish(7, "low.t", bytes(200_000))[:150_000])
            await peer.expect(blip.nack(0, 500, f"frame refused: {text}"))
            await peer.expect_close()
        async with vibe.connected(broker, headers=(("authToken", "low-key"),)) as vibe_peer:
            vibe_peer.send(
                vibe_peer.frame(vibe.PUBLISH, "m", "low.t", bytes(200_000), {})[:150_000]
            )
            answer = await vibe_peer.reply("err-1")
            await vibe_peer.expect_close()
        async with qumbed.connected(broker) as qumbed_peer:
            stream = qumbed_peer.open()
            await stream.ask(qumbed.publish("low.t", b"1", frame_id="0", key="low-key"))
            frame = qumbed.publish("low.t", bytes(200_000), frame_id="1", key="low-key")
            error = await stream.ask(frame[:150_000])

    assert ("SERVER_ERROR", text) == (answer.error_code, answer.error_message)
    assert ("SERVER_ERROR", text) == (error["e"]["code"], error["e"]["message"])


# Input that waits because the broker cannot handle it yet.


@asynccontextmanager
async def small(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """Yield a broker with little memory, and a queue `low.full` that lets publishers wait."""
    async with broker_at(
        tmp_path, auth=KEYS, qumbed={"auth": "key"}, limits={"max_memory_bytes": 8 * MIB}
    ) as broker:
        engine = engine_of(broker)
        topic = engine.broker.topics.get("low.full")
        assert topic is not None
        policy = policy_of(overflow=BLOCK_PUBLISHER, max_size=1)
        engine.broker.queues.declare(topic, policy, engine.now_us())
        engine.end_turn()
        async with blip.connected(broker, key="low-key") as peer:
            peer.send(blip.publish(1, "low.full", b"x"), blip.ping(2))
            await peer.expect(blip.pong(2))
        yield broker


@asynccontextmanager
async def blip_waiting(broker: RunningBroker) -> AsyncIterator[None]:
    async with blip.connected(broker, key="low-key") as peer:
        peer.send(*[blip.publish(1, "low.full", bytes(size)) for size in (1, *[50_000] * 5)])
        yield


@asynccontextmanager
async def vibe_waiting(broker: RunningBroker) -> AsyncIterator[None]:
    async with vibe.connected(broker, headers=(("authToken", "low-key"),)) as peer:
        for number in range(6):
            body = b"7" * (50_000 if number else 1)
            peer.send(peer.frame(vibe.PUBLISH, f"m{number}", "low.full", body, {}))
        yield


@asynccontextmanager
async def qumbed_waiting(broker: RunningBroker) -> AsyncIterator[None]:
    async with qumbed.connected(broker) as peer:
        stream = peer.open()
        for number in range(6):
            body = bytes(50_000 if number else 1)
            stream.send(qumbed.publish("low.full", body, frame_id=str(number), key="low-key"))
        yield


@pytest.mark.parametrize(
    "waiting", [blip_waiting, vibe_waiting, qumbed_waiting], ids=lambda way: way.__name__
)
async def test_publishers_that_wait_hold_no_more_than_their_quota(
    tmp_path: Path, waiting: Callable[[RunningBroker], Any]
) -> None:
    """Up to one read each: the broker stops reading, closes none, and refuses no other key."""
    async with small(tmp_path) as broker, AsyncExitStack() as stack:
        unfinished = engine_of(broker).unfinished
        account = topics_of(broker).accounts.of("low")
        await stack.enter_async_context(waiting(broker))
        await until(lambda: account.used("unfinished_bytes") > 100_000)
        stopped = account.used("unfinished_bytes")
        connections = len(engine_of(broker).connections)
        for _ in range(3):
            await stack.enter_async_context(waiting(broker))
        await until(lambda: len(engine_of(broker).connections) == connections + 3)
        async with blip.connected(broker, key="high-key") as peer:
            frame = blip.publish(9, "mine", bytes(100_000))
            peer.send(frame[:50_000])
            await until(lambda: unfinished.bytes - unfinished.held_up_bytes == 50_000)
            peer.send(frame[50_000:], blip.ping(10))
            await peer.expect(blip.pong(10))

        assert 100_000 < stopped
        assert account.used("unfinished_bytes") <= 2 * 100_000 + SLACK_BYTES
        assert 0 == topics_of(broker).accounts.refused["unfinished_bytes"]
        assert connections + 3 == len(engine_of(broker).connections)


async def test_very_many_publishers_that_wait_are_refused_in_the_end(tmp_path: Path) -> None:
    """One read of each would be gigabytes: above twice the quota they are refused."""
    async with small(tmp_path) as broker, AsyncExitStack() as stack:
        accounts = topics_of(broker).accounts
        for _ in range(21):
            await stack.enter_async_context(blip_waiting(broker))
        await until(lambda: accounts.refused["unfinished_bytes"])
        used = accounts.of("low").used("unfinished_bytes")
        async with blip.connected(broker, key="high-key") as peer:
            peer.send(blip.publish(9, "mine", bytes(100_000)), blip.ping(10))
            await peer.expect(blip.pong(10))

        assert used <= 2 * 100_000 + SLACK_BYTES


async def test_a_frame_that_came_before_the_password_was_checked_is_charged(
    tmp_path: Path,
) -> None:
    """To the user whose password it was: what is pipelined behind a Connect is no exception."""
    quotas = {"unfinished_bytes": 100_000}
    async with broker_at(tmp_path, vibe={}, quotas=quotas) as broker:
        accounts = topics_of(broker).accounts
        async with vibe.connected(broker) as admin:
            user = b'{"username": "ada", "password": "right"}'
            await admin.ask(CREATE_USER, payload=user)
        async with (
            vibe.stranger(broker, vibe.V1_1) as one,
            vibe.stranger(broker, vibe.V1_1) as two,
        ):
            for peer in (one, two):
                headers = (("authUsername", "ada"), ("authPassword", "right"))
                frame = peer.frame(vibe.PUBLISH, "m", "q", b"7" * 70_000, {})
                hello = peer.frame(vibe.CONNECT, "c", headers=headers)
                peer.send(hello + frame[:UNFINISHED])
            await until(lambda: accounts.refused["unfinished_bytes"])

            assert UNFINISHED == accounts.of("ada").used("unfinished_bytes")


async def test_the_first_frames_of_more_streams_are_charged_to_the_key_of_the_first(
    tmp_path: Path,
) -> None:
    """Qumbed's streams say their keys in a frame that has to be complete first."""
    async with running(tmp_path) as broker, qumbed.connected(broker) as peer:
        accounts = topics_of(broker).accounts
        stream = peer.open()
        await stream.ask(qumbed.publish("low.t", b"1", frame_id="0", key="low-key"))
        frame = qumbed.publish("low.t", bytes(50_000), frame_id="1", key="low-key")
        streams = [peer.open() for _ in range(2)]
        streams[0].send(frame[:UNFINISHED])
        await until(lambda: accounts.of("low").used("unfinished_bytes") == UNFINISHED)
        streams[1].send(frame[:UNFINISHED])
        await until(lambda: accounts.refused["unfinished_bytes"] == 1)
        text = await streams[1].expect_error("SERVER_ERROR")

        assert refusal("unfinished_bytes", 100_000, "low") == text
