"""The client library over Vibe against the real broker, in one process."""

import asyncio
from pathlib import Path

import pytest

import braidmq
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.clock import FakeClock
from tests.integration.test_client import payloads_of

pytestmark = pytest.mark.asyncio


async def test_published_messages_reach_the_consumer_in_order() -> None:
    """Each publish gets a receipt; acknowledged messages are not delivered again."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("orders") as messages,
    ):
        sent = [b"%d" % number for number in range(1000)]
        receipts = await client.publish_many("orders", sent)

        assert [braidmq.Receipt] * 1000 == [type(receipt) for receipt in receipts]
        assert sent == await payloads_of(messages, 1000)
        assert [] == await messages.fetch(timeout=0)


async def test_a_message_arrives_unchanged() -> None:
    """Its id, payload and headers; the first delivery is attempt 1."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe"), compression=True) as client,
        client.subscribe("orders") as messages,
    ):
        large = b'{"text": "' + b"x" * 100_000 + b'"}'
        receipt = await client.publish(
            "orders", large, headers={"trace": "7", "empty": ""}, priority=braidmq.Priority.HIGH
        )
        await client.publish("orders", b"")
        message, absent = await anext(messages), await anext(messages)

        assert (receipt.id, "orders", large, 1) == (
            message.id,
            message.topic,
            message.payload,
            message.attempt,
        )
        assert ("7", "") == (message.headers["trace"], message.headers["empty"])
        assert b"" == absent.payload


async def test_a_priority_queue_delivers_urgent_messages_first() -> None:
    """First in, first out among equals."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.declare_queue("jobs", mode="priority_based")
        for number, priority in enumerate([0, 1, 3, 2, 3]):
            await client.publish("jobs", b"%d" % number, priority=priority)
        async with client.subscribe("jobs", prefetch=1) as messages:
            assert [b"2", b"4", b"3", b"1", b"0"] == await payloads_of(messages, 5)


async def test_a_rejected_delivery_is_retried() -> None:
    """After a `nack` or an exception in `process`; the broker counts the attempts."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("orders") as messages,
    ):
        await client.publish("orders", b"1")
        await (await anext(messages)).nack()
        second = await anext(messages)
        with pytest.raises(ZeroDivisionError):
            async with second.process():
                raise ZeroDivisionError
        third = await anext(messages)
        await third.ack(confirmed=True)

        assert (2, 3) == (second.attempt, third.attempt)


async def test_a_message_can_be_dead_lettered() -> None:
    """It is in the dead-letter queue, with the reason."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("orders") as messages,
        client.subscribe("dlq.orders") as dead_letters,
    ):
        receipt = await client.publish("orders", b"1")
        await (await anext(messages)).nack(dead_letter=True)
        dead = await anext(dead_letters)

        assert (receipt.id, b"1", "rejected", "orders") == (
            dead.id,
            dead.payload,
            dead.headers["deathReason"],
            dead.headers["deathQueue"],
        )


async def test_unsubscribing_returns_messages_without_counting_an_attempt() -> None:
    """Prefetched messages that the client never took count as undelivered."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.publish_many("orders", [b"1", b"2", b"3"])
        async with client.subscribe("orders") as messages:
            await (await anext(messages)).ack()
        async with client.subscribe("orders") as messages:
            seen = [await anext(messages), await anext(messages)]

            assert {(b"2", 1), (b"3", 1)} == {(one.payload, one.attempt) for one in seen}


async def test_two_consumers_share_a_queue() -> None:
    """Each message goes to one of them, even within one client."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("orders", prefetch=1) as one,
        client.subscribe("orders", prefetch=1) as two,
    ):
        await client.publish_many("orders", [b"1", b"2"])
        seen = {(await anext(one)).payload, (await anext(two)).payload}

        assert {b"1", b"2"} == seen


async def test_queues_can_be_declared_listed_and_deleted() -> None:
    """An existing queue keeps its options when it is declared again."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.declare_queue("jobs", max_size=10, ttl=60.0, overflow="DropOldest")
        await client.publish("jobs", b"1")
        info = await client.queue_info("jobs")
        again = await client.declare_queue("jobs", max_size=11)

        assert info is not None
        assert ("jobs", 1, 10, 60.0, "RoundRobin", "DropOldest", 3) == (
            info.name,
            info.waiting,
            info.max_size,
            info.ttl,
            info.mode,
            info.overflow,
            info.max_attempts,
        )
        assert 10 == again.max_size
        assert "jobs" in await client.list_queues()
        await client.delete_queue("jobs")
        assert await client.queue_info("jobs") is None


async def test_a_full_queue_refuses_the_publish() -> None:
    """The broker does not confirm a message that it dropped."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.declare_queue("jobs", max_size=1, overflow="drop_newest")
        await client.publish("jobs", b"1")
        with pytest.raises(braidmq.PublishRefused, match="queue full"):
            await client.publish("jobs", b"2")


async def test_strands_exchange_messages() -> None:
    """JSON and other bytes reach a Vibe client unchanged."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as vibe,
        braidmq.connect(broker.url("blip")) as blip,
        vibe.subscribe("orders") as over_vibe,
        blip.subscribe("orders") as over_blip,
    ):
        await blip.publish("orders", b"\x00\xff")
        await vibe.publish("orders", b'{"n": 1}')

        assert [b"\x00\xff", b'{"n": 1}'] == await payloads_of(over_vibe, 2)
        assert [b"\x00\xff", b'{"n": 1}'] == await payloads_of(over_blip, 2)


async def test_clients_survive_a_restart(tmp_path: Path) -> None:
    """Messages wait in the log; the subscription resumes by itself."""
    clock = FakeClock()
    back = asyncio.Event()
    hurried: dict[str, object] = {"limits": {"drain_s": 0.05}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=hurried) as broker:
        _, port = broker.address("vibe")
        client = await braidmq.connect(
            broker.url("vibe"), reconnect_delay=0.001, on_reconnect=back.set
        )
        await client.publish_many("orders", [b"0", b"1"])
        messages = await client.subscribe("orders")
        await (await anext(messages)).ack(confirmed=True)
    config: dict[str, object] = {"vibe": {"port": port}}
    async with running_broker(data_dir=tmp_path, clock=clock, config=config):
        await back.wait()
        await client.publish("orders", b"2")

        assert [b"1", b"2"] == await payloads_of(messages, 2)
        await client.close()


async def test_unknown_credentials_are_refused() -> None:
    """An unknown token, and an unknown user."""
    async with running_broker() as broker:
        host, port = broker.address("vibe")
        for userinfo in ("unknown", "unknown:secret"):
            with pytest.raises(braidmq.AuthenticationFailed):
                await braidmq.connect(f"vibe://{userinfo}@{host}:{port}")


def blocking_round_trip(broker: RunningBroker) -> list[bytes]:
    """Publish and receive without an event loop."""
    with (
        braidmq.sync.connect(broker.url("vibe")) as client,
        client.subscribe("orders") as messages,
    ):
        client.publish_many("orders", [b"1", b"2"])
        seen = []
        for message in messages:
            with message.process():
                seen.append(message.payload)
            if len(seen) == 2:
                break
        return seen


async def test_the_blocking_client_works_against_the_real_broker() -> None:
    """The same round trip from a thread without an event loop."""
    async with running_broker() as broker:
        assert [b"1", b"2"] == await asyncio.to_thread(blocking_round_trip, broker)
