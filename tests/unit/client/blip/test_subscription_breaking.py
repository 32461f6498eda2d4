"""A subscription over the Blip strand: broken connections, brokers without CREDIT."""

import asyncio

import pytest

import braidmq
from braidmq.client.blip import subscription as module
from braidmq.client.blip.subscription import Traits
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Line, Peer
from tests.unit.client.blip.subscribed import (
    SUBSCRIBED,
    back,
    credits_given,
    lost,
    subscribed,
    take,
)
from tests.unit.client.peer import hang_up, quick

pytestmark = pytest.mark.asyncio


async def test_iteration_goes_on_over_a_broken_connection() -> None:
    """The subscription is resumed; what nobody has seen comes again, and nothing twice."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(20)])
        seen = []
        async for message in subscription:
            await message.ack(confirmed=True)
            seen.append(message.payload)
            if len(seen) == 10:
                peer.lines[SUBSCRIBED].die()
                await lost(subscription)
            if len(seen) == 20:
                break

        assert [b"%d" % n for n in range(20)] == seen
        assert 1 == sum(line.types().count(frames.SUBSCRIBE) for line in peer.lines)


async def test_a_forgotten_subscription_is_replaced_and_the_gap_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that answers 404 gets a new subscription; nobody is left in the dark."""
    gaps: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        subscription = await client.subscribe(
            "orders", on_gap=lambda gone, new: gaps.put_nowait((gone, new))
        )
        first = subscription.subscription_id
        await client.publish("orders", b"before")
        (before,) = await take(subscription, 1)
        peer.queues.clear()
        peer.lines[SUBSCRIBED].die()
        gap = await gaps.get()
        await client.publish("orders", b"after")
        (after,) = await take(subscription, 1)

        assert (first, subscription.subscription_id) == gap
        assert b"after" == after.payload
        assert f"subscription {first} to 'orders' is gone" in caplog.text
        with pytest.raises(braidmq.StaleDelivery, match="its subscription was replaced"):
            await before.ack(confirmed=True)


async def test_a_subscription_that_goes_while_it_is_used_is_replaced() -> None:
    """A 404 to CREDIT or POLL leads the same way as one after a broken connection."""
    async with Peer() as peer, subscribed(peer) as subscription:
        await subscription.fetch(timeout=0)
        first = subscription.subscription_id
        peer.queues.clear()
        await subscription.fetch(timeout=0)
        await peer.until(lambda: peer.queues)
        (second,) = peer.queues
        peer.put(second, b"1")

        assert b"1" == (await take(subscription, 1))[0].payload
        assert first != second == subscription.subscription_id


async def test_late_acknowledgements_of_a_replaced_subscription_are_dropped() -> None:
    """They would be about somebody else's deliveries."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1")
        (message,) = await take(subscription, 1)
        peer.queues.clear()
        peer.lines[SUBSCRIBED].die()
        await lost(subscription)
        await message.ack()
        await back(subscription)
        await subscription.drain()

        assert frames.SUBSCRIBE in peer.lines[-1].types()
        assert frames.ACK not in peer.lines[-1].types()


async def test_an_acknowledgement_after_a_replacement_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker has forgotten the delivery with the subscription."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1")
        (message,) = await take(subscription, 1)
        peer.queues.clear()
        peer.lines[SUBSCRIBED].die()
        await lost(subscription)
        await back(subscription)
        await message.ack()

        assert "its subscription was replaced" in caplog.text


async def test_a_replacement_that_is_forbidden_ends_the_subscription() -> None:
    """Who iterates gets the error: it would come again."""
    async with Peer() as peer, subscribed(peer) as subscription:
        iterating = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_given(peer.lines[SUBSCRIBED])[-1:] == [1])
        peer.queues.clear()
        peer.nack(frames.SUBSCRIBE, 403, "forbidden")
        peer.lines[SUBSCRIBED].die()

        with pytest.raises(braidmq.SubscriptionRefused, match="403"):
            await iterating
        with pytest.raises(braidmq.SubscriptionRefused, match="403"):
            await anext(subscription)


async def test_messages_of_qos_0_survive_a_broken_connection() -> None:
    """The broker will not send them again, so what is here is kept."""
    async with Peer() as peer, subscribed(peer) as subscription:
        own = peer.lines[SUBSCRIBED].seen[-1][1]
        peer.lines[SUBSCRIBED].send(
            messages.encode_publish(own, 0, "orders", b"0"),
            messages.encode_publish(700, 1, "orders", b"1"),
        )
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets more arrive
            await asyncio.sleep(0)
        peer.lines[SUBSCRIBED].die()
        await lost(subscription)

        assert [b"0"] == [message.payload for message in await subscription.fetch(timeout=0)]


async def test_an_unforeseen_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that the broker says is swallowed."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.nack(frames.POLL, 400, "odd")
        await subscription.fetch(timeout=0)

        assert "refused by the broker: 400 odd" in caplog.text


async def test_a_broker_without_credit_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up at CREDIT; that is noticed, remembered, and worked around."""
    monkeypatch.setattr(module, "POLL_DELAY_S", 0.0001)
    monkeypatch.setattr(module, "POLL_DELAY_MAX_S", 0.001)
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(frames.CREDIT, hang_up)
        async with client.subscribe("orders") as subscription:
            iterating = asyncio.create_task(take(subscription, 3))
            await peer.until(lambda: peer.lines[-1].types().count(frames.POLL) > 3)
            await client.publish_many("orders", [b"1", b"2", b"3"])
            seen = await iterating
            for message in seen:
                await message.ack(confirmed=True)

            assert [b"1", b"2", b"3"] == [message.payload for message in seen]
            assert 3 == len(peer.acked)
            assert frames.CREDIT not in peer.lines[-1].types()
            before = peer.lines[-1].types().count(frames.POLL)
            fetching = asyncio.create_task(subscription.fetch(max=1, timeout=60))
            await peer.until(lambda: peer.lines[-1].types().count(frames.POLL) > before + 2)
            await client.publish("orders", b"4")
            assert [b"4"] == [message.payload for message in await fetching]
        before = len(peer.lines)
        async with client.subscribe("other") as second:
            assert [] == await second.fetch(timeout=0.002)
        assert before + 1 == len(peer.lines)
        assert frames.UNSUBSCRIBE not in [k for line in peer.lines for k in line.types()]
        with pytest.raises(braidmq.NotSupported, match="stats"):
            await client.stats()


async def test_one_hang_up_is_not_yet_a_broker_without_credit() -> None:
    """A broker that restarts at the wrong moment is not held to be an old one."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:

        def hang_up_once(line: Line, correlation_id: int, payload: bytes) -> None:
            del peer.scripts[frames.CREDIT]
            line.hang_up()

        peer.script(frames.CREDIT, hang_up_once)
        async with client.subscribe("orders") as subscription:
            await client.publish("orders", b"1")

            assert b"1" == (await take(subscription, 1))[0].payload
            assert 1 == peer.lines[-1].types().count(frames.CREDIT) - 1


async def test_a_subscription_lost_while_credit_is_tried_is_made_again() -> None:
    """Nobody has seen it yet, so there is no gap to speak of."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:

        def forget(line: Line, correlation_id: int, payload: bytes) -> None:
            peer.queues.clear()
            line.hang_up()

        peer.script(frames.CREDIT, forget)
        async with client.subscribe("orders") as subscription:
            assert [subscription.subscription_id] == list(peer.queues)


async def test_a_broker_that_is_known_to_have_credit_is_never_taken_for_an_old_one() -> None:
    """After one answer, a hang-up is only a hang-up."""
    traits = Traits()
    traits.answered()

    assert not traits.hung_up()
    assert traits.credit
    assert traits.known


async def test_polling_goes_on_over_a_broken_connection() -> None:
    """The other way to receive is resumed as well."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(frames.CREDIT, hang_up)
        async with client.subscribe("orders") as subscription:
            iterating = asyncio.create_task(take(subscription, 1))
            await peer.until(lambda: frames.POLL in peer.lines[-1].types())
            peer.lines[-1].die()
            await client.publish("orders", b"1")

            assert b"1" == (await iterating)[0].payload


async def test_several_tasks_may_share_a_polled_subscription() -> None:
    """One asks for all who wait."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(frames.CREDIT, hang_up)
        async with client.subscribe("orders") as subscription:
            workers = [asyncio.create_task(take(subscription, 5)) for _ in range(3)]
            await client.publish_many("orders", [b"%d" % n for n in range(15)])
            taken = [m.payload for done in await asyncio.gather(*workers) for m in done]

            assert {b"%d" % n for n in range(15)} == set(taken)
