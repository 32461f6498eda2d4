"""A bad network: a tenth of the datagrams is lost, others are duplicated, late or reordered.

No acknowledged message is lost, and every subscriber gets the messages in the log's order: one
whose own path is just as bad, and one on another strand whose path is good.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.udp_proxy import BAD_WEATHER, UdpProxy, udp_proxy
from tests.integration.blip import peer as blip
from tests.integration.qumbed.peer import (
    ACK,
    ALICE,
    BOB,
    Stream,
    connected,
    key_id,
    opened,
    public,
    publish,
    sealed,
    unb64,
)

pytestmark = pytest.mark.asyncio

COUNT = 150


@asynccontextmanager
async def bad_network(broker: RunningBroker, seed: int) -> AsyncIterator[UdpProxy]:
    """Run a proxy to the broker that loses and reorders datagrams in both directions."""
    address = broker.address("qumbed")
    async with udp_proxy(address, seed=seed, weather=BAD_WEATHER) as proxy:
        yield proxy
        for counts in (proxy.to_server, proxy.to_client):
            assert 0 < min(counts.lost, counts.reordered)


def payload(writer: int, number: int) -> bytes:
    return b"\xff%d:%d:" % (writer, number) + bytes(400)


def boxed(writer: int, number: int) -> bytes:
    """Return a publish; every third one is sealed for the subscriber."""
    if number % 3:
        return publish("t", payload(writer, number))
    box = sealed(payload(writer, number), BOB, ALICE)
    return publish("t", box, sender=public(BOB), recipient=key_id(ALICE))


async def logged_payloads(broker: RunningBroker, subscription: int) -> dict[str, bytes]:
    """Return the payloads in the log by message id, read over Blip."""
    found: dict[str, bytes] = {}
    async with blip.connected(broker) as other:
        while (delivery := await other.poll(subscription)) is not None:
            found[str(delivery.correlation_id)] = delivery.payload[4:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_subscriber_gets_the_acknowledged_messages_in_order(
    broker: RunningBroker, seed: int
) -> None:
    """From three publishers, each on its own bad path, in the log's order."""
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
    async with (
        bad_network(broker, seed) as proxy,
        connected(broker, port=proxy.port) as far,
        connected(broker, port=proxy.port) as first,
        connected(broker, port=proxy.port) as second,
        connected(broker, port=proxy.port) as third,
    ):
        reader = far.open()
        await reader.subscribe("t", ALICE)
        writers = [peer.open() for peer in (first, second, third)]
        for writer, stream in enumerate(writers):
            stream.send(*(boxed(writer, number) for number in range(COUNT)))
        acknowledged = [await acks(stream, COUNT) for stream in writers]
        received = [await reader.message() for _ in range(3 * COUNT)]
        await reader.expect_silence()
    in_log = await logged_payloads(broker, subscription)
    ids = [message["m"]["id"] for message in received]

    assert sorted(ids, key=int) == ids == list(in_log)
    assert set(ids) == {message_id for own in acknowledged for message_id in own}
    plaintexts = dict(zip(ids, (opened(message, ALICE) for message in received), strict=True))
    for writer, one in enumerate(acknowledged):
        assert [payload(writer, number) for number in range(COUNT)] == [
            plaintexts[id_] for id_ in one
        ]
    for message in received:  # sealed bytes are the same on both strands
        if unb64(message["m"]["sender_public_key"]) == public(BOB):
            assert in_log[message["m"]["id"]] == unb64(message["m"]["encrypted_payload"])


async def acks(stream: Stream, count: int) -> list[str]:
    """Wait for *count* Acks and return their message ids."""
    found = [await stream.answer() for _ in range(count)]
    assert {(ACK, True, 1)} == {
        (one["t"], one["a"]["ok"], one["a"]["delivered"]) for one in found
    }
    return [one["a"]["message_id"] for one in found]


async def test_messages_acknowledged_before_the_network_failed_are_stored(
    broker: RunningBroker,
) -> None:
    """The publisher's network fails midway: what it has an Ack for is stored, once."""
    async with blip.connected(broker) as other:
        subscription = await other.subscribe("t")
    async with AsyncExitStack() as path:
        proxy = await path.enter_async_context(bad_network(broker, seed=3))
        async with connected(broker, port=proxy.port) as peer:
            stream = peer.open()
            stream.send(*(publish("t", payload(0, number)) for number in range(COUNT)))
            found = [(await stream.answer())["a"]["message_id"] for _ in range(COUNT // 2)]
            await path.aclose()
    await blip.until_committed(broker)
    in_log = await logged_payloads(broker, subscription)

    assert found == list(in_log)[: len(found)]
    assert [payload(0, number) for number in range(len(in_log))] == list(in_log.values())
