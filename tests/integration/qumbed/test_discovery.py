"""Discovery: what the relay says of itself, and to whom."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, key_config
from tests.integration.qumbed.peer import (
    FRAME_MAX,
    Json,
    Peer,
    connected,
    discovery,
    publish,
    unb64,
)

pytestmark = pytest.mark.asyncio


async def asked(peer: Peer, **more: str) -> Json:
    found = await peer.open().ask(discovery(**more))
    assert 7 == found["t"], found
    body = found["d"]
    assert isinstance(body, dict)
    return body


async def test_the_relay_says_who_it_is(broker: RunningBroker, peer: Peer) -> None:
    """node id, topics, the gateway's public key, and the bound address."""
    await peer.open().publish("b", b"1")
    await peer.open().publish("a", b"1")
    key = broker.gateway_public_key
    host, port = broker.address("qumbed")

    found = await asked(peer)
    assert key == unb64(found["public_key"])
    assert {
        "node_id": f"braidmq-{key[:8].hex()}",
        "topics": ["b", "a"],
        "public_key": found["public_key"],
        "addr": f"{host}:{port}",
    } == found


async def test_a_discoverys_id_is_echoed(peer: Peer) -> None:
    """As that of every other request."""
    assert "x" == (await asked(peer, frame_id="x"))["id"]


async def test_the_public_address_is_told_instead() -> None:
    """qumbed.public_addr."""
    async with (
        broker_at(qumbed={"public_addr": "relay.example:6121"}) as broker,
        connected(broker) as peer,
    ):
        assert "relay.example:6121" == (await asked(peer))["addr"]


async def test_only_topics_that_the_asker_may_see_are_told() -> None:
    """What its key may publish or subscribe to."""
    keys = [
        key_config("all", "good-key"),
        key_config("some", "some-key", publish=["p.*"], subscribe=["s.*"]),
    ]
    async with (
        broker_at(qumbed={"auth": "key"}, auth={"keys": keys}) as broker,
        connected(broker) as peer,
    ):
        stream = peer.open()
        for topic in ("p.1", "other", "s.1"):
            await stream.publish(topic, b"1", key="good-key")

        assert ["p.1", "other", "s.1"] == (await asked(peer, key="good-key"))["topics"]
        assert ["p.1", "s.1"] == (await asked(peer, key="some-key"))["topics"]


async def test_at_most_1000_topics_are_told(peer: Peer) -> None:
    """However many there are."""
    stream = peer.open()
    stream.send(*(publish(f"t{number}", b"1") for number in range(1_010)))
    for _ in range(1_010):
        await stream.answer()

    assert 1_000 == len((await asked(peer))["topics"])


async def test_topics_are_told_as_far_as_a_frame_goes(peer: Peer) -> None:
    """Long names: fewer of them."""
    stream = peer.open()
    long = "x" * 65_000
    stream.send(*(publish(f"{number}{long}", b"1") for number in range(20)))
    for _ in range(20):
        await stream.answer()
    topics = (await asked(peer))["topics"]

    assert FRAME_MAX // 65_100 == len(topics)
