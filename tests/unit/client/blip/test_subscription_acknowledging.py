"""A Blip subscription: acknowledging and fetching."""

import asyncio
import logging

import pytest

import braidmq
from braidmq.client.blip import subscription as module
from braidmq.client.blip.subscription import BlipSubscription
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Peer
from tests.unit.client.blip.subscribed import credits_granted, delivered, subscribed, take
from tests.unit.client.peer import die
from tests.unit.client.strands import SUBSCRIBED, offline

pytestmark = pytest.mark.asyncio


async def test_an_exception_leaves_the_message_unacknowledged() -> None:
    """Blip has no nack; the broker redelivers the message after its timeout."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        with pytest.raises(ZeroDivisionError):
            async with message.process():
                raise ZeroDivisionError
        with pytest.raises(braidmq.NotSupported, match="blip does not support nack"):
            await message.nack()

        assert [] == peer.acked


async def test_acknowledging_twice_sends_one_acknowledgement() -> None:
    """A handler may acknowledge early, inside `process`."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        async with message.process():
            await message.ack(confirmed=True)
        await subscription.drain()

        assert [message.id] == peer.acked


async def test_a_confirmed_acknowledgement_waits_for_the_broker() -> None:
    """It returns once the fence behind it is answered."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        peer.hold(frames.PING)
        acknowledging = asyncio.create_task(message.ack(confirmed=True))
        await peer.until(lambda: peer.held)

        assert not acknowledging.done()
        peer.release()
        await acknowledging
        assert [message.id] == peer.acked


async def test_a_stale_acknowledgement_is_an_error_when_confirmed_and_a_warning_when_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker no longer knows the delivery."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1", b"2")
        one, two = await take(subscription, 2)
        peer.queues[subscription.subscription_id].in_flight.clear()
        with pytest.raises(braidmq.StaleDelivery, match="unknown subscription or delivery tag"):
            await one.ack(confirmed=True)
        with caplog.at_level(logging.WARNING, "braidmq.client"):
            await two.ack()
            await subscription.drain()

        text = f"delivery {two.id} cannot be acknowledged: unknown subscription or delivery tag"
        assert [text] == caplog.messages


async def delivered_twice(
    peer: Peer, subscription: BlipSubscription
) -> tuple[braidmq.Message, braidmq.Message]:
    """Deliver a message and, as if it had taken too long, deliver it again."""
    first = await delivered(peer, subscription)
    assert isinstance(first.id, int)
    again = messages.encode_publish(first.id, 1, first.topic, first.payload)
    peer.lines[SUBSCRIBED].send(again)
    second = await anext(subscription)
    assert first.id == second.id
    return first, second


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_message_and_its_redelivery_are_acknowledged_together(
    confirmed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They are one delivery to the broker, so that one acknowledgement settles both."""
    async with Peer() as peer, subscribed(peer) as subscription:
        first, second = await delivered_twice(peer, subscription)
        await asyncio.gather(first.ack(confirmed=True), second.ack(confirmed=confirmed))
        await subscription.drain()

        assert [first.id] == peer.acked
        assert [] == caplog.messages


async def test_both_learn_that_their_delivery_is_no_longer_open() -> None:
    """Even if the one that sent the acknowledgement was cancelled."""
    async with Peer() as peer, subscribed(peer) as subscription:
        first, second = await delivered_twice(peer, subscription)
        peer.queues[subscription.subscription_id].in_flight.clear()
        peer.hold(frames.ACK)
        peer.hold(frames.PING)
        acks = [asyncio.create_task(one.ack(confirmed=True)) for one in (first, second)]
        await peer.until(lambda: len(peer.held) == 2)
        acks[0].cancel()
        await asyncio.sleep(0)
        peer.release()
        outcomes = await asyncio.gather(*acks, return_exceptions=True)

        expected = [asyncio.CancelledError, braidmq.StaleDelivery]
        assert expected == [type(one) for one in outcomes]


async def test_a_redelivery_after_a_break_is_acknowledged_on_its_own() -> None:
    """What was sent on the old connection may not have arrived."""
    async with Peer() as peer, subscribed(peer) as subscription:
        first = await delivered(peer, subscription)
        peer.hold(frames.PING)
        peer.hold(frames.ACK)
        lost = asyncio.create_task(first.ack(confirmed=True))
        await peer.until(lambda: len(peer.held) == 2)
        peer.held.clear()
        peer.release()
        peer.lines[SUBSCRIBED].die()
        again = await anext(subscription)
        await again.ack(confirmed=True)
        with pytest.raises(braidmq.ConnectionLost):
            await lost

        assert [again.id] == peer.acked


async def test_an_acknowledgement_lost_with_its_connection_may_be_retried() -> None:
    """A confirmed acknowledgement never fails silently."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        peer.script(frames.ACK, die)
        with pytest.raises(braidmq.ConnectionLost):
            await message.ack(confirmed=True)
        del peer.scripts[frames.ACK]
        (again,) = await take(subscription, 1)
        await message.ack(confirmed=True)

        assert again.id == message.id
        assert [message.id] == peer.acked


async def test_acknowledgements_made_offline_are_sent_on_the_next_connection() -> None:
    """They are sent before any new credit, so finished work is not redelivered."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1", b"2")
        one, two = await take(subscription, 2)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await one.ack()
        (again,) = await take(subscription, 1)

        types = peer.lines[-1].types()
        assert types.index(frames.ACK) < len(types) - 1 - types[::-1].index(frames.CREDIT)
        assert [one.id] == peer.acked
        assert again.id == two.id


async def test_a_confirmed_acknowledgement_waits_for_a_connection() -> None:
    """The broker cannot confirm it before."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await message.ack(confirmed=True)

        assert [message.id] == peer.acked


async def test_acknowledging_after_close_raises() -> None:
    """The subscription no longer exists."""
    async with Peer() as peer:
        async with subscribed(peer) as subscription:
            message = await delivered(peer, subscription)
        with pytest.raises(braidmq.Closed):
            await message.ack()


async def test_fetch_returns_available_messages_at_once() -> None:
    """It neither waits for more messages nor takes more than requested."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(5)])

        async with asyncio.timeout(5):
            first = await subscription.fetch(max=3, timeout=60)
            second = await subscription.fetch(max=3, timeout=60)
        assert [b"0", b"1", b"2"] == [message.payload for message in first]
        assert [b"3", b"4"] == [message.payload for message in second]
        assert 5 == len(peer.queues[subscription.subscription_id].in_flight)


async def test_fetch_returns_an_empty_list_when_there_are_no_messages() -> None:
    """Even with a timeout of 0 it asks the broker and waits for the answer."""
    async with Peer() as peer, subscribed(peer) as subscription:
        assert [] == await subscription.fetch(timeout=0)
        assert [] == await subscription.fetch(timeout=0.01)
        with pytest.raises(braidmq.InvalidArgument, match="max must be at least 1"):
            await subscription.fetch(max=0)


async def test_fetch_waits_for_the_first_message() -> None:
    """The broker pushes it; the client does not poll."""
    async with Peer() as peer, subscribed(peer) as subscription:
        fetching = asyncio.create_task(subscription.fetch(max=10, timeout=60))
        await peer.until(lambda: credits_granted(peer.lines[SUBSCRIBED])[-1:] == [1])
        peer.put(subscription.subscription_id, b"1", b"2", b"3")

        assert [b"1", b"2", b"3"] == [message.payload for message in await fetching]


async def test_unused_credit_of_a_fetch_is_not_granted_again() -> None:
    """Repeated fetches do not pile up credit."""
    async with Peer() as peer, subscribed(peer) as subscription:
        for _ in range(5):
            await subscription.fetch(timeout=0.02)

        assert [0, 1] == credits_granted(peer.lines[SUBSCRIBED])
        assert 1 == peer.queues[subscription.subscription_id].credit


async def test_a_large_fetch_polls_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not send all its POLLs at once."""
    monkeypatch.setattr(module, "POLLS_PER_FENCE_MAX", 10)
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"x"] * 25)

        assert 25 == len(await subscription.fetch(max=1000))
        assert 30 == peer.lines[SUBSCRIBED].types().count(frames.POLL)


async def test_fetch_after_iterating_takes_pushed_messages() -> None:
    """Iterating and fetching share the messages, each delivered once."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(4)])
        seen = [message.payload for message in await take(subscription, 1)]
        while len(seen) < 4:
            seen += [message.payload for message in await subscription.fetch(timeout=60)]

        assert [b"0", b"1", b"2", b"3"] == seen


async def test_fetch_from_a_silent_broker_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer may take a little longer than the timeout, but not forever."""
    monkeypatch.setattr(module, "FETCH_GRACE_S", 0.01)
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.hold(frames.PING)

        assert [] == await subscription.fetch(timeout=0)
        peer.release()


async def test_fetch_while_offline_waits_for_the_connection() -> None:
    """The caller need not handle a broken connection."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        fetching = asyncio.create_task(subscription.fetch(timeout=60))
        await asyncio.sleep(0)
        peer.put(subscription.subscription_id, b"1")

        assert [b"1"] == [message.payload for message in await fetching]
