"""Between the strands: Blip messages on Vibe queues, and the reverse."""

import base64
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import connected

pytestmark = pytest.mark.asyncio


async def test_a_blip_publish_does_not_create_a_queue(
    broker: RunningBroker, dialect: str
) -> None:
    """A queue created later does not get messages from before."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        await source.publish("q", b"1")
        assert [] == await peer.names()
        await peer.subscribe("q")
        await source.publish("q", b"2")

        assert [b"2"] == await peer.payloads(1)
        await peer.expect_silence()


@pytest.mark.parametrize("how", ["declared", "published", "subscribed"])
async def test_a_queue_keeps_what_any_strand_publishes(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """From its declaration, or its first Vibe Publish or Subscribe, on."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        if how == "declared":
            await peer.create("q")
        elif how == "published":
            await peer.publish("q", b"0", "m")
        else:
            await peer.subscribe("q")
            await peer.unsubscribe("q")
        await source.publish("q", b"1")
        await peer.subscribe("q")
        wanted = [b"0", b"1"] if how == "published" else [b"1"]

        assert wanted == await peer.payloads(len(wanted))


JSON = [b"1", b'{"a" : [1, 2]}', '"é"'.encode(), b"null"]
NOT_JSON = [b"\xff\xfe", b"hello", b" ", b"NaN", bytes(range(256)), b"[" * 65 + b"]" * 65]


@pytest.mark.parametrize("payload", JSON)
async def test_json_from_another_strand_is_relayed_unchanged(
    broker: RunningBroker, dialect: str, payload: bytes
) -> None:
    """Byte for byte, without a contentEncoding."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        await peer.subscribe("q")
        await source.publish("q", payload)
        got = await peer.delivered()

        assert payload == got.payload
        assert {"deliveryAttempts", "timestamp"} == set(got.headers)


@pytest.mark.parametrize("payload", NOT_JSON)
async def test_a_payload_that_is_not_json_is_relayed_in_base64(
    broker: RunningBroker, dialect: str, payload: bytes
) -> None:
    """As a JSON string; the header contentEncoding says so."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        await peer.subscribe("q")
        await source.publish("q", payload)
        got = await peer.delivered()

        assert b'"' + base64.b64encode(payload) + b'"' == got.payload
        assert "base64" == got.headers["contentEncoding"]


async def test_empty_and_absent_payloads_are_the_same(
    broker: RunningBroker, dialect: str
) -> None:
    """An empty Blip payload is absent on Vibe, and the reverse."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        subscription = await source.subscribe("q")
        await peer.subscribe("q")
        await source.publish("q", b"")
        got = await peer.delivered()
        assert b"" == got.payload
        assert "contentEncoding" not in got.headers
        await peer.settle(got.id)
        await peer.publish("q", b"")

        assert [b"", b""] == [(await source.take(subscription))[1] for _ in range(2)]


async def test_a_vibe_message_reaches_blip_unchanged(
    broker: RunningBroker, dialect: str
) -> None:
    """A Blip subscription to that topic gets the payload byte for byte."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as other:
        subscription = await other.subscribe("q")
        await peer.publish("q", b'{"x":  1}', "m")

        assert b'{"x":  1}' == (await other.take(subscription))[1]


async def test_messages_from_other_strands_carry_the_brokers_id(
    broker: RunningBroker, dialect: str
) -> None:
    """In decimal; memory-only messages have unique ids of the form m-<n>."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        await peer.subscribe("q")
        await source.publish("q", b"1", b"2")
        durable = [await peer.delivered() for _ in range(2)]
        await source.publish("q", b"3", b"4", qos=0)
        memory_only = [await peer.delivered() for _ in range(2)]

        assert all(one.id.isdecimal() for one in durable)
        assert int(durable[0].id) < int(durable[1].id)
        assert all(one.id.startswith("m-") and one.id[2:].isdecimal() for one in memory_only)
        assert memory_only[0].id != memory_only[1].id
        for one in durable:
            await peer.settle(one.id)
        assert (0, 0) == await peer.counts("q")


async def test_the_brokers_id_is_the_same_after_a_restart(tmp_path: Path, dialect: str) -> None:
    """And in a dead letter, too."""
    clock = FakeClock()
    async with (
        broker_at(tmp_path, clock) as broker,
        connected(broker, dialect) as peer,
        blip.connected(broker) as source,
    ):
        await peer.subscribe("q")
        await source.publish("q", b"1")
        first = (await peer.delivered()).id
        await peer.unsubscribe("q")
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await peer.subscribe("q")
        assert first == (await peer.delivered()).id
        await peer.settle(first, result="reject")
        await peer.subscribe("dlq.q")

        assert first == (await peer.delivered()).id


async def test_a_blip_topic_need_not_be_a_valid_queue_name(
    broker: RunningBroker, dialect: str
) -> None:
    """Other strands may use any topic name."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as other:
        subscription = await other.subscribe("a b/c")
        await other.publish("a b/c", b"1")

        assert b"1" == (await other.take(subscription))[1]
        assert [] == await peer.names()
