"""Discovery: what the relay says about itself, and to which clients."""

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


async def discovered(peer: Peer, **more: str) -> Json:
    found = await peer.open().ask(discovery(**more))
    assert 7 == found["t"], found
    body = found["d"]
    assert isinstance(body, dict)
    return body


async def test_the_relay_describes_itself(broker: RunningBroker, peer: Peer) -> None:
    """With its node id, topics, the gateway's public key and the bound address."""
    await peer.open().publish("b", b"1")
    await peer.open().publish("a", b"1")
    key = broker.gateway_public_key
    host, port = broker.address("qumbed")

    found = await discovered(peer)
    assert key == unb64(found["public_key"])
    assert {
        "node_id": f"braidmq-{key[:8].hex()}",
        "topics": ["b", "a"],
        "public_key": found["public_key"],
        "addr": f"{host}:{port}",
    } == found


async def test_the_id_of_a_discovery_is_echoed(peer: Peer) -> None:
    """Like the id of every other request."""
    assert "x" == (await discovered(peer, frame_id="x"))["id"]


async def test_a_configured_public_address_replaces_the_bound_one() -> None:
    """Set by qumbed.public_addr."""
    async with (
        broker_at(qumbed={"public_addr": "relay.example:6121"}) as broker,
        connected(broker) as peer,
    ):
        assert "relay.example:6121" == (await discovered(peer))["addr"]


async def test_a_client_sees_only_the_topics_it_may_use() -> None:
    """Those that its key may publish or subscribe to."""
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

        assert ["p.1", "other", "s.1"] == (await discovered(peer, key="good-key"))["topics"]
        assert ["p.1", "s.1"] == (await discovered(peer, key="some-key"))["topics"]


async def test_at_most_1000_topics_are_listed(peer: Peer) -> None:
    """However many exist."""
    stream = peer.open()
    stream.send(*(publish(f"t{number}", b"1") for number in range(1_010)))
    for _ in range(1_010):
        await stream.answer()

    assert 1_000 == len((await discovered(peer))["topics"])


async def test_the_list_of_topics_fits_into_a_frame(peer: Peer) -> None:
    """Fewer topics are listed when their names are long."""
    stream = peer.open()
    long = "x" * 65_000
    stream.send(*(publish(f"{number}{long}", b"1") for number in range(20)))
    for _ in range(20):
        await stream.answer()
    topics = (await discovered(peer))["topics"]

    assert FRAME_MAX // 65_100 == len(topics)
