"""A Blip subscription: broken connections, brokers without CREDIT."""

import asyncio

import pytest

import braidmq
from braidmq.client.blip import subscription as module
from braidmq.client.blip.subscription import BlipSubscription, Traits
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Line, Peer
from tests.unit.client.blip.subscribed import credits_granted, delivered, subscribed, take
from tests.unit.client.peer import hang_up, quick
from tests.unit.client.strands import SUBSCRIBED, offline, online

pytestmark = pytest.mark.asyncio


async def test_iteration_survives_a_broken_connection() -> None:
    """The client resumes the same subscription; unseen messages arrive, none twice."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(20)])
        seen = []
        async for message in subscription:
            await message.ack(confirmed=True)
            seen.append(message.payload)
            if len(seen) == 10:
                peer.lines[SUBSCRIBED].die()
                await offline(subscription)
            if len(seen) == 20:
                break

        assert [b"%d" % n for n in range(20)] == seen
        assert 1 == sum(line.types().count(frames.SUBSCRIBE) for line in peer.lines)


async def test_a_forgotten_subscription_is_replaced_and_the_gap_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a 404 the client subscribes anew, logs it and calls `on_gap`."""
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


async def test_a_subscription_that_vanishes_while_in_use_is_replaced() -> None:
    """A 404 to CREDIT or POLL is handled like one after a broken connection."""
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


async def forget(peer: Peer, subscription: BlipSubscription) -> None:
    """Make the broker forget the subscription, and drop its connection."""
    peer.queues.clear()
    peer.lines[SUBSCRIBED].die()
    await offline(subscription)


async def test_pending_acknowledgements_of_a_replaced_subscription_are_dropped() -> None:
    """Their ids could match other deliveries of the new subscription."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        await forget(peer, subscription)
        await message.ack()
        await online(subscription)
        await subscription.drain()

        assert frames.SUBSCRIBE in peer.lines[-1].types()
        assert frames.ACK not in peer.lines[-1].types()


async def test_an_acknowledgement_after_a_replacement_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker has forgotten the delivery together with its subscription."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        await forget(peer, subscription)
        await online(subscription)
        await message.ack()

        assert "its subscription was replaced" in caplog.text


async def test_a_forbidden_replacement_ends_the_subscription() -> None:
    """The iterating task gets the error: a retry would fail again."""
    async with Peer() as peer, subscribed(peer) as subscription:
        iterating = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_granted(peer.lines[SUBSCRIBED])[-1:] == [1])
        peer.queues.clear()
        peer.refuse(frames.SUBSCRIBE, 403, "forbidden")
        peer.lines[SUBSCRIBED].die()

        with pytest.raises(braidmq.SubscriptionRefused, match="403"):
            await iterating
        with pytest.raises(braidmq.SubscriptionRefused, match="403"):
            await anext(subscription)


async def test_received_qos_0_messages_survive_a_broken_connection() -> None:
    """The broker will not redeliver them, so the inbox keeps them."""
    async with Peer() as peer, subscribed(peer) as subscription:
        own = peer.lines[SUBSCRIBED].seen[-1][1]
        peer.lines[SUBSCRIBED].send(
            messages.encode_publish(own, 0, "orders", b"0"),
            messages.encode_publish(700, 1, "orders", b"1"),
        )
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets more arrive
            await asyncio.sleep(0)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)

        assert [b"0"] == [message.payload for message in await subscription.fetch(timeout=0)]


async def test_an_unforeseen_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The client swallows no answer of the broker."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.refuse(frames.POLL, 400, "odd")
        await subscription.fetch(timeout=0)

        assert "refused by the broker: 400 odd" in caplog.text


async def test_a_broker_without_credit_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up on CREDIT; the client notices, remembers it and polls instead."""
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


async def test_one_hang_up_does_not_mark_a_broker_as_lacking_credit() -> None:
    """It may have restarted at the wrong moment."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:

        def hang_up_once(line: Line, correlation_id: int, payload: bytes) -> None:
            del peer.scripts[frames.CREDIT]
            line.hang_up()

        peer.script(frames.CREDIT, hang_up_once)
        async with client.subscribe("orders") as subscription:
            await client.publish("orders", b"1")

            assert b"1" == (await take(subscription, 1))[0].payload
            assert 1 == peer.lines[-1].types().count(frames.CREDIT) - 1


async def test_a_subscription_lost_while_probing_credit_is_created_again() -> None:
    """The caller has not seen it yet, so there is no gap to report."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:

        def forget_and_hang_up(line: Line, correlation_id: int, payload: bytes) -> None:
            peer.queues.clear()
            line.hang_up()

        peer.script(frames.CREDIT, forget_and_hang_up)
        async with client.subscribe("orders") as subscription:
            assert [subscription.subscription_id] == list(peer.queues)


async def test_a_broker_known_to_support_credit_is_never_polled() -> None:
    """After one answer to CREDIT, a hang-up means only a lost connection."""
    traits = Traits()
    traits.answered()

    assert not traits.hung_up()
    assert traits.credit
    assert traits.known


async def test_polling_survives_a_broken_connection() -> None:
    """A polled subscription is resumed as well."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(frames.CREDIT, hang_up)
        async with client.subscribe("orders") as subscription:
            iterating = asyncio.create_task(take(subscription, 1))
            await peer.until(lambda: frames.POLL in peer.lines[-1].types())
            peer.lines[-1].die()
            await client.publish("orders", b"1")

            assert b"1" == (await iterating)[0].payload


async def test_several_tasks_may_share_a_polled_subscription() -> None:
    """One task polls for all that wait."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(frames.CREDIT, hang_up)
        async with client.subscribe("orders") as subscription:
            workers = [asyncio.create_task(take(subscription, 5)) for _ in range(3)]
            await client.publish_many("orders", [b"%d" % n for n in range(15)])
            taken = [m.payload for done in await asyncio.gather(*workers) for m in done]

            assert {b"%d" % n for n in range(15)} == set(taken)
