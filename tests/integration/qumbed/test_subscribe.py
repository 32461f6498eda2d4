"""Subscribe, Unsubscribe and Message: which messages a subscriber gets, and until when."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, until
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    CAROL,
    Peer,
    ack,
    b64,
    connected,
    core,
    opened,
    public,
    publish,
    sealed,
    subscribe,
    unsubscribe,
)

pytestmark = pytest.mark.asyncio


async def test_a_message_has_every_documented_field(broker: RunningBroker, peer: Peer) -> None:
    """Topic, payload, the sender's key and its id, message id, schema and timestamp."""
    stream = peer.open()
    await stream.subscribe("t/é", BOB)
    box = sealed(b"{}", ALICE, BOB)
    broker.clock.advance(1.5)
    await stream.publish("t/é", box, "control.Command", sender=public(ALICE), frame_id="mine")

    assert {
        "t": 4,
        "m": {
            "topic": "t/é",
            "encrypted_payload": b64(box),
            "sender_key_id": b64(public(ALICE)[:8]),
            "sender_public_key": b64(public(ALICE)),
            "id": "1",
            "schema_id": "control.Command",
            "timestamp_ms": broker.clock.now_us() // 1000,
        },
    } == await stream.message()


async def test_the_ack_of_a_subscribe_precedes_its_first_message(peer: Peer) -> None:
    """Even when a publish is already pipelined behind it."""
    stream = peer.open()
    stream.send(subscribe("t", public(ALICE), frame_id="s"), publish("t", b"1", frame_id="p"))
    await stream.expect(ack("s"), ack("p", 1))

    assert b"1" == opened(await stream.message(), ALICE)


async def test_a_subscriber_gets_only_later_messages(peer: Peer) -> None:
    """Nothing older, whatever the log holds."""
    one, two = peer.open(), peer.open()
    for number in range(10):
        await one.publish("t", b"%d" % number)
    await two.subscribe("t", ALICE)
    await one.publish("t", b"new")
    assert b"new" == opened(await two.message(), ALICE)
    await two.expect_silence()


async def test_messages_arrive_in_order_on_every_stream(broker: RunningBroker) -> None:
    """Each of five streams on two connections gets all of them, in the order of their ids."""
    async with connected(broker) as one, connected(broker) as two:
        streams = [one.open(), one.open(), one.open(), two.open(), two.open()]
        for stream in streams:
            await stream.subscribe("t", ALICE)
        writer = two.open()
        writer.send(*(publish("t", b"%d" % number) for number in range(200)))
        await writer.expect(*(ack(f"{number}", 5) for number in range(1, 201)))
        for stream in streams:
            found = [await stream.message() for _ in range(200)]
            assert [b"%d" % number for number in range(200)] == [
                opened(message, ALICE) for message in found
            ]
            assert [f"{n}" for n in range(1, 201)] == [one["m"]["id"] for one in found]


async def test_a_subscription_belongs_to_one_stream_and_topic(peer: Peer) -> None:
    """It delivers nothing to other streams and nothing of other topics."""
    one, two, three = peer.open(), peer.open(), peer.open()
    await one.subscribe("a", ALICE)
    await two.subscribe("b", BOB)
    await two.subscribe("c", CAROL)
    for topic in ("a", "b", "c", "d", "A"):
        await three.publish(topic, topic.encode())
    assert b"a" == opened(await one.message(), ALICE)
    assert b"b" == opened(await two.message(), BOB)
    assert b"c" == opened(await two.message(), CAROL)
    await one.expect_silence()
    await two.expect_silence()


async def test_a_second_subscribe_replaces_the_first(peer: Peer) -> None:
    """On the same stream and topic: the new key applies, and each message arrives once."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    await two.publish("t", b"1")
    await one.subscribe("t", BOB)
    assert ack("2", 1) == await two.ask(publish("t", b"2"))
    await one.subscribe("t", BOB)
    assert ack("3", 1) == await two.ask(publish("t", b"3"))
    assert b"1" == opened(await one.message(), ALICE)
    assert [b"2", b"3"] == [opened(await one.message(), BOB) for _ in range(2)]
    await one.expect_silence()


async def test_an_unsubscribe_is_acknowledged_and_ends_the_subscription(peer: Peer) -> None:
    """Nothing arrives after its Ack; the stream's other topics continue."""
    one, two = peer.open(), peer.open()
    await one.subscribe("a", ALICE)
    await one.subscribe("b", ALICE)
    assert ack("u") == await one.ask(unsubscribe("a", frame_id="u"))
    assert ack("1", 0) == await two.ask(publish("a", b"1"))
    assert ack("2", 1) == await two.ask(publish("b", b"2"))
    assert b"2" == opened(await one.message(), ALICE)
    await one.expect_silence()


async def test_an_unsubscribe_without_a_subscription_is_acknowledged(peer: Peer) -> None:
    """The state is already what the peer wants."""
    one, two = peer.open(), peer.open()
    await two.subscribe("t", ALICE)

    assert ack() == await one.ask(unsubscribe("t"))
    assert ack() == await one.ask(unsubscribe("unknown"))
    assert ack("1", 1) == await one.ask(publish("t", b"1"))


async def test_a_fin_ends_the_streams_subscriptions(broker: RunningBroker, peer: Peer) -> None:
    """Those of other streams continue."""
    one, two, three = peer.open(), peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    await two.subscribe("t", ALICE)
    one.finish()
    await one.expect_end()
    assert ack("1", 1) == await three.ask(publish("t", b"1"))
    assert b"1" == opened(await two.message(), ALICE)
    await until(lambda: core(broker).subscription_count() == 1)


async def test_a_reset_ends_the_streams_subscriptions(
    broker: RunningBroker, peer: Peer
) -> None:
    """A stream that is reset leaves nothing behind."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    one.reset()
    await until(lambda: core(broker).subscription_count() == 0)

    assert ack("1", 0) == await two.ask(publish("t", b"1"))


async def test_a_bad_frame_ends_the_streams_subscriptions(
    broker: RunningBroker, peer: Peer
) -> None:
    """It closes the stream, and they end with it."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", ALICE)
    one.send(b"\0\0\0\0")
    await one.expect_error("BAD_FRAME")
    await one.expect_end()
    await until(lambda: core(broker).subscription_count() == 0)

    assert ack("1", 0) == await two.ask(publish("t", b"1"))


async def test_a_closed_connection_ends_its_subscriptions(broker: RunningBroker) -> None:
    """All of them; those of other connections stay."""
    async with connected(broker) as other:
        stays = other.open()
        await stays.subscribe("t", ALICE)
        async with connected(broker) as peer:
            for _ in range(3):
                await peer.open().subscribe("t", ALICE)
        await until(lambda: core(broker).subscription_count() == 1)

        assert ack("1", 1) == await other.open().ask(publish("t", b"1"))


async def test_a_subscribe_with_an_unknown_schema_is_refused(peer: Peer) -> None:
    """SCHEMA_UNKNOWN; the stream stays open, and a known schema is accepted."""
    stream = peer.open()
    stream.send(subscribe("t", public(ALICE), "no.such", frame_id="x"))
    assert "unknown schema: no.such" == await stream.expect_error("SCHEMA_UNKNOWN", "x")
    assert ack("1", 0) == await stream.ask(publish("t", b"1"))
    await stream.subscribe("t", ALICE, "sensor.Temperature")

    # A subscriber's schema documents what it understands; it does not filter.
    assert ack("2", 1) == await stream.ask(publish("t", b"1"))


async def test_interleaved_publishers_never_corrupt_a_stream(broker: RunningBroker) -> None:
    """Many publishers, few subscribers, payloads of all sizes: every frame arrives intact."""
    sizes = (0, 1, 100, 1_000, 1_400, 5_000, 60_000)
    async with connected(broker) as one, connected(broker) as two:
        readers = [two.open(), two.open()]
        for reader in readers:
            await reader.subscribe("t", ALICE)
        writers = [one.open() for _ in range(7)]
        for number in range(20):
            for at, writer in enumerate(writers):
                payload = bytes([at]) * sizes[(at + number) % len(sizes)]
                writer.send(publish("t", b"%d:%d:" % (at, number) + payload))
        for writer in writers:
            for _ in range(20):
                assert 2 == (await writer.answer())["a"]["delivered"]
        for reader in readers:
            found = [opened(await reader.message(), ALICE) for _ in range(140)]
            for at in range(7):
                own = [one for one in found if one.startswith(b"%d:" % at)]
                wanted = [
                    b"%d:%d:" % (at, n) + bytes([at]) * sizes[(at + n) % len(sizes)]
                    for n in range(20)
                ]
                assert wanted == own


def _has_unconfirmed(broker: RunningBroker) -> bool:
    """Return whether a message was sent that no subscriber has confirmed yet."""
    engine = broker.daemon.status.engine
    assert engine is not None
    followers = engine.broker.followers.by_id.values()
    return any(one.sent_id() < one.cursor for one in followers)


async def test_a_returning_key_gets_what_it_missed() -> None:
    """qumbed.offline_s: for the same principal, topic and key, in order and once."""
    async with broker_at(qumbed={"offline_s": 60.0}) as broker, connected(broker) as other:
        writer = other.open()
        async with connected(broker) as peer:
            stream = peer.open()
            await stream.subscribe("t", ALICE)
            await writer.publish("t", b"0")
            assert b"0" == opened(await stream.message(), ALICE)
            await until(lambda: not _has_unconfirmed(broker))
            stream.finish()
            await stream.expect_end()
        assert ack("3", 0) == await writer.ask(publish("t", b"1"))
        await writer.publish("t", b"2")
        async with connected(broker) as peer:
            stream = peer.open()
            stream.send(subscribe("t", public(ALICE)))
            await stream.expect(ack())
            found = [opened(await stream.message(), ALICE) for _ in range(2)]
            assert [b"1", b"2"] == found
            await stream.expect_silence()
            newcomer = peer.open()
            await newcomer.subscribe("t", BOB)
            await newcomer.expect_silence()


async def test_a_subscriber_that_is_away_too_long_gets_nothing() -> None:
    """qumbed.offline_s counts from its disconnection."""
    async with broker_at(qumbed={"offline_s": 60.0}) as broker, connected(broker) as peer:
        one, two = peer.open(), peer.open()
        await one.subscribe("t", ALICE)
        one.finish()
        await one.expect_end()
        await two.publish("t", b"1")
        broker.clock.advance(61.0)
        three = peer.open()
        await three.subscribe("t", ALICE)
        await three.expect_silence()


async def test_an_unreachable_device_gets_its_messages_when_it_returns() -> None:
    """qumbed.offline_s covers messages that QUIC accepted but the device never got."""
    async with broker_at(qumbed={"offline_s": 60.0}) as broker:
        async with connected(broker) as other, connected(broker) as peer:
            stream, writer = peer.open(), other.open()
            await stream.subscribe("t", ALICE)
            await writer.publish("t", b"0")
            assert b"0" == opened(await stream.message(), ALICE)
            peer.is_out_of_reach = True
            for number in range(1, 20):
                await writer.publish("t", b"%d" % number)
        async with connected(broker) as peer:
            stream = peer.open()
            await stream.subscribe("t", ALICE)
            found = [opened(await stream.message(), ALICE) for _ in range(19)]
            assert [b"%d" % number for number in range(1, 20)] == found
            await stream.expect_silence()
