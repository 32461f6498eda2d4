"""A Qumbed subscription: messages, prefetch, fetching, draining and leaving."""

import asyncio

import pytest

import braidmq
from braidmq.client import subscription as module
from braidmq.client.qumbed.envelope import Sealer
from braidmq.client.qumbed.subscription import QumbedMessage
from braidmq.client.subscription import Consumer
from braidmq.wire.qumbed import messages
from tests.unit.client.peer import die, ignore
from tests.unit.client.qumbed.peer import GATEWAY, Peer
from tests.unit.client.qumbed.people import ALICE, BOB
from tests.unit.client.qumbed.subscribed import show, subscribed
from tests.unit.client.strands import SUBSCRIBED, offline, online

pytestmark = pytest.mark.asyncio


async def test_a_message_names_its_sender() -> None:
    """And has its id, topic, payload, schema and time."""
    async with Peer() as peer, subscribed(peer) as subscription:
        show(peer, ALICE.seal(b"hello", BOB.public_key), ALICE.public_key, schema="our.Own")
        message = await anext(subscription)

        assert isinstance(message, QumbedMessage)
        assert (1, "orders", b"hello", 1, ALICE.public_key, False, "our.Own") == (
            message.id,
            message.topic,
            message.payload,
            message.qos,
            message.sender,
            message.sealed_by_gateway,
            message.schema,
        )
        assert (1_700_000_000_000, None, None) == (
            message.timestamp_ms,
            message.sequence,
            message.sealed_at_ms,
        )


async def test_a_plain_message_is_sealed_by_the_gateway() -> None:
    """With the key that the broker announced on connecting."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.offer("orders", b"\x00\xff")
        message = await anext(subscription)

        assert (b"\x00\xff", GATEWAY.public_key, True) == (
            message.payload,
            message.sender,
            message.sealed_by_gateway,
        )


async def test_an_envelope_adds_sequence_and_time() -> None:
    """Both are set by the sender."""
    async with Peer() as peer, subscribed(peer, envelope=True) as subscription:
        sealer = Sealer(ALICE, now_ms=1)
        sealed = sealer.seal(b"hello", BOB.public_key, topic="orders", now_ms=17)
        show(peer, sealed, ALICE.public_key)
        message = await anext(subscription)

        assert isinstance(message, QumbedMessage)
        assert (b"hello", 1_000, 17) == (
            message.payload,
            message.sequence,
            message.sealed_at_ms,
        )


@pytest.mark.parametrize("message_id", ["", "x", "-1", "²", "1" * 5000])
async def test_an_id_that_is_not_a_number_is_none(message_id: str) -> None:
    """The message itself is still delivered."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealed = ALICE.seal(b"1", BOB.public_key)
        peer.lines[SUBSCRIBED].send(
            messages.message(b'"orders"', sealed, ALICE.public_key, message_id=message_id)
        )

        assert (await anext(subscription)).id is None


async def test_a_message_of_the_original_protocol_is_accepted() -> None:
    """It has no id, schema or time."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealed = ALICE.seal(b"1", BOB.public_key)
        peer.lines[SUBSCRIBED].send(messages.message(b'"orders"', sealed, ALICE.public_key))
        message = await anext(subscription)

        assert (None, b"1", "") == (message.id, message.payload, message.schema)


async def test_acknowledging_sends_nothing() -> None:
    """Delivery settles a message: `ack` succeeds, and `process` lets exceptions through."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.offer("orders", b"1")
        message = await anext(subscription)
        before = len(peer.lines[SUBSCRIBED].seen)
        await message.ack()
        await message.ack(confirmed=True)
        with pytest.raises(ZeroDivisionError):
            async with message.process():
                raise ZeroDivisionError
        with pytest.raises(braidmq.NotSupported, match="qumbed does not support nack"):
            await message.nack()

        assert before == len(peer.lines[SUBSCRIBED].seen)


async def test_no_more_messages_wait_than_the_prefetch() -> None:
    """Reading pauses and resumes as the handler takes messages, in order."""
    async with Peer() as peer, subscribed(peer, prefetch=4) as subscription:
        sent = [b"%d" % number for number in range(50)]
        peer.offer("orders", *sent)
        seen = []
        async for message in subscription:
            assert subscription.waiting < 4
            seen.append(message.payload)
            if len(seen) == 50:
                break

        assert sent == seen
        assert [] == await subscription.fetch(timeout=0)


async def test_a_slow_handler_does_not_hold_up_other_subscriptions() -> None:
    """While its inbox is full, publishing and the other subscription continue."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("slow", prefetch=1) as slow,
        client.subscribe("orders") as messages_,
    ):
        peer.offer("slow", *[bytes(10_000)] * 100)
        await anext(slow)
        for number in range(20):
            await client.publish("orders", b"%d" % number)
            assert b"%d" % number == (await anext(messages_)).payload

        assert isinstance(slow, Consumer)
        assert 1 == slow.waiting


async def test_handlers_do_not_run_in_the_socket_reader() -> None:
    """So they may wait for answers on the client's connections."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        subscription = await client.subscribe("orders", prefetch=1)
        peer.offer("orders", b"1", b"2", b"3")
        turns = []
        async for message in subscription:
            task = asyncio.current_task()
            assert task is not None
            turns.append(task.get_name())
            await client.publish("others", message.payload)
            if len(turns) == 3:
                await subscription.close()

        assert 3 == len(turns)
        assert [b"1", b"2", b"3"] == peer.payloads()


async def test_fetching_waits_only_for_the_first_message() -> None:
    """It returns up to `max` messages; with `timeout=0`, those that the broker has now."""
    async with Peer() as peer, subscribed(peer) as subscription:
        assert [] == await subscription.fetch(timeout=0)
        assert [] == await subscription.fetch(timeout=0.01)
        waiting = asyncio.create_task(subscription.fetch(timeout=10))
        await asyncio.sleep(0)
        peer.offer("orders", b"1", b"2", b"3")
        fetched = await waiting
        while len(fetched) < 3:
            fetched += await subscription.fetch(max=1)

        assert [b"1", b"2", b"3"] == [message.payload for message in fetched]
        with pytest.raises(braidmq.InvalidArgument, match="max must be at least 1"):
            await subscription.fetch(max=0)


async def test_fetching_does_not_wait_long_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `timeout=0` the answer still gets a short grace period."""
    monkeypatch.setattr(module, "FETCH_GRACE_S", 0.02)
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.script(messages.DISCOVERY, ignore)

        assert [] == await subscription.fetch(timeout=0)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)


async def test_draining_delivers_messages_already_sent() -> None:
    """The client unsubscribes, delivers what is in flight, and then ends the iteration."""
    async with Peer() as peer, subscribed(peer, prefetch=2) as subscription:
        sent = [b"%d" % number for number in range(20)]
        peer.offer("orders", *sent)
        first = await anext(subscription)
        await subscription.drain()

        assert 1 == len(peer.lines[SUBSCRIBED].of(messages.UNSUBSCRIBE))
        seen = [first.payload] + [message.payload async for message in subscription]
        assert sent == seen
        with pytest.raises(braidmq.Closed):
            await subscription.fetch()


async def test_draining_does_not_wait_for_the_handler() -> None:
    """Even while reading is paused and a fetch waits for an answer behind the messages."""
    async with Peer() as peer, subscribed(peer, prefetch=1) as subscription:
        peer.hold(messages.DISCOVERY)
        fetching = asyncio.create_task(subscription.fetch(timeout=0))
        await peer.until(lambda: peer.held)
        peer.offer("orders", b"1", b"2", b"3")
        while subscription.waiting < 1:  # noqa: ASYNC110 - each turn lets it arrive
            await asyncio.sleep(0)
        peer.release()
        await subscription.drain()
        fetched = await fetching
        fetched += [message async for message in subscription]

        assert [b"1", b"2", b"3"] == [message.payload for message in fetched]


async def test_draining_with_a_subscription_that_was_never_entered() -> None:
    """The client does not wait for it."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        subscription = client.subscribe("orders")
        await client.drain()

        assert 1 == len(peer.lines)
        with pytest.raises(braidmq.Closed):
            await subscription


async def test_a_drained_subscription_is_not_renewed() -> None:
    """Not even after a reconnect."""
    async with Peer() as peer, subscribed(peer) as subscription:
        await subscription.drain()
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)

        assert 1 == peer.count(messages.SUBSCRIBE)


async def test_leaving_unsubscribes_and_drops_late_messages() -> None:
    """Even if the inbox is full and reading has paused."""
    async with Peer() as peer:
        async with subscribed(peer, prefetch=1) as subscription:
            peer.offer("orders", *[bytes(1000)] * 50)
            await anext(subscription)
        assert 1 == len(peer.lines[SUBSCRIBED].of(messages.UNSUBSCRIBE))
        assert 0 == subscription.waiting
        await peer.until(lambda: not peer.open_lines())


async def test_keep_leaves_the_subscription_at_the_broker() -> None:
    """Leaving then does not unsubscribe."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        async with client.subscribe("orders", keep=True):
            pass
        async with client.subscribe("orders", keep=False):
            pass

        assert [0, 1] == [len(line.of(messages.UNSUBSCRIBE)) for line in peer.lines[1:]]


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_leaving_succeeds_even_if_unsubscribing_fails(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is only logged."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.script(
            messages.UNSUBSCRIBE, die if how == "lost" else peer.refusing("SERVER_ERROR")
        )
        await subscription.close()

        assert ("unsubscribing was refused" in caplog.text) == (how == "refused")
        peer.scripts.clear()
