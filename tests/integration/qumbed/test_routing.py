"""Routing by recipient, and what the gateway seals: who gets a Publish, and as what."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at
from tests.integration.blip.peer import connected as blip_connected
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    CAROL,
    Peer,
    ack,
    connected,
    key_id,
    opened,
    public,
    publish,
    sealed,
    unb64,
)

pytestmark = pytest.mark.asyncio


async def test_a_recipients_message_goes_to_its_key_only(peer: Peer) -> None:
    """Each subscriber of the topic whose key has that id, and nobody else."""
    alice, bob, again, writer = (peer.open() for _ in range(4))
    await alice.subscribe("t", ALICE)
    await bob.subscribe("t", BOB)
    await again.subscribe("t", BOB)
    box = sealed(b"secret", CAROL, BOB)
    request = publish("t", box, sender=public(CAROL), recipient=key_id(BOB))
    assert ack("1", 2) == await writer.ask(request)
    for stream in (bob, again):
        assert b"secret" == opened(await stream.message(), BOB)
    await alice.expect_silence()


async def test_without_a_recipient_it_goes_to_all(peer: Peer) -> None:
    """An empty recipient_key_id: to all subscribers of the topic."""
    alice, bob, writer = (peer.open() for _ in range(3))
    await alice.subscribe("t", ALICE)
    await bob.subscribe("t", BOB)
    box = sealed(b"secret", CAROL, BOB)
    assert ack("1", 2) == await writer.ask(publish("t", box, sender=public(CAROL)))
    assert b"secret" == opened(await bob.message(), BOB)

    # It is sealed: whom it is not for gets it as it is, and cannot open it.
    assert box == unb64((await alice.message())["m"]["encrypted_payload"])


async def test_nobody_with_that_key_is_nobody(peer: Peer) -> None:
    """It is stored all the same."""
    alice, writer = peer.open(), peer.open()
    await alice.subscribe("t", ALICE)
    assert ack("1", 0) == await writer.ask(publish("t", b"1", recipient=key_id(BOB)))
    await alice.expect_silence()


async def test_a_plain_message_for_a_recipient_is_sealed_for_it(
    broker: RunningBroker, peer: Peer
) -> None:
    """Routing and sealing have nothing to do with each other."""
    alice, bob, writer = (peer.open() for _ in range(3))
    await alice.subscribe("t", ALICE)
    await bob.subscribe("t", BOB)
    assert ack("1", 1) == await writer.ask(publish("t", b"{}", recipient=key_id(BOB)))
    message = await bob.message()

    assert b"{}" == opened(message, BOB)
    assert broker.gateway_public_key == unb64(message["m"]["sender_public_key"])
    await alice.expect_silence()


async def test_a_recipient_filters_qumbed_subscribers_only(
    broker: RunningBroker, peer: Peer
) -> None:
    """Other strands get it: they have no keys."""
    writer = peer.open()
    async with blip_connected(broker) as blip:
        subscription = await blip.subscribe("t")
        box = sealed(b"secret", ALICE, BOB)
        await writer.publish("t", box, sender=public(ALICE), recipient=key_id(BOB))

        assert box == (await blip.take(subscription))[1]


async def test_route_all_is_send_to_everyone() -> None:
    """qumbed.route = "all": as the original does it."""
    async with broker_at(qumbed={"route": "all"}) as broker, connected(broker) as peer:
        alice, writer = peer.open(), peer.open()
        await alice.subscribe("t", ALICE)
        box = sealed(b"secret", CAROL, BOB)
        request = publish("t", box, sender=public(CAROL), recipient=key_id(BOB))
        assert ack("1", 1) == await writer.ask(request)

        assert box == unb64((await alice.message())["m"]["encrypted_payload"])


async def test_without_a_gateway_only_sealed_ones_arrive() -> None:
    """qumbed.gateway = "off": plain, opaque, and other strands' messages are not for them."""
    async with broker_at(qumbed={"gateway": "off"}) as broker, connected(broker) as peer:
        bob, writer = peer.open(), peer.open()
        await bob.subscribe("t", BOB)
        box = sealed(b"secret", ALICE, BOB)
        assert ack("1", 0) == await writer.ask(publish("t", b"{}"))
        assert ack("2", 0) == await writer.ask(publish("t", b"\xff"))
        async with blip_connected(broker) as blip:
            await blip.publish("t", b"from blip")
        assert ack("4", 1) == await writer.ask(publish("t", box, sender=public(ALICE)))
        assert b"secret" == opened(await bob.message(), BOB)
        await bob.expect_silence()


async def test_each_subscriber_has_a_box_of_its_own(broker: RunningBroker, peer: Peer) -> None:
    """The gateway seals for each key, with another nonce every time."""
    streams = {key: peer.open() for key in (ALICE, BOB, CAROL)}
    for key, stream in streams.items():
        await stream.subscribe("t", key)
    await peer.open().publish("t", b"to all")
    boxes = set()
    for key, stream in streams.items():
        message = await stream.message()
        assert b"to all" == opened(message, key)
        assert broker.gateway_public_key == unb64(message["m"]["sender_public_key"])
        assert broker.gateway_public_key[:8] == unb64(message["m"]["sender_key_id"])
        boxes.add(unb64(message["m"]["encrypted_payload"])[:24])

    assert 3 == len(boxes)
