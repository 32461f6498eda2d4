"""What the strands over TCP do alike: PINGs of their own, and messages that can go back."""

from typing import Any

import pytest

import braidmq
from braidmq.client.options import Options
from braidmq.client.subscription import Consumer
from tests.unit.client.peer import ignore, quick
from tests.unit.client.strands import AnyPeer, connected, dialled, offline, over_tcp

pytestmark = [pytest.mark.asyncio, over_tcp]

SUBSCRIBED = 1
"""The second of a client's connections."""


@pytest.mark.parametrize(
    "option", [{"recipient": bytes(32)}, {"schema": "a"}, {"envelope": True}]
)
async def test_what_only_sealed_messages_have_is_refused(
    strand: type[AnyPeer], option: dict[str, Any]
) -> None:
    """A payload that went out in the clear, an option being ignored, cannot be taken back."""
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


async def test_an_idle_connection_is_tried(strand: type[AnyPeer]) -> None:
    """Nobody asks, and still a dead broker is found: a PONG that is missing is noticed."""
    options = Options(keepalive=0.02, answer_timeout=0.05)
    async with strand() as peer, connected(peer, options) as connection:
        await peer.until(lambda: peer.count(peer.ping) >= 2)
        peer.script(peer.ping, ignore)
        await peer.until(lambda: not peer.open_lines())

        assert connection.is_lost


async def test_keeping_alive_ends_with_the_connection(strand: type[AnyPeer]) -> None:
    """However often a client connects again, no old loop goes on sending PINGs."""
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


async def test_a_silent_broker_leaves_the_outcome_open(strand: type[AnyPeer]) -> None:
    """Waiting has an end even when the connection does not break."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(answer_timeout=0.05)) as client,
    ):
        peer.script(peer.confirming, ignore)
        peer.script(peer.ping, ignore)
        with pytest.raises(braidmq.OutcomeUnknown, match=r"no answer within 0.05 s"):
            await client.publish("orders", b"1")
        peer.scripts.clear()


async def test_draining_forgets_what_was_not_handed_out(strand: type[AnyPeer]) -> None:
    """Iterating ends; what was taken can still be acknowledged."""
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


async def test_iteration_goes_on_over_a_broken_connection(strand: type[AnyPeer]) -> None:
    """What was not acknowledged comes again, and nothing that was."""
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
