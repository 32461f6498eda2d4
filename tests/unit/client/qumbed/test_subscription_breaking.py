"""A Qumbed subscription: broken connections and refused subscriptions."""

import asyncio

import pytest

import braidmq
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Subscribe
from tests.unit.client.qumbed.peer import Peer
from tests.unit.client.qumbed.people import BOB
from tests.unit.client.qumbed.subscribed import subscribed
from tests.unit.client.strands import SUBSCRIBED, offline, online

pytestmark = pytest.mark.asyncio


async def test_the_subscription_is_renewed_on_the_next_connection() -> None:
    """With the same key, so that the broker can recognise it; received messages are kept."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.offer("orders", b"1", b"2")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them arrive
            await asyncio.sleep(0)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        assert 2 == subscription.waiting
        await online(subscription)
        peer.offer("orders", b"3")
        seen = [(await anext(subscription)).payload for _ in range(3)]

        assert [b"1", b"2", b"3"] == seen
        (again,) = peer.lines[SUBSCRIBED + 1].of(messages.SUBSCRIBE)
        assert isinstance(again, Subscribe)
        assert ("orders", BOB.public_key) == (again.topic, again.public_key)


async def test_a_full_subscription_continues_after_a_reconnect() -> None:
    """Reading had paused on the old connection; on the new one it follows the free space."""
    async with Peer() as peer, subscribed(peer, prefetch=2) as subscription:
        peer.offer("orders", b"1", b"2", b"3")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them arrive
            await asyncio.sleep(0)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)
        peer.offer("orders", b"4", b"5", b"6")
        seen = []
        while b"6" not in seen:
            seen.append((await anext(subscription)).payload)

        assert [b"1", b"2"] == seen[:2]
        assert [b"4", b"5", b"6"] == seen[-3:]


async def test_received_messages_are_delivered_before_the_error() -> None:
    """The end of the connection does not lose them."""
    async with Peer() as peer, subscribed(peer, reconnect=False) as subscription:
        peer.offer("orders", b"1", b"2")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them arrive
            await asyncio.sleep(0)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)

        assert b"1" == (await anext(subscription)).payload
        (second,) = await subscription.fetch(timeout=0)
        assert b"2" == second.payload
        with pytest.raises(braidmq.ConnectionLost):
            await anext(subscription)
        with pytest.raises(braidmq.ConnectionLost):
            await subscription.fetch(timeout=0)


async def test_a_refused_subscription_says_why() -> None:
    """With the code and text of the broker."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.refuse(messages.SUBSCRIBE, "SCHEMA_UNKNOWN", "unknown schema: x")
        with pytest.raises(
            braidmq.SubscriptionRefused, match="SCHEMA_UNKNOWN unknown schema: x"
        ) as caught:
            await client.subscribe("orders", schema="x")

        assert ("orders", "SCHEMA_UNKNOWN") == (caught.value.topic, caught.value.code)


@pytest.mark.parametrize("code", ["RATE_LIMIT", "SERVER_ERROR"])
async def test_resubscribing_is_retried_after_a_temporary_refusal(code: str) -> None:
    """Only for a subscription that existed before."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.once(messages.SUBSCRIBE, peer.refusing(code))
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)

        assert 3 == peer.count(messages.SUBSCRIBE)


async def test_a_permanent_refusal_ends_the_subscription() -> None:
    """The iterating task gets the error."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.refuse(messages.SUBSCRIBE, "UNAUTHORIZED", "not allowed")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.SubscriptionRefused, match="not allowed"):
            await anext(subscription)
