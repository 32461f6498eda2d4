"""A Qumbed subscription: messages that it refuses and never delivers."""

import logging
from random import Random

import pytest

import braidmq
from braidmq.client.qumbed import subscription as module
from braidmq.client.qumbed.envelope import Sealer
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Subscribe
from tests.unit.client.qumbed.peer import GATEWAY, Peer
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, mutated
from tests.unit.client.qumbed.subscribed import refusals, show, subscribed
from tests.unit.client.strands import SUBSCRIBED

pytestmark = pytest.mark.asyncio

MUTATIONS = 200
"""Few, because each takes a frame; ten thousand are tried on the box itself."""


async def test_boxes_that_do_not_open_are_refused() -> None:
    """For another recipient, from another sender than claimed, or damaged."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealed = ALICE.seal(b"hello", BOB.public_key)
        rng = Random(4)
        for _ in range(MUTATIONS):
            show(peer, mutated(sealed, rng), ALICE.public_key)
        show(peer, ALICE.seal(b"hello", EVE.public_key), ALICE.public_key)
        show(peer, sealed, EVE.public_key)

        assert {"not_opened": MUTATIONS + 2} == await refusals(peer, subscription)


async def test_an_untrusted_sender_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, with the key and without the payload; trusted senders are heard."""
    keys = [ALICE.public_key, GATEWAY.public_key.hex()]
    with caplog.at_level(logging.WARNING, "braidmq.client"):
        async with Peer() as peer, subscribed(peer, trust=keys) as subscription:
            for _ in range(3):
                show(peer, EVE.seal(b"secret", BOB.public_key), EVE.public_key)
            show(peer, ALICE.seal(b"hello", BOB.public_key), ALICE.public_key)
            assert b"hello" == (await anext(subscription)).payload

            assert {"untrusted": 3} == await refusals(peer, subscription)
    (line,) = caplog.messages
    assert EVE.key_id.hex() in line
    assert "secret" not in line


async def test_pinned_senders_exclude_the_gateway_unless_it_is_pinned_too() -> None:
    """Messages sealed by the gateway come from its own key."""
    async with Peer() as peer, subscribed(peer, trust=ALICE.public_key.hex()) as subscription:
        peer.offer("orders", b"1")
        show(peer, ALICE.seal(b"2", BOB.public_key), ALICE.public_key)

        assert b"2" == (await anext(subscription)).payload
        assert {"untrusted": 1} == subscription.refused


@pytest.mark.parametrize("trust", [None, [ALICE.public_key, BOB.public_key]])
async def test_a_reflected_message_is_refused(trust: object) -> None:
    """Under its own sender's key or its recipient's: a box opens in both directions."""
    async with Peer() as peer, subscribed(peer, trust=trust) as subscription:
        sealer = Sealer(BOB, now_ms=1)
        own = sealer.seal(b"to Alice", ALICE.public_key, topic="orders", now_ms=1)
        show(peer, own, ALICE.public_key)
        show(peer, BOB.seal(b"to Alice", ALICE.public_key), BOB.public_key)
        show(peer, ALICE.seal(b"last", BOB.public_key), ALICE.public_key)

        assert b"last" == (await anext(subscription)).payload
        assert {"reflected": 2} == subscription.refused


async def test_a_replayed_message_is_refused() -> None:
    """Even in a later subscription of the same client."""
    sealer = Sealer(ALICE, now_ms=1)
    sealed = [
        sealer.seal(b"%d" % number, BOB.public_key, topic="orders", now_ms=1)
        for number in range(3)
    ]
    async with Peer() as peer, braidmq.connect(peer.url, private_key=BOB) as client:
        async with client.subscribe("orders") as subscription:
            for one in (sealed[1], sealed[0], sealed[1], sealed[2]):
                show(peer, one, ALICE.public_key)
            seen = [(await anext(subscription)).payload for _ in range(3)]

            assert [b"1", b"0", b"2"] == seen
            assert {"replayed": 1} == subscription.refused
        async with client.subscribe("orders") as subscription:
            for one in sealed:
                peer.show(peer.lines[2], "orders", one, ALICE.public_key)
            peer.give(peer.lines[2], "orders", b"the last")

            assert b"the last" == (await anext(subscription)).payload
            assert {"replayed": 3} == subscription.refused


async def test_two_subscriptions_to_one_topic_do_not_refuse_each_others_messages() -> None:
    """Both receive the same message, which is no replay."""
    sealed = Sealer(ALICE, now_ms=1).seal(b"1", BOB.public_key, topic="orders", now_ms=1)
    async with (
        Peer() as peer,
        braidmq.connect(peer.url, private_key=BOB) as client,
        client.subscribe("orders") as one,
        client.subscribe("orders") as two,
    ):
        for line in peer.lines[1:]:
            peer.show(line, "orders", sealed, ALICE.public_key)

        assert b"1" == (await anext(one)).payload
        assert b"1" == (await anext(two)).payload


async def test_a_failed_subscription_does_not_disturb_later_ones() -> None:
    """Even if it is closed once more after its failure."""
    sealed = Sealer(ALICE, now_ms=1).seal(b"1", BOB.public_key, topic="orders", now_ms=1)
    async with Peer() as peer, braidmq.connect(peer.url, private_key=BOB) as client:
        peer.once(messages.SUBSCRIBE, peer.refusing("SERVER_ERROR"))
        failed = client.subscribe("orders")
        with pytest.raises(braidmq.SubscriptionRefused):
            await failed
        await failed.close()
        async with client.subscribe("orders") as one, client.subscribe("orders") as two:
            for line in peer.lines[2:]:
                peer.show(line, "orders", sealed, ALICE.public_key)

            assert b"1" == (await anext(one)).payload
            assert b"1" == (await anext(two)).payload


async def test_a_message_for_another_topic_or_schema_is_refused() -> None:
    """The relay must name what was sealed; without envelopes, the subscription's topic."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealer = Sealer(ALICE, now_ms=1)
        for topic, schema in (("others", ""), ("orders", "our.Own")):
            sealed = sealer.seal(b"1", BOB.public_key, topic=topic, schema_id=schema, now_ms=1)
            show(peer, sealed, ALICE.public_key)
        show(peer, ALICE.seal(b"1", BOB.public_key), ALICE.public_key, topic="others")

        assert {"retargeted": 3} == await refusals(peer, subscription)


async def test_envelopes_can_be_required() -> None:
    """Then messages without one are refused, those of the gateway included."""
    async with Peer() as peer, subscribed(peer, envelope=True) as subscription:
        peer.offer("orders", b"1")
        show(peer, ALICE.seal(b"2", BOB.public_key), ALICE.public_key)
        show(peer, ALICE.seal(b"\xc1broken", BOB.public_key), ALICE.public_key)
        sealer = Sealer(ALICE, now_ms=1)
        sealed = sealer.seal(b"3", BOB.public_key, topic="orders", now_ms=1)
        show(peer, sealed, ALICE.public_key)

        assert b"3" == (await anext(subscription)).payload
        assert {"envelope": 3} == subscription.refused


@pytest.mark.parametrize("requested", ["", "control.Command"])
async def test_a_message_that_violates_its_schema_is_quarantined(requested: str) -> None:
    """The subscription's schema, or else the message's; it is kept but not delivered."""
    async with Peer() as peer, subscribed(peer, schema=requested) as subscription:
        good, bad = b'{"action": "on"}', b'{"action": ""}'
        schema = "" if requested else "control.Command"
        for payload in (bad, good):
            sealed = ALICE.seal(payload, BOB.public_key)
            show(peer, sealed, ALICE.public_key, schema=schema)

        assert good == (await anext(subscription)).payload
        assert {"schema": 1} == subscription.refused
        assert [(bad, ALICE.public_key)] == [
            (message.payload, message.sender) for message in subscription.quarantine
        ]
        (subscribe,) = peer.lines[SUBSCRIBED].of(messages.SUBSCRIBE)
        assert isinstance(subscribe, Subscribe)
        assert (requested, BOB.public_key) == (subscribe.schema_id, subscribe.public_key)


async def test_the_quarantine_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid messages do not fill the memory; the newest are kept."""
    monkeypatch.setattr(module, "QUARANTINE_MAX", 2)
    async with Peer() as peer, subscribed(peer, schema="control.Command") as subscription:
        peer.offer("orders", b"1", b"2", b"3", b'{"action": "on"}')
        await anext(subscription)

        assert [b"2", b"3"] == [message.payload for message in subscription.quarantine]
        assert {"schema": 3} == subscription.refused
