"""The client over Blip: publishing, stats, closing."""

import asyncio

import pytest

import braidmq
from braidmq.client import publishing, strand
from braidmq.wire.blip import frames
from tests.unit.client.blip.peer import Peer
from tests.unit.client.peer import die, quick

pytestmark = pytest.mark.asyncio


def pings(peer: Peer) -> int:
    return sum(line.types().count(frames.PING) for line in peer.lines)


async def test_concurrent_publishes_share_their_fences() -> None:
    """A hundred publishers cost a few PINGs, not a hundred."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        await asyncio.gather(*(client.publish("orders", b"%d" % n) for n in range(100)))

        assert 100 == len(peer.published)
        assert pings(peer) <= 2


async def test_a_qos_0_publish_returns_at_once() -> None:
    """It waits for no confirmation, and promises nothing."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        receipt = await client.publish("orders", b"1", qos=0)

        assert not receipt.durable
        assert 0 == pings(peer)
        await peer.until(lambda: [(0, "orders", b"1")] == peer.published)


@pytest.mark.parametrize(
    "options", [{"headers": {}}, {"priority": 0}, {"ttl": 1.0}], ids=lambda one: next(iter(one))
)
async def test_an_option_that_blip_lacks_is_refused(options: dict[str, float]) -> None:
    """The error names the option; it is never ignored silently."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(
            braidmq.NotSupported, match=f"blip does not support {next(iter(options))}"
        ):
            await client.publish("orders", b"1", **options)  # type: ignore[arg-type] # one at a time


@pytest.mark.parametrize("subscription_id", [-1, 0, 2**64])
async def test_an_id_that_no_subscription_has_is_refused(subscription_id: int) -> None:
    """On the wire it is an unsigned number of 64 bits, and 0 means none."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="subscription_id must be"):
            await client.subscribe("orders", subscription_id=subscription_id)
        with pytest.raises(braidmq.SubscriptionGone):
            await client.subscribe("orders", subscription_id=2**64 - 1)


async def test_code_500_is_a_refusal_with_unknown_outcome() -> None:
    """The broker itself does not know whether the message is stored."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.refuse(frames.PUBLISH, 500, "durable publish failed: disk")
        with pytest.raises(braidmq.OutcomeUnknown, match="500") as caught:
            await client.publish("orders", b"1")

        assert isinstance(caught.value, braidmq.PublishRefused)


async def test_retry_resends_a_message_that_the_broker_failed_to_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code 500 asks for another attempt."""
    monkeypatch.setattr(strand, "RETRY_DELAY_S", 0.001)
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(frames.PUBLISH, peer.refusing(500))

        assert (await client.publish("orders", b"1", retry=True)).repeated


async def test_publish_many_returns_a_result_per_message() -> None:
    """Receipts and errors come in the order of the payloads."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(frames.PUBLISH, peer.refusing(403))
        too_large = bytes(17 * 1024 * 1024)
        results = await client.publish_many("orders", [b"0", b"1", too_large, b"3"])

        assert [
            braidmq.PublishRefused,
            braidmq.Receipt,
            braidmq.NotSent,
            braidmq.Receipt,
        ] == [type(result) for result in results]
        assert [b"1", b"3"] == [payload for _, _, payload in peer.published]


async def test_publish_many_is_pipelined_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk costs at most one PING, and all messages arrive in order."""
    monkeypatch.setattr(publishing, "CHUNK_COUNT", 50)
    count = 5 * publishing.CHUNK_COUNT + 1
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        results = await client.publish_many("orders", (b"%d" % n for n in range(count)))

        assert [braidmq.Receipt("orders", 1, durable=True)] * count == results
        assert [b"%d" % n for n in range(count)] == [
            payload for _, _, payload in peer.published
        ]
        assert pings(peer) <= 6


async def test_publish_many_with_qos_0_returns_at_once() -> None:
    """It sends no PING, and promises nothing."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        results = await client.publish_many("orders", [b"1", b"2"], qos=0)

        assert [braidmq.Receipt("orders", 0, durable=False)] * 2 == results
        assert 0 == pings(peer)


async def test_publish_many_over_a_broken_connection() -> None:
    """The chunk in flight has an unknown outcome; later messages are confirmed."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.once(frames.PING, die)
        unknown = await client.publish_many("orders", [b"1", b"2"])
        results = await client.publish_many("orders", [b"x"] * 10)

        assert [braidmq.OutcomeUnknown] * 2 == [type(result) for result in unknown]
        assert all(isinstance(result, braidmq.Receipt) for result in results)


async def test_publish_many_resends_only_messages_with_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `retry`, lost and failed messages are resent until they are confirmed."""
    monkeypatch.setattr(strand, "RETRY_DELAY_S", 0.001)
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.once(frames.PUBLISH, peer.refusing(500))
        failed = await client.publish_many("orders", [b"1", b"2"], retry=True)
        peer.once(frames.PING, die)
        lost = await client.publish_many("orders", [b"3"], retry=True)
        before = pings(peer)
        fine = await client.publish_many("orders", [b"4"], retry=True)

        assert [True, False] == [
            isinstance(one, braidmq.Receipt) and one.repeated for one in failed
        ]
        assert [braidmq.Receipt("orders", 1, durable=True, repeated=True)] == lost
        assert [braidmq.Receipt("orders", 1, durable=True)] == fine
        assert before + 1 == pings(peer)
        assert [b"2", b"1", b"3", b"3", b"4"] == [payload for _, _, payload in peer.published]


async def test_stats_are_the_five_numbers_of_the_broker() -> None:
    """They are returned as a named tuple."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        assert braidmq.Stats(1, 2, 3, 4, 5) == await client.stats()


async def test_stats_that_are_refused_or_lost_raise() -> None:
    """The client never makes up numbers."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.refuse(frames.STATS, 400, "invalid STATS payload")
        with pytest.raises(braidmq.ClientError, match="400 invalid STATS payload"):
            await client.stats()
        peer.script(frames.STATS, die)
        with pytest.raises(braidmq.ConnectionLost):
            await client.stats()


async def test_closing_confirms_qos_0_messages_first() -> None:
    """Everything sent reaches the broker before the connection closes."""
    async with Peer() as peer:
        async with braidmq.connect(peer.url) as client:
            await client.publish_many("orders", [b"x"] * 1000, qos=0)

        assert 1000 == len(peer.published)


async def test_a_closed_client_raises_closed() -> None:
    """Publish, stats and ping all raise it; closing again does nothing."""
    async with Peer() as peer:
        client = await braidmq.connect(peer.url)
        await client.close()
        await client.close()
        for attempt in (client.publish("orders", b"1"), client.stats(), client.ping()):
            with pytest.raises(braidmq.Closed):
                await attempt


async def test_a_publish_that_waits_for_buffer_space_moves_to_the_next_connection() -> None:
    """The connection broke while its buffer was full, so no part of the message was sent."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.lines[0].pause_reading()
        large = (bytes(65536) for _ in range(400))
        flood = asyncio.create_task(client.publish_many("flood", large, qos=0))
        waiting = asyncio.create_task(client.publish("orders", b"1"))
        many = asyncio.create_task(client.publish_many("orders", [b"2"]))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not flood.done()
        late = asyncio.create_task(client.publish("orders", b"3"))
        late_many = asyncio.create_task(client.publish_many("orders", [b"4"]))
        await asyncio.sleep(0)
        peer.lines[0].die()
        await asyncio.gather(waiting, many, return_exceptions=True)

        assert (await late).durable
        assert [braidmq.Receipt("orders", 1, durable=True)] == await late_many
        await flood


async def test_blip_has_no_queues() -> None:
    """The error names strand and feature."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        for attempt in (
            client.declare_queue("jobs"),
            client.queue_info("jobs"),
            client.list_queues(),
            client.delete_queue("jobs"),
        ):
            with pytest.raises(braidmq.NotSupported, match="blip does not support queues"):
                await attempt
