"""A bad network between peers and broker: a tenth lost, others doubled, late, overtaken.

Nothing that was acknowledged is lost, and every subscriber has it in the log's order: one whose
own path is as bad, and one of another strand, whose path is good.
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
    """Have a way to the broker on which datagrams suffer, in both directions."""
    address = broker.address("qumbed")
    async with udp_proxy(address, seed=seed, weather=BAD_WEATHER) as proxy:
        yield proxy
        for counts in (proxy.to_server, proxy.to_client):
            assert 0 < min(counts.lost, counts.reordered)


def payload(writer: int, number: int) -> bytes:
    return b"\xff%d:%d:" % (writer, number) + bytes(400)


def boxed(writer: int, number: int) -> bytes:
    """Return a publish, every third one sealed for the subscriber."""
    if number % 3:
        return publish("t", payload(writer, number))
    box = sealed(payload(writer, number), BOB, ALICE)
    return publish("t", box, sender=public(BOB), recipient=key_id(ALICE))


async def taken_over_blip(broker: RunningBroker, subscription: int) -> dict[str, bytes]:
    """Return the payloads that are in the log, by id."""
    found: dict[str, bytes] = {}
    async with blip.connected(broker) as other:
        while (delivery := await other.poll(subscription)) is not None:
            found[str(delivery.correlation_id)] = delivery.payload[4:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_acknowledged_comes_to_everybody_in_order(
    broker: RunningBroker, seed: int
) -> None:
    """Three writers, each on a bad path of its own: all their messages, in the log's order."""
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
        came = [await reader.message() for _ in range(3 * COUNT)]
        await reader.expect_silence()
    in_log = await taken_over_blip(broker, subscription)
    ids = [message["m"]["id"] for message in came]

    assert sorted(ids, key=int) == ids == list(in_log)
    assert set(ids) == {message_id for own in acknowledged for message_id in own}
    told = dict(zip(ids, (opened(message, ALICE) for message in came), strict=True))
    for writer, one in enumerate(acknowledged):
        assert [payload(writer, number) for number in range(COUNT)] == [
            told[id_] for id_ in one
        ]
    for message in came:  # what is sealed is the same on both strands
        if unb64(message["m"]["sender_public_key"]) == public(BOB):
            assert in_log[message["m"]["id"]] == unb64(message["m"]["encrypted_payload"])


async def acks(stream: Stream, count: int) -> list[str]:
    """Return the ids of so many Acks."""
    found = [await stream.answer() for _ in range(count)]
    assert {(ACK, True, 1)} == {
        (one["t"], one["a"]["ok"], one["a"]["delivered"]) for one in found
    }
    return [one["a"]["message_id"] for one in found]


async def test_what_was_acknowledged_before_a_path_broke_is_there(
    broker: RunningBroker,
) -> None:
    """A writer whose network ends in the middle: what it has an Ack for is stored, once."""
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
    in_log = await taken_over_blip(broker, subscription)

    assert found == list(in_log)[: len(found)]
    assert [payload(0, number) for number in range(len(in_log))] == list(in_log.values())
