"""Subscription behaviour that all strands share."""

import asyncio
import math
import weakref

import pytest

import braidmq
from braidmq.client.subscription import Consumer
from tests.unit.client.peer import die, ignore, quick
from tests.unit.client.strands import SUBSCRIBED, AnyPeer, every_strand, forgotten

pytestmark = [pytest.mark.asyncio, every_strand]


async def test_messages_arrive_in_order_and_are_acknowledged(strand: type[AnyPeer]) -> None:
    """End to end: publish, receive, process."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        sent = [b"%d" % number for number in range(100)]
        await client.publish_many("orders", sent)
        seen = []
        async for message in messages:
            async with message.process():
                seen.append(message.payload)
            if len(seen) == 100:
                break

        assert sent == seen
        assert ("orders", 1) == (message.topic, message.qos)
        assert [] == await messages.fetch(timeout=0)


async def test_a_handler_may_publish_subscribe_and_close(strand: type[AnyPeer]) -> None:
    """Handlers do not run in the socket's reader, so they may wait for answers."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        messages = await client.subscribe("orders")
        await client.publish("orders", b"1")
        async for message in messages:
            assert (await client.publish("others", b"2")).durable
            async with client.subscribe("more") as more:
                assert [] == await more.fetch(timeout=0)
            await message.ack(confirmed=True)
            await messages.close()

        assert [b"1", b"2"] == peer.payloads()


async def test_closing_ends_iteration(strand: type[AnyPeer]) -> None:
    """A waiting consumer is released without an error."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        messages = await client.subscribe("orders")

        async def iterate() -> list[braidmq.Message]:
            return [message async for message in messages]

        iterating = asyncio.create_task(iterate())
        await client.ping()
        await messages.close()
        await messages.close()

        assert [] == await iterating
        with pytest.raises(braidmq.Closed):
            await messages.fetch()


async def test_a_subscription_is_entered_once(strand: type[AnyPeer]) -> None:
    """It yields no messages before it is entered, and cannot be entered twice."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        messages = client.subscribe("orders")
        with pytest.raises(braidmq.Closed, match="enter the subscription first"):
            await messages.fetch()
        async with messages:
            with pytest.raises(braidmq.Closed, match="entered only once"):
                await messages.open()


async def test_a_subscription_that_fails_to_open_leaves_nothing_behind(
    strand: type[AnyPeer],
) -> None:
    """Neither connection nor registration stays: the topic can be subscribed to again."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.once(peer.subscribe, die)
        failing = client.subscribe("orders")
        with pytest.raises((braidmq.ConnectionLost, braidmq.ConnectionFailed)):
            await failing
        with pytest.raises(braidmq.Closed):
            await failing.take(1)
        await peer.until(lambda: len(peer.open_lines()) == 1)
        left = weakref.ref(failing)
        del failing
        await forgotten(left)

        async with client.subscribe("orders") as messages:
            await client.publish("orders", b"1")
            assert b"1" == (await anext(messages)).payload


async def test_a_subscription_that_is_not_answered_leaves_nothing_behind(
    strand: type[AnyPeer],
) -> None:
    """After `answer_timeout` it fails, and its connection is closed."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(answer_timeout=0.05)) as client,
    ):
        peer.script(peer.subscribe, ignore)
        with pytest.raises(braidmq.ConnectionLost, match=r"no answer within 0.05 s"):
            await client.subscribe("orders")
        await peer.until(lambda: len(peer.open_lines()) == 1)
        del peer.scripts[peer.subscribe]

        async with client.subscribe("orders") as messages:
            assert [] == await messages.fetch(timeout=0)


async def test_a_cancelled_subscription_leaves_nothing_behind(strand: type[AnyPeer]) -> None:
    """If the broker created it before the client read the answer, it is removed again."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.hold(peer.subscribe)
        opening = asyncio.ensure_future(client.subscribe("orders").open())
        await peer.until(lambda: peer.held)
        opening.cancel()
        await asyncio.sleep(0)
        peer.release()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await peer.until(lambda: len(peer.open_lines()) == 1)

        assert 1 == peer.count(peer.unsubscribe)


async def test_a_cancelled_subscription_waits_only_close_timeout_for_its_answer(
    strand: type[AnyPeer],
) -> None:
    """A broker that does not answer cannot keep a program from ending."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(close_timeout=0.01)) as client,
    ):
        peer.hold(peer.subscribe)
        opening = asyncio.ensure_future(client.subscribe("orders").open())
        await peer.until(lambda: peer.held)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_without_reconnecting_a_lost_connection_ends_the_subscription(
    strand: type[AnyPeer],
) -> None:
    """The iterating consumer gets the error."""
    async with strand() as peer, braidmq.connect(peer.url, reconnect=False) as client:
        messages = await client.subscribe("orders")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.ConnectionLost):
            await anext(messages)
        with pytest.raises(braidmq.ConnectionLost):
            await messages.take(1)
        await messages.close()


async def test_closing_does_not_wait_for_a_broker_that_does_not_confirm(
    strand: type[AnyPeer],
) -> None:
    """Closing takes at most `close_timeout`."""
    async with strand() as peer, braidmq.connect(peer.url, close_timeout=0.02) as client:
        messages = await client.subscribe("orders")
        peer.lines[SUBSCRIBED].pause_reading()
        await messages.close()
        await peer.until(lambda: True)

        assert isinstance(messages, Consumer)
        assert not messages.is_connected


async def test_a_timeout_that_is_no_number_is_refused(strand: type[AnyPeer]) -> None:
    """No comparison with it holds, so that a fetch would wait forever or not at all."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        with pytest.raises(braidmq.InvalidArgument, match="timeout must be a number"):
            async with asyncio.timeout(5):
                await messages.fetch(timeout=math.nan)


async def test_take_returns_messages_in_batches(strand: type[AnyPeer]) -> None:
    """Each batch has at least one message and at most as many as requested."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as messages,
    ):
        peer.offer("orders", b"1", b"2", b"3")
        seen: list[bytes] = []
        while len(seen) < 3:
            batch = await messages.take(2)
            assert 1 <= len(batch) <= 2
            seen += [message.payload for message in batch]

        assert [b"1", b"2", b"3"] == seen


@pytest.mark.parametrize("stage", ["greeting", "subscribe"])
@pytest.mark.parametrize("what", ["client", "subscription"])
async def test_closing_while_a_subscription_opens_leaves_nothing_behind(
    strand: type[AnyPeer], stage: str, what: str
) -> None:
    """Whoever opens it gets Closed; neither a connection nor a subscription stays."""
    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        subscription = client.subscribe("orders")
        peer.hold(getattr(peer, stage))
        opening = asyncio.ensure_future(subscription.open())
        await peer.until(lambda: peer.held)
        closing = asyncio.ensure_future((client if what == "client" else subscription).close())
        await asyncio.sleep(0)
        peer.release()
        await closing
        with pytest.raises(braidmq.Closed, match="it was closed"):
            await opening
        expected = 0 if what == "client" else 1
        await peer.until(lambda: len(peer.open_lines()) == expected)

        assert peer.count(peer.subscribe) == peer.count(peer.unsubscribe)
        assert 2 == len(peer.lines)
        assert isinstance(subscription, Consumer)
        assert not subscription.is_connected


async def test_a_cancelled_opening_of_a_closed_subscription_stays_cancelled(
    strand: type[AnyPeer],
) -> None:
    """Closing does not turn a cancellation, such as a timeout's, into another error."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        subscription = client.subscribe("orders")
        peer.hold(peer.subscribe)
        opening = asyncio.ensure_future(subscription.open())
        await peer.until(lambda: peer.held)
        closing = asyncio.ensure_future(subscription.close())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.sleep(0)
        peer.release()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await opening
        await peer.until(lambda: len(peer.open_lines()) == 1)


async def test_an_opening_that_is_cancelled_in_its_last_moment_leaves_nothing_behind(
    strand: type[AnyPeer],
) -> None:
    """The connection is there, and the caller has not yet been told."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        subscription = client.subscribe("orders")
        assert isinstance(subscription, Consumer)
        opening = asyncio.ensure_future(subscription.open())
        link = subscription._link  # noqa: SLF001 - no one else knows the moment
        while link.current is None:  # noqa: ASYNC110 - each turn lets it connect
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await peer.until(lambda: len(peer.open_lines()) == 1)

        assert 1 == peer.count(peer.unsubscribe)
        assert 2 == len(peer.lines)
