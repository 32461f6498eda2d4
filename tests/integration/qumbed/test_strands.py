"""Between the strands: Qumbed to Blip and Vibe and back, and what no frame can carry."""

import base64
import json
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    FRAME_MAX,
    Peer,
    b64,
    connected,
    core,
    key_id,
    opened,
    public,
    sealed,
    unb64,
)
from tests.integration.vibe import peer as vibe

pytestmark = pytest.mark.asyncio

PAYLOADS = [b"", b'{"a" : 1}', "é".encode(), b"\xff\x00", bytes(range(256)) * 20]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
@pytest.mark.parametrize("qos", [0, 1])
async def test_blip_to_qumbed(
    broker: RunningBroker, peer: Peer, qos: int, payload: bytes
) -> None:
    """Sealed by the gateway for the subscriber's key; byte for byte."""
    stream = peer.open()
    await stream.subscribe("t", ALICE)
    async with blip.connected(broker) as other:
        await other.publish("t", payload, qos=qos)
    message = await stream.message()

    assert payload == opened(message, ALICE)
    assert broker.gateway_public_key == unb64(message["m"]["sender_public_key"])
    assert ["t", "1" if qos else "", ""] == [
        message["m"][field] for field in ("topic", "id", "schema_id")
    ]
    assert broker.clock.now_us() // 1000 == message["m"]["timestamp_ms"]


async def test_vibe_to_qumbed(broker: RunningBroker, peer: Peer) -> None:
    """The same; a Vibe header that looks like one of ours means nothing."""
    stream = peer.open()
    await stream.subscribe("q", ALICE)
    async with vibe.connected(broker) as other:
        pretended = {"senderPublicKey": str(b64(public(BOB))), "schemaId": "x"}
        text = json.dumps("x" * 60).encode()
        await other.publish("q", text, "m", **pretended)
    message = await stream.message()

    assert text == opened(message, ALICE)
    assert broker.gateway_public_key == unb64(message["m"]["sender_public_key"])
    assert "" == message["m"]["schema_id"]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_qumbed_to_blip(broker: RunningBroker, peer: Peer, payload: bytes) -> None:
    """The payload's bytes as they are."""
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
        await peer.open().publish("t", payload)

        assert payload == (await other.take(subscription))[1]


async def test_a_box_reaches_blip_as_it_is(broker: RunningBroker, peer: Peer) -> None:
    """A Qumbed message is its sealed bytes."""
    box = sealed(b"secret", ALICE, BOB)
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
        await peer.open().publish("t", box, sender=public(ALICE), recipient=key_id(BOB))

        assert box == (await other.take(subscription))[1]


async def test_qumbed_to_vibe(broker: RunningBroker, peer: Peer) -> None:
    """JSON as it is, with what the publisher said as headers."""
    schema, payload = "control.Command", b'{"action":"go"}'
    async with vibe.connected(broker) as other:
        await other.subscribe("q")
        await peer.open().publish("q", payload, schema, frame_id="mine")
        got = await other.delivered()

        assert payload == got.payload
        assert schema == got.headers["schemaId"]
        assert "senderPublicKey" not in got.headers
        assert "contentEncoding" not in got.headers


async def test_a_box_reaches_vibe_as_base64(broker: RunningBroker, peer: Peer) -> None:
    """Whoever has the key can open it there: all that it takes is in the headers."""
    box = sealed(b"secret", ALICE, BOB)
    async with vibe.connected(broker) as other:
        await other.subscribe("q")
        await peer.open().publish("q", box, sender=public(ALICE), recipient=key_id(BOB))
        got = await other.delivered()

        assert box == base64.b64decode(json.loads(got.payload))
        assert "base64" == got.headers["contentEncoding"]
        assert b64(public(ALICE)) == got.headers["senderPublicKey"]
        assert b64(key_id(BOB)) == got.headers["recipientKeyId"]


async def test_one_publish_reaches_all_three(broker: RunningBroker, peer: Peer) -> None:
    """Whichever strand it came from."""
    reader, writer = peer.open(), peer.open()
    await reader.subscribe("t", ALICE)
    async with blip.connected(broker) as one, vibe.connected(broker) as two:
        subscription = await one.subscribe("t")
        await two.subscribe("t")
        await writer.publish("t", b'"qumbed"')
        await one.publish("t", b'"blip"')
        await two.publish("t", b'"vibe"', "m")
        wanted = [b'"qumbed"', b'"blip"', b'"vibe"']

        assert wanted == [opened(await reader.message(), ALICE) for _ in range(3)]
        assert wanted == [(await one.take(subscription))[1] for _ in range(3)]
        assert wanted == await two.payloads(3)


async def test_what_no_frame_can_carry_is_a_dead_letter(
    broker: RunningBroker, peer: Peer
) -> None:
    """tooLarge, once for each subscription; what comes behind it comes."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    await two.subscribe("t", BOB)
    async with blip.connected(broker) as source, vibe.connected(broker) as other:
        await source.publish("t", bytes(FRAME_MAX), b"small")
        assert b"small" == opened(await one.message(), ALICE)
        assert b"small" == opened(await two.message(), BOB)
        await other.subscribe("dlq.t")
        # No Vibe frame can carry it either; it stays there for who can.
        await one.expect_silence()

    assert 2 == core(broker).stats.dead_lettered
    assert 2 == core(broker).queues.by_name["dlq.t"].waiting()


async def test_a_dead_letter_that_no_frame_can_carry_is_dropped(
    broker: RunningBroker, peer: Peer
) -> None:
    """Dead letters do not die again: counted, and gone for that subscription."""
    stream = peer.open()
    await stream.subscribe("dlq.t", ALICE)
    async with blip.connected(broker) as source:
        await source.publish("dlq.t", bytes(FRAME_MAX), b"small")

    assert b"small" == opened(await stream.message(), ALICE)
    assert {"tooLarge": 1} == dict(core(broker).stats.dropped.by_reason)


async def test_a_message_of_before_a_restart_is_whole(tmp_path: Path) -> None:
    """Read back from the log: sender, schema and recipient are what they were."""
    offline: dict[str, object] = {"offline_s": 600.0}
    box = sealed(b"secret", ALICE, BOB)
    async with broker_at(tmp_path, qumbed=offline) as broker, connected(broker) as peer:
        bob, alice = peer.open(), peer.open()
        await bob.subscribe("t", BOB)
        await alice.subscribe("t", ALICE)
        bob.finish()
        alice.finish()
        await bob.expect_end()
        await alice.expect_end()
        writer = peer.open()
        more = {"sender": public(ALICE), "recipient": key_id(BOB)}
        await writer.publish("t", box, "sensor.Humidity", **more)
        await writer.publish("t", b"1")
        clock, gateway = broker.clock, broker.gateway_public_key
        fingerprint = broker.fingerprint
    async with (
        broker_at(tmp_path, clock, qumbed=offline) as broker,
        connected(broker) as peer,
    ):
        assert (fingerprint, gateway) == (broker.fingerprint, broker.gateway_public_key)
        bob, alice = peer.open(), peer.open()
        await bob.subscribe("t", BOB)
        await alice.subscribe("t", ALICE)
        first = await bob.message()
        assert b"secret" == opened(first, BOB)
        assert "sensor.Humidity" == first["m"]["schema_id"]
        assert b"1" == opened(await bob.message(), BOB)
        assert b"1" == opened(await alice.message(), ALICE)
        await alice.expect_silence()
