"""Routing by recipient, and what the gateway seals."""

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


async def test_a_message_with_a_recipient_goes_to_that_key_only(peer: Peer) -> None:
    """To each subscriber of the topic whose key has that id, and to no other."""
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


async def test_a_message_without_a_recipient_goes_to_all(peer: Peer) -> None:
    """An empty recipient_key_id selects all subscribers of the topic."""
    alice, bob, writer = (peer.open() for _ in range(3))
    await alice.subscribe("t", ALICE)
    await bob.subscribe("t", BOB)
    box = sealed(b"secret", CAROL, BOB)
    assert ack("1", 2) == await writer.ask(publish("t", box, sender=public(CAROL)))
    assert b"secret" == opened(await bob.message(), BOB)

    # Subscribers it was not sealed for get it unchanged, and cannot open it.
    assert box == unb64((await alice.message())["m"]["encrypted_payload"])


async def test_a_message_for_an_absent_recipient_is_delivered_to_none(peer: Peer) -> None:
    """The broker stores it all the same."""
    alice, writer = peer.open(), peer.open()
    await alice.subscribe("t", ALICE)
    assert ack("1", 0) == await writer.ask(publish("t", b"1", recipient=key_id(BOB)))
    await alice.expect_silence()


async def test_a_plain_message_for_a_recipient_is_sealed_for_it(
    broker: RunningBroker, peer: Peer
) -> None:
    """Routing and sealing are independent of each other."""
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
    """Other strands have no keys, so their subscribers get the message."""
    writer = peer.open()
    async with blip_connected(broker) as blip:
        subscription = await blip.subscribe("t")
        box = sealed(b"secret", ALICE, BOB)
        await writer.publish("t", box, sender=public(ALICE), recipient=key_id(BOB))

        assert box == (await blip.take(subscription))[1]


async def test_route_all_ignores_the_recipient() -> None:
    """qumbed.route = "all" behaves like the original."""
    async with broker_at(qumbed={"route": "all"}) as broker, connected(broker) as peer:
        alice, writer = peer.open(), peer.open()
        await alice.subscribe("t", ALICE)
        box = sealed(b"secret", CAROL, BOB)
        request = publish("t", box, sender=public(CAROL), recipient=key_id(BOB))
        assert ack("1", 1) == await writer.ask(request)

        assert box == unb64((await alice.message())["m"]["encrypted_payload"])


async def test_without_a_gateway_only_sealed_messages_arrive() -> None:
    """qumbed.gateway = "off" keeps plain, opaque and other strands' messages away."""
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


async def test_each_subscriber_gets_its_own_box(broker: RunningBroker, peer: Peer) -> None:
    """The gateway seals for each key, with a new nonce every time."""
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
