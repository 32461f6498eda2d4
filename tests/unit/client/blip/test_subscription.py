"""A Blip subscription: entering, iterating, closing."""

import asyncio

import pytest

import braidmq
from braidmq.client.blip.subscription import BlipSubscription
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Peer
from tests.unit.client.blip.subscribed import credits_granted, delivered, subscribed, take
from tests.unit.client.peer import die, ignore, quick
from tests.unit.client.strands import SUBSCRIBED, offline

pytestmark = pytest.mark.asyncio


async def test_messages_arrive_and_are_acknowledged_in_order() -> None:
    """End to end: publish, push, process, acknowledge."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        async with client.subscribe("orders") as subscription:
            await client.publish_many("orders", [b"%d" % n for n in range(100)])
            seen = []
            async for message in subscription:
                async with message.process():
                    seen.append(message.payload)
                if len(seen) == 100:
                    break

        assert [b"%d" % n for n in range(100)] == seen
        assert sorted(peer.acked) == peer.acked
        assert 100 == len(peer.acked)


async def test_a_message_has_the_attributes_that_blip_carries() -> None:
    """Topic, payload, id and QoS; no attempt, no headers."""
    async with Peer() as peer, subscribed(peer) as subscription:
        message = await delivered(peer, subscription)

        assert ("orders", b"1", 1) == (message.topic, message.payload, message.qos)
        assert [message.id] == list(peer.queues[subscription.subscription_id].in_flight)
        assert (None, {}) == (message.attempt, dict(message.headers))


async def test_a_qos_0_message_has_no_id_and_needs_no_acknowledgement() -> None:
    """Its correlation id is that of our own CREDIT, which is no delivery tag."""
    async with Peer() as peer, subscribed(peer) as subscription:
        own = peer.lines[SUBSCRIBED].seen[-1][1]
        peer.lines[SUBSCRIBED].send(messages.encode_publish(own, 0, "orders", b"1"))
        peer.lines[SUBSCRIBED].send(messages.encode_publish(own, 1, "orders", b"2"))
        for message in await take(subscription, 2):
            await message.ack(confirmed=True)

            assert (None, 0) == (message.id, message.qos)
        assert frames.ACK not in peer.lines[SUBSCRIBED].types()


async def test_each_subscription_has_its_own_connection() -> None:
    """A delivery does not name its subscription; the connection does."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("a") as a,
        client.subscribe("b") as b,
    ):
        await client.publish("b", b"to b")
        await client.publish("a", b"to a")

        assert [b"to a"] == [message.payload for message in await take(a, 1)]
        assert [b"to b"] == [message.payload for message in await take(b, 1)]
        assert 3 == len(peer.open_lines())


async def test_no_credit_is_granted_before_iteration_starts() -> None:
    """A subscription used only with `fetch` gets no messages that were not requested."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1")
        await peer.until(lambda: frames.CREDIT in peer.lines[SUBSCRIBED].types())

        assert [0] == credits_granted(peer.lines[SUBSCRIBED])


async def test_messages_in_flight_never_exceed_the_prefetch() -> None:
    """However fast the handler is, no more messages wait for it."""
    async with Peer() as peer, subscribed(peer, prefetch=8) as subscription:
        peer.put(subscription.subscription_id, *[b"x"] * 200)
        for number in range(1, 201):
            await anext(subscription)
            in_flight = len(peer.queues[subscription.subscription_id].in_flight)

            assert in_flight - number <= 8
        assert 8 >= max(credits_granted(peer.lines[SUBSCRIBED]))


async def test_a_slow_handler_has_few_messages_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that waits is close to its redelivery."""
    async with Peer() as peer, subscribed(peer) as subscription:
        loop = asyncio.get_running_loop()
        peer.put(subscription.subscription_id, *[b"x"] * 100)
        passed = 0.0
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + passed)
        for _ in range(20):
            await anext(subscription)
            await asyncio.sleep(0)
            passed += 2.0  # the handler's time

        assert len(peer.queues[subscription.subscription_id].in_flight) <= 20 + 4


async def test_iteration_waits_indefinitely_and_wakes_up() -> None:
    """An idle topic is no error."""
    async with Peer() as peer, subscribed(peer) as subscription:
        waiting = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_granted(peer.lines[SUBSCRIBED])[-1:] == [1])
        assert not waiting.done()
        peer.put(subscription.subscription_id, b"1")

        assert b"1" == (await waiting).payload


async def test_several_tasks_may_share_a_subscription() -> None:
    """Each message goes to exactly one of them."""
    async with Peer() as peer, subscribed(peer) as subscription:
        workers = [asyncio.create_task(take(subscription, 10)) for _ in range(5)]
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(50)])
        taken = [message.payload for done in await asyncio.gather(*workers) for message in done]

        assert {b"%d" % n for n in range(50)} == set(taken)
        assert 50 == len(taken)


async def test_closing_ends_iteration() -> None:
    """The iterating task stops; later calls raise."""
    async with Peer() as peer, subscribed(peer) as subscription:
        seen = 0

        async def iterate() -> None:
            nonlocal seen
            async for _ in subscription:
                seen += 1

        iterating = asyncio.create_task(iterate())
        peer.put(subscription.subscription_id, b"1", b"2")
        while seen < 2:  # noqa: ASYNC110 - each turn lets the iteration proceed
            await asyncio.sleep(0)
        await subscription.close()

        await iterating
        with pytest.raises(braidmq.Closed):
            await subscription.fetch()
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)


async def test_leaving_removes_the_subscription_unless_kept() -> None:
    """`keep=True` leaves it at the broker."""
    async with Peer() as peer:
        async with subscribed(peer):
            assert 1 == len(peer.queues)
        assert {} == peer.queues
        async with subscribed(peer, keep=True) as subscription:
            kept = subscription.subscription_id

        assert [kept] == list(peer.queues)


async def test_a_kept_subscription_is_resumed_by_its_id() -> None:
    """It holds the messages published meanwhile; leaving keeps it, unless told otherwise."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        subscription = await client.subscribe("orders", keep=True)
        kept = subscription.subscription_id
        await subscription.close()
        await client.publish("orders", b"1")
        async with client.subscribe("orders", subscription_id=kept) as resumed:
            assert [b"1"] == [message.payload for message in await take(resumed, 1)]
        assert [kept] == list(peer.queues)
        async with client.subscribe("orders", subscription_id=kept, keep=False):
            pass

        assert {} == peer.queues


async def test_resuming_a_subscription_that_is_gone_raises() -> None:
    """A gap must not go unnoticed."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.SubscriptionGone, match="404"):
            await client.subscribe("orders", subscription_id=77)
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_a_refused_subscription_says_why() -> None:
    """The client does not retry it."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.refuse(frames.SUBSCRIBE, 403, "forbidden")
        refused = client.subscribe("secret")
        with pytest.raises(braidmq.SubscriptionRefused, match="403 forbidden"):
            await refused
        with pytest.raises(braidmq.Closed, match="entered only once"):
            await refused


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("", {}),
        ("t", {"qos": 2}),
        ("t", {"prefetch": 0}),
        ("t", {"subscription_id": 0}),
    ],
)
async def test_invalid_subscribe_arguments_are_refused(
    topic: str, options: dict[str, int]
) -> None:
    """The call itself raises, before anything is sent."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument):
            client.subscribe(topic, **options)  # type: ignore[arg-type] # one at a time


async def test_a_subscription_must_be_entered_before_use() -> None:
    """Until then it has no id and no messages."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        subscription = client.subscribe("orders")
        with pytest.raises(braidmq.Closed, match="enter the subscription"):
            await subscription.fetch()

        assert 0 == subscription.subscription_id


async def test_subscribing_while_the_connection_breaks_fails() -> None:
    """The client does not retry the first connection of a subscription."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(frames.SUBSCRIBE, die)
        with pytest.raises(braidmq.ConnectionLost):
            await client.subscribe("orders")


async def test_draining_returns_unread_messages_to_the_broker() -> None:
    """Iteration ends, acknowledgements are confirmed, messages in hand may be finished."""
    async with Peer() as peer, subscribed(peer, prefetch=4) as subscription:
        peer.put(subscription.subscription_id, *[b"x"] * 50)
        (in_hand,) = await take(subscription, 1)
        await subscription.drain()
        delivered = len(peer.queues[subscription.subscription_id].in_flight)
        assert [] == [message async for message in subscription]
        await in_hand.ack(confirmed=True)

        assert [in_hand.id] == peer.acked
        assert 50 - delivered == len(peer.queues[subscription.subscription_id].ready)


async def test_draining_without_a_connection_returns() -> None:
    """There is nothing to wait for."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await subscription.drain()

        with pytest.raises(braidmq.Closed, match="draining"):
            await subscription.take(1)


async def test_take_returns_at_most_the_requested_number() -> None:
    """It waits for the first message, then takes those already in the inbox."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(10)])
        seen: list[bytes] = []
        while len(seen) < 10:
            taken = await subscription.take(3)
            seen += [message.payload for message in taken]

            assert 1 <= len(taken) <= 3
        assert [b"%d" % n for n in range(10)] == seen


async def test_closing_the_client_closes_its_subscriptions() -> None:
    """Their iterators end."""
    async with Peer() as peer:
        client = await braidmq.connect(peer.url)
        subscription = await client.subscribe("orders")
        iterating = asyncio.create_task(anext(subscription, None))
        await peer.until(lambda: credits_granted(peer.lines[SUBSCRIBED])[-1:] == [1])
        await client.close()

        assert await iterating is None
        assert {} == peer.queues
        await peer.until(lambda: not peer.open_lines())


async def test_closing_while_offline_leaves_the_subscription_to_its_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be removed now; the log says so."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        subscription = await client.subscribe("orders")
        assert isinstance(subscription, BlipSubscription)
        await peer.stop()
        await offline(subscription)
        await subscription.close()
        await subscription.close()

        assert f"subscription {subscription.subscription_id} stays" in caplog.text
        await client.close()


async def test_a_refused_unsubscribe_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The subscription was already gone; closing continues."""
    async with Peer() as peer:
        async with subscribed(peer):
            peer.queues.clear()

        assert "unsubscribing was refused: 404" in caplog.text


async def test_closing_does_not_wait_forever() -> None:
    """After `close_timeout` the client gives up on a broker that does not confirm."""
    async with Peer() as peer, braidmq.connect(peer.url, close_timeout=0.02) as client:
        async with client.subscribe("orders"):
            peer.script(frames.UNSUBSCRIBE, ignore)
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_a_subscription_without_reconnecting_ends_with_its_connection() -> None:
    """The iterator raises the loss."""
    async with Peer() as peer, braidmq.connect(peer.url, reconnect=False) as client:
        subscription = await client.subscribe("orders")
        iterating = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_granted(peer.lines[SUBSCRIBED])[-1:] == [1])
        peer.lines[SUBSCRIBED].die()

        with pytest.raises(braidmq.ConnectionLost):
            await iterating
