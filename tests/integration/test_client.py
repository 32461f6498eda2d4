"""The client library against the real broker, in one process."""

import asyncio
import hashlib
from pathlib import Path

import pytest

import braidmq
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio

FIRST_RETRY_S = 5.0


async def payloads_of(subscription: braidmq.Subscription, count: int) -> list[bytes]:
    """Take and acknowledge *count* messages."""
    seen: list[bytes] = []
    async for message in subscription:
        async with message.process():
            seen.append(message.payload)
        if len(seen) == count:
            break
    return seen


async def test_published_messages_reach_every_subscription() -> None:
    """Two subscriptions each get the whole topic in order; another topic gets nothing."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        client.subscribe("orders") as one,
        client.subscribe("orders") as two,
        client.subscribe("other") as other,
    ):
        sent = [b"%d" % number for number in range(1000)]
        receipts = await client.publish_many("orders", sent)

        assert [braidmq.Receipt("orders", 1, durable=True)] * 1000 == receipts
        assert sent == await payloads_of(one, 1000)
        assert sent == await payloads_of(two, 1000)
        assert [] == await other.fetch(timeout=0)


async def test_acknowledged_messages_do_not_come_again() -> None:
    """After a drain nothing is in flight and nothing is redelivered."""
    async with running_broker() as broker, braidmq.connect(broker.url("blip")) as client:
        subscription = await client.subscribe("orders", keep=True)
        await client.publish_many("orders", [b"x"] * 100)
        await payloads_of(subscription, 100)
        await subscription.drain()
        assert 0 == (await client.stats()).inflight
        await subscription.close()
        broker.clock.advance(FIRST_RETRY_S)
        kept = subscription.subscription_id

        async with client.subscribe("orders", subscription_id=kept) as resumed:
            assert [] == await resumed.fetch(timeout=0)


async def test_an_unacknowledged_message_is_redelivered_with_the_same_id() -> None:
    """The broker's retry timer delivers it again to a waiting iterator."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        client.subscribe("orders") as messages,
    ):
        await client.publish("orders", b"1")
        first = await anext(messages)
        with pytest.raises(ZeroDivisionError):
            async with first.process():
                raise ZeroDivisionError
        broker.clock.advance(FIRST_RETRY_S)
        second = await anext(messages)
        await second.ack(confirmed=True)

        assert (first.id, b"1") == (second.id, second.payload)
        with pytest.raises(braidmq.StaleDelivery):
            await first.ack(confirmed=True)


async def test_fetch_sees_the_backlog_of_a_kept_subscription() -> None:
    """Everything published in the meantime is there, even beyond the window."""
    async with running_broker() as broker, braidmq.connect(broker.url("blip")) as client:
        subscription = await client.subscribe("orders", keep=True)
        await subscription.close()
        await client.publish_many("orders", [b"%d" % number for number in range(3000)])
        kept = subscription.subscription_id
        async with client.subscribe("orders", subscription_id=kept, keep=False) as resumed:
            seen: list[bytes] = []
            while batch := await resumed.fetch(max=500, timeout=0):
                seen += [message.payload for message in batch]
                for message in batch:
                    await message.ack()

        assert [b"%d" % number for number in range(3000)] == seen
        with pytest.raises(braidmq.SubscriptionGone):
            await client.subscribe("orders", subscription_id=kept)


async def test_clients_survive_a_restart(tmp_path: Path) -> None:
    """The broker restarts; publisher and subscriber notice only a pause."""
    clock = FakeClock()
    lost, back = asyncio.Event(), asyncio.Event()
    async with running_broker(data_dir=tmp_path, clock=clock) as broker:
        url, (_, port) = broker.url("blip"), broker.address("blip")
        client = await braidmq.connect(
            url,
            reconnect_delay=0.001,
            reconnect_delay_max=0.01,
            on_disconnect=lambda error: lost.set(),
            on_reconnect=back.set,
        )
        messages = await client.subscribe("orders", keep=True)
        await client.publish_many("orders", [b"0", b"1"])
        first = await anext(messages)
        await first.ack(confirmed=True)
    await lost.wait()
    config: dict[str, object] = {"blip": {"port": port}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=config):
        await client.publish("orders", b"2")
        await back.wait()
        seen = await payloads_of(messages, 2)
        await client.close()

    assert (b"0", [b"1", b"2"]) == (first.payload, seen)


async def test_a_lost_subscription_is_reported_as_a_gap() -> None:
    """The broker has removed the subscription; a new one takes its place."""
    gaps: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip"), reconnect_delay=0.001) as client,
        braidmq.connect(broker.url("blip")) as other,
    ):
        messages = await client.subscribe(
            "orders", on_gap=lambda old, new: gaps.put_nowait((old, new))
        )
        first = messages.subscription_id
        async with other.subscribe("orders", subscription_id=first, keep=False):
            pass  # closing it removes the subscription
        await messages.fetch(timeout=0)
        gap = await gaps.get()
        await client.publish("orders", b"1")

        assert (first, messages.subscription_id) == gap
        assert [b"1"] == await payloads_of(messages, 1)
        await messages.close()


async def test_a_key_without_permission_gets_403() -> None:
    """The error concerns that one call; the connection stays open."""
    key = "a-key-of-the-test"
    hashed = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    rights = {"name": "shop", "hash": hashed, "publish": ["orders.*"], "subscribe": ["news"]}
    config: dict[str, object] = {"auth": {"keys": [rights]}}
    async with (
        running_broker(config=config) as broker,
        braidmq.connect(broker.url("blip", key=key)) as client,
    ):
        with pytest.raises(braidmq.PublishRefused, match="403 forbidden"):
            await client.publish("secret", b"1")
        with pytest.raises(braidmq.SubscriptionRefused, match="403 forbidden"):
            await client.subscribe("orders.new")
        results = await client.publish_many("secret", [b"1", b"2"])

        assert [braidmq.PublishRefused] * 2 == [type(result) for result in results]
        assert (await client.publish("orders.new", b"1")).durable
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(broker.url("blip", key="unknown"))


async def test_the_lower_qos_applies() -> None:
    """A memory-only message has no id and needs no acknowledgement."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        client.subscribe("orders", qos=0) as low,
        client.subscribe("orders", qos=1) as high,
    ):
        await client.publish("orders", b"1", qos=1)
        await client.publish("orders", b"0", qos=0)
        await client.ping()
        low_seen = [await anext(low), await anext(low)]
        high_seen = [await anext(high), await anext(high)]

        assert [None, None] == [message.id for message in low_seen]
        assert {b"1": 1, b"0": 0} == {message.payload: message.qos for message in high_seen}


async def test_the_largest_message_is_delivered() -> None:
    """A frame of exactly 16 MiB is stored and delivered; one byte more is refused."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        client.subscribe("orders") as messages,
    ):
        largest = bytes(16 * 1024 * 1024 - 9 - 1 - 2 - len("orders"))
        await client.publish("orders", largest)

        assert [len(largest)] == [len(one) for one in await payloads_of(messages, 1)]
        with pytest.raises(braidmq.InvalidArgument):
            await client.publish("orders", largest + b"x")


def blocking_round_trip(broker: RunningBroker) -> tuple[bool, list[bytes]]:
    """Publish and receive without an event loop."""
    with (
        braidmq.sync.connect(broker.url("blip")) as client,
        client.subscribe("orders") as messages,
    ):
        receipts = client.publish_many("orders", [b"1", b"2"])
        seen = []
        for message in messages:
            with message.process():
                seen.append(message.payload)
            if len(seen) == 2:
                break
        return all(isinstance(receipt, braidmq.Receipt) for receipt in receipts), seen


async def test_the_blocking_client_works_against_the_real_broker() -> None:
    """The same round trip from a thread without an event loop."""
    async with running_broker() as broker:
        assert (True, [b"1", b"2"]) == await asyncio.to_thread(blocking_round_trip, broker)
