"""A subscription over the Qumbed strand: what is refused, and never given out."""

import logging
from random import Random

import pytest

import braidmq
from braidmq.client.qumbed import subscription as module
from braidmq.client.qumbed.envelope import Sealer
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Subscribe
from tests.unit.client.qumbed.peer import GATEWAY, Peer, refusing
from tests.unit.client.qumbed.people import ALICE, BOB, EVE, mutated
from tests.unit.client.qumbed.subscribed import SUBSCRIBED, refusals, show, subscribed

pytestmark = pytest.mark.asyncio

MUTATIONS = 200
"""As many as a frame each may take; ten thousand are tried on the box itself."""


async def test_what_does_not_open_is_refused_and_the_next_is_taken() -> None:
    """For another, by another than it says, or damaged anywhere: never given out."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealed = ALICE.seal(b"hello", BOB.public_key)
        dice = Random(4)
        for _ in range(MUTATIONS):
            show(peer, mutated(sealed, dice), ALICE.public_key)
        show(peer, ALICE.seal(b"hello", EVE.public_key), ALICE.public_key)
        show(peer, sealed, EVE.public_key)

        assert {"not_opened": MUTATIONS + 2} == await refusals(peer, subscription)


async def test_who_is_not_trusted_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Told once, with the sender's key and without the payload; the trusted one is heard."""
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


async def test_whoever_pins_senders_does_not_take_the_gateways_word() -> None:
    """What the broker seals for others comes from its key, and needs that to be trusted."""
    async with Peer() as peer, subscribed(peer, trust=ALICE.public_key.hex()) as subscription:
        peer.offer("orders", b"1")
        show(peer, ALICE.seal(b"2", BOB.public_key), ALICE.public_key)

        assert b"2" == (await anext(subscription)).payload
        assert {"untrusted": 1} == subscription.refused


@pytest.mark.parametrize("trust", [None, [ALICE.public_key, BOB.public_key]])
async def test_ones_own_message_that_comes_back_is_refused(trust: object) -> None:
    """A box is the same in both directions; also under the name of its recipient."""
    async with Peer() as peer, subscribed(peer, trust=trust) as subscription:
        sealer = Sealer(BOB, now_ms=1)
        own = sealer.seal(b"to Alice", ALICE.public_key, topic="orders", now_ms=1)
        show(peer, own, ALICE.public_key)
        show(peer, BOB.seal(b"to Alice", ALICE.public_key), BOB.public_key)
        show(peer, ALICE.seal(b"last", BOB.public_key), ALICE.public_key)

        assert b"last" == (await anext(subscription)).payload
        assert {"reflected": 2} == subscription.refused


async def test_a_message_that_is_shown_again_is_refused() -> None:
    """Envelopes are numbered; also after the subscription has ended and begun again."""
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
    """The same message comes to both, and is no replay."""
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


async def test_nor_after_one_that_could_not_be_opened() -> None:
    """Though it was told twice that it ended."""
    sealed = Sealer(ALICE, now_ms=1).seal(b"1", BOB.public_key, topic="orders", now_ms=1)
    async with Peer() as peer, braidmq.connect(peer.url, private_key=BOB) as client:
        peer.once(messages.SUBSCRIBE, refusing("SERVER_ERROR"))
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
    """What the relay says must be what was sealed in; without envelopes, what was asked for."""
    async with Peer() as peer, subscribed(peer) as subscription:
        sealer = Sealer(ALICE, now_ms=1)
        for topic, schema in (("others", ""), ("orders", "our.Own")):
            sealed = sealer.seal(b"1", BOB.public_key, topic=topic, schema_id=schema, now_ms=1)
            show(peer, sealed, ALICE.public_key)
        show(peer, ALICE.seal(b"1", BOB.public_key), ALICE.public_key, topic="others")

        assert {"retargeted": 3} == await refusals(peer, subscription)


async def test_envelopes_can_be_required() -> None:
    """Then what has none is refused, the gateway's messages too."""
    async with Peer() as peer, subscribed(peer, envelope=True) as subscription:
        peer.offer("orders", b"1")
        show(peer, ALICE.seal(b"2", BOB.public_key), ALICE.public_key)
        show(peer, ALICE.seal(b"\xc1broken", BOB.public_key), ALICE.public_key)
        sealer = Sealer(ALICE, now_ms=1)
        sealed = sealer.seal(b"3", BOB.public_key, topic="orders", now_ms=1)
        show(peer, sealed, ALICE.public_key)

        assert b"3" == (await anext(subscription)).payload
        assert {"envelope": 3} == subscription.refused


@pytest.mark.parametrize("asked", ["", "control.Command"])
async def test_what_breaks_its_schema_is_kept_apart(asked: str) -> None:
    """The subscription's schema, or else the message's: it is not given out, and not gone."""
    async with Peer() as peer, subscribed(peer, schema=asked) as subscription:
        good, bad = b'{"action": "on"}', b'{"action": ""}'
        said = "" if asked else "control.Command"
        for payload in (bad, good):
            sealed = ALICE.seal(payload, BOB.public_key)
            show(peer, sealed, ALICE.public_key, schema=said)

        assert good == (await anext(subscription)).payload
        assert {"schema": 1} == subscription.refused
        assert [(bad, ALICE.public_key)] == [
            (message.payload, message.sender) for message in subscription.quarantine
        ]
        (subscribe,) = peer.lines[SUBSCRIBED].of(messages.SUBSCRIBE)
        assert isinstance(subscribe, Subscribe)
        assert (asked, BOB.public_key) == (subscribe.schema_id, subscribe.public_key)


async def test_the_quarantine_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher of nonsense fills no memory; the newest are kept."""
    monkeypatch.setattr(module, "QUARANTINE_MAX", 2)
    async with Peer() as peer, subscribed(peer, schema="control.Command") as subscription:
        peer.offer("orders", b"1", b"2", b"3", b'{"action": "on"}')
        await anext(subscription)

        assert [b"2", b"3"] == [message.payload for message in subscription.quarantine]
        assert {"schema": 3} == subscription.refused
