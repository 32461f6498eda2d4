"""Behaviour that the TCP strands share: keep-alive PINGs and redelivery."""

from typing import Any

import pytest

import braidmq
from braidmq.client.options import Options
from braidmq.client.subscription import Consumer
from tests.unit.client.peer import ignore, quick
from tests.unit.client.strands import (
    SUBSCRIBED,
    AnyPeer,
    connected,
    dialled,
    offline,
    over_tcp,
)

pytestmark = [pytest.mark.asyncio, over_tcp]


@pytest.mark.parametrize(
    "option", [{"recipient": bytes(32)}, {"schema": "a"}, {"envelope": True}]
)
async def test_options_of_sealed_messages_are_refused(
    strand: type[AnyPeer], option: dict[str, Any]
) -> None:
    """If the option were ignored, the payload would go out in the clear."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        named = f"does not support {next(iter(option))}"
        for attempt in (
            client.publish("orders", b"1", **option),
            client.publish_many("orders", [b"1"], **option),
        ):
            with pytest.raises(braidmq.NotSupported, match=named):
                await attempt
        if "recipient" not in option:
            with pytest.raises(braidmq.NotSupported, match=named):
                client.subscribe("orders", **option)
        async with client.subscribe("orders") as messages:
            assert {} == messages.refused

        assert [] == peer.payloads()


async def test_an_idle_connection_is_probed(strand: type[AnyPeer]) -> None:
    """A missing PONG reveals a dead broker even if the client sends nothing else."""
    options = Options(keepalive=0.02, answer_timeout=0.05)
    async with strand() as peer, connected(peer, options) as connection:
        await peer.until(lambda: peer.count(peer.ping) >= 2)
        peer.script(peer.ping, ignore)
        await peer.until(lambda: not peer.open_lines())

        assert connection.is_lost


async def test_keep_alive_ends_with_the_connection(strand: type[AnyPeer]) -> None:
    """However often a client reconnects, no old loop keeps sending PINGs."""
    options = Options(keepalive=0.01, answer_timeout=10)
    async with strand() as peer:
        old = [await dialled(peer, options) for _ in range(3)]
        for connection in old:
            await connection.close()
        before = peer.count(peer.ping)
        async with connected(peer, options):
            await peer.until(lambda: peer.count(peer.ping) >= before + 3)

            assert before == sum(
                peer.kind(frame) == peer.ping for line in peer.lines[:3] for frame in line.seen
            )
            assert not any(connection.fence()[1].result() for connection in old)


async def test_a_publish_to_a_silent_broker_times_out_with_unknown_outcome(
    strand: type[AnyPeer],
) -> None:
    """The wait is bounded even if the connection does not break."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(answer_timeout=0.05)) as client,
    ):
        peer.script(peer.confirming, ignore)
        peer.script(peer.ping, ignore)
        with pytest.raises(braidmq.OutcomeUnknown, match=r"no answer within 0.05 s"):
            await client.publish("orders", b"1")
        peer.scripts.clear()


async def test_draining_a_subscription_drops_messages_not_yet_taken(
    strand: type[AnyPeer],
) -> None:
    """Iteration ends; a message already taken can still be acknowledged."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        peer.offer("orders", b"1", b"2", b"3")
        first = await anext(messages)
        await messages.drain()

        assert isinstance(messages, Consumer)
        assert 0 == messages.waiting
        await first.ack(confirmed=True)
        with pytest.raises(StopAsyncIteration):
            await anext(messages)


async def test_iteration_survives_a_broken_connection(strand: type[AnyPeer]) -> None:
    """Unacknowledged messages are redelivered, acknowledged ones are not."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick()) as client,
        client.subscribe("orders") as messages,
    ):
        peer.offer("orders", *[b"%d" % number for number in range(20)])
        seen = []
        async for message in messages:
            await message.ack(confirmed=True)
            seen.append(message.payload)
            if len(seen) == 10:
                peer.lines[SUBSCRIBED].die()
                await offline(messages)
            if len(seen) == 20:
                break

        assert [b"%d" % number for number in range(20)] == seen
