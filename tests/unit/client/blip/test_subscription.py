"""A subscription over the Blip strand: entering, iterating, ending."""

import asyncio

import pytest

import braidmq
from braidmq.client.blip.subscription import BlipSubscription
from braidmq.wire.blip import frames, messages
from tests.unit.client.blip.peer import Peer
from tests.unit.client.blip.subscribed import SUBSCRIBED, credits_given, lost, subscribed, take
from tests.unit.client.peer import die, ignore, quick

pytestmark = pytest.mark.asyncio


async def test_messages_come_in_order_and_are_acknowledged() -> None:
    """Published, pushed, processed, acknowledged."""
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


async def test_a_message_says_what_blip_says() -> None:
    """Topic, payload, id and qos; no attempt, no headers."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1")
        (message,) = await take(subscription, 1)

        assert ("orders", b"1", 1) == (message.topic, message.payload, message.qos)
        assert [message.id] == list(peer.queues[subscription.subscription_id].in_flight)
        assert (None, {}) == (message.attempt, dict(message.headers))


async def test_a_message_of_qos_0_has_no_id_and_nothing_to_acknowledge() -> None:
    """Its correlation id is our own CREDIT's, which is no delivery tag."""
    async with Peer() as peer, subscribed(peer) as subscription:
        own = peer.lines[SUBSCRIBED].seen[-1][1]
        peer.lines[SUBSCRIBED].send(messages.encode_publish(own, 0, "orders", b"1"))
        peer.lines[SUBSCRIBED].send(messages.encode_publish(own, 1, "orders", b"2"))
        for message in await take(subscription, 2):
            await message.ack(confirmed=True)

            assert (None, 0) == (message.id, message.qos)
        assert frames.ACK not in peer.lines[SUBSCRIBED].types()


async def test_each_subscription_has_a_connection_of_its_own() -> None:
    """A delivery does not say whose it is, so nobody has to guess."""
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


async def test_credit_is_not_given_before_anyone_iterates() -> None:
    """A subscription that is only fetched from holds nothing it was not asked for."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, b"1")
        await peer.until(lambda: frames.CREDIT in peer.lines[SUBSCRIBED].types())

        assert [0] == credits_given(peer.lines[SUBSCRIBED])


async def test_what_is_under_way_never_exceeds_the_prefetch() -> None:
    """However fast the handler, no more than that wait for it."""
    async with Peer() as peer, subscribed(peer, prefetch=8) as subscription:
        peer.put(subscription.subscription_id, *[b"x"] * 200)
        for number in range(1, 201):
            await anext(subscription)
            in_flight = len(peer.queues[subscription.subscription_id].in_flight)

            assert in_flight - number <= 8
        assert 8 >= max(credits_given(peer.lines[SUBSCRIBED]))


async def test_a_slow_handler_has_few_messages_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that waits is close to being sent again."""
    async with Peer() as peer, subscribed(peer) as subscription:
        loop = asyncio.get_running_loop()
        peer.put(subscription.subscription_id, *[b"x"] * 100)
        passed = 0.0
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + passed)
        for _ in range(20):
            await anext(subscription)
            await asyncio.sleep(0)
            passed += 2.0  # what handling it took

        assert len(peer.queues[subscription.subscription_id].in_flight) <= 20 + 4


async def test_iterating_waits_without_end_and_wakes_up() -> None:
    """Idle is no error."""
    async with Peer() as peer, subscribed(peer) as subscription:
        waiting = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_given(peer.lines[SUBSCRIBED])[-1:] == [1])
        assert not waiting.done()
        peer.put(subscription.subscription_id, b"1")

        assert b"1" == (await waiting).payload


async def test_several_tasks_may_share_a_subscription() -> None:
    """Each message goes to one of them."""
    async with Peer() as peer, subscribed(peer) as subscription:
        workers = [asyncio.create_task(take(subscription, 10)) for _ in range(5)]
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(50)])
        taken = [message.payload for done in await asyncio.gather(*workers) for message in done]

        assert {b"%d" % n for n in range(50)} == set(taken)
        assert 50 == len(taken)


async def test_closing_ends_iteration() -> None:
    """Who iterates stops; who asks later is told."""
    async with Peer() as peer, subscribed(peer) as subscription:
        seen = 0

        async def iterate() -> None:
            nonlocal seen
            async for _ in subscription:
                seen += 1

        iterating = asyncio.create_task(iterate())
        peer.put(subscription.subscription_id, b"1", b"2")
        while seen < 2:  # noqa: ASYNC110 - each turn lets the iteration go on
            await asyncio.sleep(0)
        await subscription.close()

        await iterating
        with pytest.raises(braidmq.Closed):
            await subscription.fetch()
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)


async def test_leaving_ends_what_entering_has_made() -> None:
    """A new subscription is removed, unless it is to be kept."""
    async with Peer() as peer:
        async with subscribed(peer):
            assert 1 == len(peer.queues)
        assert {} == peer.queues
        async with subscribed(peer, keep=True) as subscription:
            kept = subscription.subscription_id

        assert [kept] == list(peer.queues)


async def test_a_kept_subscription_is_resumed_by_its_id() -> None:
    """What came meanwhile is there; leaving leaves it, unless asked otherwise."""
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


async def test_resuming_what_is_gone_raises() -> None:
    """A gap must not go unseen."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.SubscriptionGone, match="404"):
            await client.subscribe("orders", subscription_id=77)
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_a_refused_subscription_says_why() -> None:
    """It is not tried again."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.nack(frames.SUBSCRIBE, 403, "forbidden")
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
async def test_what_cannot_be_subscribed_to_is_refused(
    topic: str, options: dict[str, int]
) -> None:
    """Mistakes of the program show where they are made."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument):
            client.subscribe(topic, **options)  # type: ignore[arg-type] # one at a time


async def test_a_subscription_is_used_after_it_is_entered() -> None:
    """Before, there is nothing to take from."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        subscription = client.subscribe("orders")
        with pytest.raises(braidmq.Closed, match="enter the subscription"):
            await subscription.fetch()

        assert 0 == subscription.subscription_id


async def test_subscribing_while_the_connection_breaks_fails() -> None:
    """The first connection of a subscription is not tried twice."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(frames.SUBSCRIBE, die)
        with pytest.raises(braidmq.ConnectionLost):
            await client.subscribe("orders")


async def test_draining_gives_back_what_was_not_handed_out() -> None:
    """Iterating ends, acknowledgements are confirmed, and messages in hand may be finished."""
    async with Peer() as peer, subscribed(peer, prefetch=4) as subscription:
        peer.put(subscription.subscription_id, *[b"x"] * 50)
        (in_hand,) = await take(subscription, 1)
        await subscription.drain()
        given = len(peer.queues[subscription.subscription_id].in_flight)
        assert [] == [message async for message in subscription]
        await in_hand.ack(confirmed=True)

        assert [in_hand.id] == peer.acked
        assert 50 - given == len(peer.queues[subscription.subscription_id].ready)


async def test_draining_without_a_connection_ends() -> None:
    """There is nothing that could be confirmed."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.lines[SUBSCRIBED].die()
        await lost(subscription)
        await subscription.drain()

        with pytest.raises(braidmq.Closed, match="draining"):
            await subscription.take(1)


async def test_take_returns_at_most_what_was_asked_for() -> None:
    """It waits for the first as iterating does, and then takes what is there."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put(subscription.subscription_id, *[b"%d" % n for n in range(10)])
        seen: list[bytes] = []
        while len(seen) < 10:
            taken = await subscription.take(3)
            seen += [message.payload for message in taken]

            assert 1 <= len(taken) <= 3
        assert [b"%d" % n for n in range(10)] == seen


async def test_closing_the_client_closes_its_subscriptions() -> None:
    """Whoever iterates comes to an end."""
    async with Peer() as peer:
        client = await braidmq.connect(peer.url)
        subscription = await client.subscribe("orders")
        iterating = asyncio.create_task(anext(subscription, None))
        await peer.until(lambda: credits_given(peer.lines[SUBSCRIBED])[-1:] == [1])
        await client.close()

        assert await iterating is None
        assert {} == peer.queues
        await peer.until(lambda: not peer.open_lines())


async def test_closing_while_away_leaves_the_subscription_to_its_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be removed now, and that is said."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        subscription = await client.subscribe("orders")
        assert isinstance(subscription, BlipSubscription)
        await peer.stop()
        await lost(subscription)
        await subscription.close()
        await subscription.close()

        assert f"subscription {subscription.subscription_id} stays" in caplog.text
        await client.close()


async def test_a_refused_unsubscribe_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The subscription was gone already; closing goes on."""
    async with Peer() as peer:
        async with subscribed(peer):
            peer.queues.clear()

        assert "unsubscribing was refused: 404" in caplog.text


async def test_closing_does_not_wait_for_ever() -> None:
    """A broker that does not confirm is left after `close_timeout`."""
    async with Peer() as peer, braidmq.connect(peer.url, close_timeout=0.02) as client:
        async with client.subscribe("orders"):
            peer.script(frames.UNSUBSCRIBE, ignore)
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_a_subscription_without_reconnecting_ends_with_its_connection() -> None:
    """Then the loss is the iterator's to raise."""
    async with Peer() as peer, braidmq.connect(peer.url, reconnect=False) as client:
        subscription = await client.subscribe("orders")
        iterating = asyncio.create_task(anext(subscription))
        await peer.until(lambda: credits_given(peer.lines[SUBSCRIBED])[-1:] == [1])
        peer.lines[SUBSCRIBED].die()

        with pytest.raises(braidmq.ConnectionLost):
            await iterating
