"""What the subscriptions of all strands do alike."""

import asyncio
import weakref

import pytest

import braidmq
from braidmq.client.subscription import Consumer
from tests.unit.client.peer import die, ignore, quick
from tests.unit.client.strands import AnyPeer, every_strand, forgotten

pytestmark = [pytest.mark.asyncio, every_strand]

SUBSCRIBED = 1
"""The second of a client's connections."""


async def test_messages_come_in_order_and_are_acknowledged(strand: type[AnyPeer]) -> None:
    """The whole way: publish, receive, process."""
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


async def test_a_handler_may_publish_and_subscribe_and_leave(strand: type[AnyPeer]) -> None:
    """Handlers do not run on the reading of a socket, so they may wait for answers."""
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
    """Whoever waits is released, and no error is raised."""
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
    """Neither before entering nor a second time does it give messages."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        messages = client.subscribe("orders")
        with pytest.raises(braidmq.Closed, match="enter the subscription first"):
            await messages.fetch()
        async with messages:
            with pytest.raises(braidmq.Closed, match="entered only once"):
                await messages.open()


async def test_a_subscription_that_could_not_be_opened_leaves_nothing_behind(
    strand: type[AnyPeer],
) -> None:
    """No connection, no registration: the same name can be subscribed to again."""
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
    """After `answer_timeout` it has failed, and its connection is gone."""
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
    """The broker may have made it before its answer is read; then it is removed again."""
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


async def test_a_cancelled_subscription_waits_for_its_answer_only_so_long(
    strand: type[AnyPeer],
) -> None:
    """A broker that does not answer cannot hold a program that wants to end."""
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


async def test_without_reconnecting_the_loss_is_the_end(strand: type[AnyPeer]) -> None:
    """Who iterates gets the error."""
    async with strand() as peer, braidmq.connect(peer.url, reconnect=False) as client:
        messages = await client.subscribe("orders")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.ConnectionLost):
            await anext(messages)
        with pytest.raises(braidmq.ConnectionLost):
            await messages.take(1)
        await messages.close()


async def test_a_broker_that_does_not_confirm_the_end_is_left(strand: type[AnyPeer]) -> None:
    """Closing takes at most `close_timeout`."""
    async with strand() as peer, braidmq.connect(peer.url, close_timeout=0.02) as client:
        messages = await client.subscribe("orders")
        peer.lines[SUBSCRIBED].pause_reading()
        await messages.close()
        await peer.until(lambda: True)

        assert isinstance(messages, Consumer)
        assert not messages.is_connected


async def test_messages_are_taken_in_batches(strand: type[AnyPeer]) -> None:
    """At least one, at most as many as asked for."""
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
