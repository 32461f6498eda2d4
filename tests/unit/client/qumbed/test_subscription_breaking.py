"""A subscription over the Qumbed strand whose connection breaks, or whose broker says no."""

import asyncio

import pytest

import braidmq
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Subscribe
from tests.unit.client.qumbed.peer import Peer, refusing
from tests.unit.client.qumbed.people import BOB
from tests.unit.client.qumbed.subscribed import SUBSCRIBED, subscribed
from tests.unit.client.strands import offline, online

pytestmark = pytest.mark.asyncio


async def test_the_subscription_is_made_again_on_the_next_connection() -> None:
    """With the same key, so that a broker can know it; what is here stays here."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.offer("orders", b"1", b"2")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them come
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


async def test_a_full_subscription_goes_on_after_a_break() -> None:
    """It had paused on the old connection; the new one is read as there is room."""
    async with Peer() as peer, subscribed(peer, prefetch=2) as subscription:
        peer.offer("orders", b"1", b"2", b"3")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them come
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


async def test_what_is_here_is_given_out_before_the_error() -> None:
    """The end of the link does not take back what was handed over."""
    async with Peer() as peer, subscribed(peer, reconnect=False) as subscription:
        peer.offer("orders", b"1", b"2")
        while subscription.waiting < 2:  # noqa: ASYNC110 - each turn lets them come
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
    """Code and text are the broker's."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.refuse(messages.SUBSCRIBE, "SCHEMA_UNKNOWN", "unknown schema: x")
        with pytest.raises(
            braidmq.SubscriptionRefused, match="SCHEMA_UNKNOWN unknown schema: x"
        ) as caught:
            await client.subscribe("orders", schema="x")

        assert ("orders", "SCHEMA_UNKNOWN") == (caught.value.topic, caught.value.code)


@pytest.mark.parametrize("code", ["RATE_LIMIT", "SERVER_ERROR"])
async def test_a_refusal_that_may_pass_is_tried_again(code: str) -> None:
    """Only of a subscription that was there before."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.once(messages.SUBSCRIBE, refusing(code))
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)

        assert 3 == peer.count(messages.SUBSCRIBE)


async def test_a_refusal_for_good_is_the_end() -> None:
    """Whoever iterates gets the error."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.refuse(messages.SUBSCRIBE, "UNAUTHORIZED", "not allowed")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.SubscriptionRefused, match="not allowed"):
            await anext(subscription)
