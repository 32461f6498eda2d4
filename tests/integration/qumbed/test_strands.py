"""Between the strands: Qumbed to Blip and Vibe and back, and messages too large for it."""

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
async def test_a_blip_message_reaches_qumbed(
    broker: RunningBroker, peer: Peer, qos: int, payload: bytes
) -> None:
    """The gateway seals it for the subscriber's key; it arrives byte for byte."""
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


async def test_a_vibe_message_reaches_qumbed(broker: RunningBroker, peer: Peer) -> None:
    """The same; a Vibe header that imitates one of Qumbed's fields has no effect."""
    stream = peer.open()
    await stream.subscribe("q", ALICE)
    async with vibe.connected(broker) as other:
        imitated = {"senderPublicKey": str(b64(public(BOB))), "schemaId": "x"}
        text = json.dumps("x" * 60).encode()
        await other.publish("q", text, "m", **imitated)
    message = await stream.message()

    assert text == opened(message, ALICE)
    assert broker.gateway_public_key == unb64(message["m"]["sender_public_key"])
    assert "" == message["m"]["schema_id"]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
async def test_a_qumbed_message_reaches_blip(
    broker: RunningBroker, peer: Peer, payload: bytes
) -> None:
    """The payload arrives byte for byte."""
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
        await peer.open().publish("t", payload)

        assert payload == (await other.take(subscription))[1]


async def test_a_box_reaches_blip_unchanged(broker: RunningBroker, peer: Peer) -> None:
    """To Blip, the sealed bytes are the message."""
    box = sealed(b"secret", ALICE, BOB)
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
        await peer.open().publish("t", box, sender=public(ALICE), recipient=key_id(BOB))

        assert box == (await other.take(subscription))[1]


async def test_a_qumbed_message_reaches_vibe(broker: RunningBroker, peer: Peer) -> None:
    """The JSON arrives unchanged, with the publisher's fields as headers."""
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
    """The headers hold everything that the recipient needs to open it."""
    box = sealed(b"secret", ALICE, BOB)
    async with vibe.connected(broker) as other:
        await other.subscribe("q")
        await peer.open().publish("q", box, sender=public(ALICE), recipient=key_id(BOB))
        got = await other.delivered()

        assert box == base64.b64decode(json.loads(got.payload))
        assert "base64" == got.headers["contentEncoding"]
        assert b64(public(ALICE)) == got.headers["senderPublicKey"]
        assert b64(key_id(BOB)) == got.headers["recipientKeyId"]


async def test_one_publish_reaches_all_three_strands(broker: RunningBroker, peer: Peer) -> None:
    """Whichever strand it was published on."""
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


async def test_a_message_too_large_for_a_frame_becomes_a_dead_letter(
    broker: RunningBroker, peer: Peer
) -> None:
    """Once for each subscription, as tooLarge; the messages behind it are delivered."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    await two.subscribe("t", BOB)
    async with blip.connected(broker) as source, vibe.connected(broker) as other:
        await source.publish("t", bytes(FRAME_MAX), b"small")
        assert b"small" == opened(await one.message(), ALICE)
        assert b"small" == opened(await two.message(), BOB)
        await other.subscribe("dlq.t")
        # No Vibe frame can carry it either; it stays for a consumer that can.
        await one.expect_silence()

    assert 2 == core(broker).stats.dead_lettered
    assert 2 == core(broker).queues.by_name["dlq.t"].waiting()


async def test_a_dead_letter_too_large_for_a_frame_is_dropped(
    broker: RunningBroker, peer: Peer
) -> None:
    """A dead letter is not dead-lettered again: the broker counts it and moves on."""
    stream = peer.open()
    await stream.subscribe("dlq.t", ALICE)
    async with blip.connected(broker) as source:
        await source.publish("dlq.t", bytes(FRAME_MAX), b"small")

    assert b"small" == opened(await stream.message(), ALICE)
    assert {"tooLarge": 1} == dict(core(broker).stats.dropped.by_reason)


async def test_a_message_from_before_a_restart_is_complete(tmp_path: Path) -> None:
    """Sender, schema and recipient are read back from the log."""
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
