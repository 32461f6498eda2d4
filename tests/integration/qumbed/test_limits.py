"""Limits: rate, connections and memory; slow subscribers and flooding publishers."""

import asyncio

import pytest

from braidmq.server.engine.connection import READ_AHEAD_BYTES
from braidmq.testing.broker import RunningBroker
from braidmq.transport.quic_streams import StreamWire
from tests.integration.blip.peer import broker_at, until
from tests.integration.qumbed.peer import (
    ALICE,
    FRAME_MAX,
    Json,
    Peer,
    ack,
    connected,
    core,
    discovery,
    opened,
    public,
    publish,
    subscribe,
    unsubscribe,
)
from tests.integration.qumbed.slow import slow

pytestmark = pytest.mark.asyncio

WINDOW = 64 * 1024


def unsent(broker: RunningBroker) -> list[int]:
    """Return the unsent bytes that the broker holds for each stream."""
    engine = broker.daemon.status.engine
    assert engine is not None
    wires = [connection._wire for connection in engine.connections]  # noqa: SLF001 - a peer cannot see memory
    return sorted(wire.stream_unsent_bytes() for wire in wires if isinstance(wire, StreamWire))


async def test_messages_above_the_rate_limit_are_refused() -> None:
    """RATE_LIMIT above limits.messages_per_s, counted by connection, until time passes."""
    async with (
        broker_at(limits={"messages_per_s": 3}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        one, two = peer.open(), peer.open()
        await one.publish("t", b"1")
        await two.subscribe("t", ALICE)
        await two.publish("t", b"2")
        one.send(publish("t", b"3", frame_id="x"))
        await one.expect_error("RATE_LIMIT", "x")
        two.send(discovery(frame_id="y"), subscribe("u", public(ALICE), frame_id="z"))
        assert b"2" == opened(await two.message(), ALICE)
        await two.expect_error("RATE_LIMIT", "y")
        await two.expect_error("RATE_LIMIT", "z")
        assert ack() == await two.ask(unsubscribe("t"))  # exempt, as it reduces the load
        await other.open().publish("t", b"4")
        broker.clock.advance(1.0)
        await one.publish("t", b"5")

        assert 4 == core(broker).stats.published


async def test_connections_are_limited() -> None:
    """limits.connections covers all strands; a client that disconnects makes room."""
    async with broker_at(limits={"connections": 1}) as broker:
        async with connected(broker) as peer:
            await peer.open().publish("t", b"1")
            with pytest.raises(ConnectionError):
                async with connected(broker):
                    pass
            assert {"connections": 1} == _refused(broker)
            assert 1 == broker.daemon.status.metrics().connections["qumbed"]
        await until(lambda: broker.daemon.status.metrics().connections["qumbed"] == 0)
        async with connected(broker) as peer:
            await peer.open().publish("t", b"1")


async def test_the_connections_of_one_address_are_limited() -> None:
    """limits.connections_per_ip counts each address separately."""
    async with (
        broker_at(limits={"connections_per_ip": 1}) as broker,
        connected(broker) as peer,
    ):
        await peer.open().publish("t", b"1")
        with pytest.raises(ConnectionError):
            async with connected(broker):
                pass

        assert {"connections_per_ip": 1} == _refused(broker)


def _refused(broker: RunningBroker) -> dict[str, int]:
    return dict(broker.daemon.status.metrics().connections_refused)


async def test_the_metrics_include_the_counters_of_the_quic_endpoint() -> None:
    """Events that belong to no connection: Retry packets, resets and drops."""
    async with broker_at() as broker, connected(broker) as peer:
        await peer.open().publish("t", b"1")
        events = broker.daemon.status.metrics().quic_events

        assert {"retry", "stateless_reset", "dropped_datagram", "dropped_write"} == set(events)


async def test_a_connection_without_a_stream_is_closed() -> None:
    """After limits.handshake_timeout_s: without a stream it has not authenticated."""
    async with (
        broker_at(limits={"handshake_timeout_s": 0.3}) as broker,
        connected(broker) as silent,
        connected(broker) as peer,
    ):
        stream = peer.open()
        await stream.publish("t", b"1")
        await silent.expect_close()
        await until(lambda: _refused(broker) == {"unauthenticated": 1})
        await stream.publish("t", b"2")


async def test_an_idle_connection_is_closed() -> None:
    """After limits.idle_timeout_s without a frame."""
    async with (
        broker_at(limits={"idle_timeout_s": 0.3}) as broker,
        connected(broker) as peer,
    ):
        await peer.open().publish("t", b"1")
        await peer.expect_close()

        assert {"idle": 1} == _refused(broker)


async def test_a_slow_subscriber_loses_nothing_and_delays_no_other() -> None:
    """The broker buffers one window for it; the rest comes from the log, in order."""
    count = 400
    async with (
        broker_at(qumbed={"window_bytes": WINDOW}) as broker,
        slow(broker.address("qumbed"), broker.fingerprint) as peer,
        connected(broker) as other,
    ):
        stuck = await peer.stuck_subscriber("t", ALICE)
        reader, writer = other.open(), other.open()
        await reader.subscribe("t", ALICE)
        for number in range(count):
            writer.send(publish("t", b"%d:" % number + bytes(2_000)))
        for number in range(count):
            assert ack(f"{number + 1}", 2) == await writer.answer()
        assert _numbers(count) == [_number(await reader.message()) for _ in range(count)]
        assert unsent(broker)[-1] < WINDOW + 4_000
        # The slow connection's other streams can still publish.
        quick = peer.open()
        quick.send(publish("t", b"%d:" % count))
        assert ack(f"{count + 1}", 2) == (await quick.frames(1))[0]
        stuck.resume()
        found = await stuck.frames(count + 1)

        assert _numbers(count + 1) == [_number(message) for message in found]


def _number(message: Json) -> int:
    return int(opened(message, ALICE).partition(b":")[0])


def _numbers(count: int) -> list[int]:
    return list(range(count))


async def test_many_slow_streams_share_the_output_buffer() -> None:
    """The connection's limit covers all its streams together; each gets everything."""
    limits = {"output_buffer_bytes": 100_000}
    async with (
        broker_at(qumbed={"window_bytes": WINDOW}, limits=limits) as broker,
        slow(broker.address("qumbed"), broker.fingerprint) as peer,
        connected(broker) as other,
    ):
        streams = [await peer.stuck_subscriber("t", ALICE) for _ in range(8)]
        writer = other.open()
        for number in range(100):
            writer.send(publish("t", b"%d:" % number + bytes(2_000)))
        for _ in range(100):
            assert 8 == (await writer.answer())["a"]["delivered"]
        # Each stream may exceed the limit by one message, written while there was room.
        assert sum(unsent(broker)) < 100_000 + 8 * 3_000
        for stream in streams:
            stream.resume()
        for stream in streams:
            found = await stream.frames(100)
            assert _numbers(100) == [_number(message) for message in found]


async def test_tiny_messages_do_not_outgrow_the_window() -> None:
    """A frame is much longer than a small message, so the frame's bytes count."""
    async with (
        broker_at(qumbed={"window_bytes": WINDOW}) as broker,
        slow(broker.address("qumbed"), broker.fingerprint) as peer,
        connected(broker) as other,
    ):
        stuck = await peer.stuck_subscriber("t", ALICE)
        writer = other.open()
        writer.send(*(publish("t", b"%d" % number) for number in range(3_000)))
        for _ in range(3_000):
            await writer.answer()
        assert unsent(broker)[-1] < WINDOW + 1_000
        stuck.resume()
        found = await stuck.frames(3_000)

        assert _numbers(3_000) == [_number(message) for message in found]


async def test_unfinished_frames_share_one_limit(broker: RunningBroker, peer: Peer) -> None:
    """With an almost complete frame on each of many streams, the broker refuses some."""
    unfinished = (FRAME_MAX - 1).to_bytes(4, "big") + bytes(FRAME_MAX - 100)
    streams = [peer.open() for _ in range(12)]
    for stream in streams:
        stream.send(unfinished)
    # Eight of them fit.
    await until(lambda: sum(stream.is_ended for stream in streams) == 4)
    ended = [stream for stream in streams if stream.is_ended]
    for stream in ended:
        await stream.expect_error("SERVER_ERROR")
        await stream.expect_end()
    await until(lambda: held(broker) == 8 * len(unfinished))
    rest = [stream for stream in streams if not stream.is_ended]
    rest[0].send(bytes(99))  # completes the frame, which is not JSON
    await rest[0].expect_error("BAD_FRAME")

    assert "1" == (await peer.open().publish("t", b"1"))["message_id"]
    assert [False] * 7 == [stream.is_ended for stream in rest[1:]]


def held(broker: RunningBroker) -> int:
    """Return the bytes that all streams have received and not yet handled."""
    engine = broker.daemon.status.engine
    assert engine is not None
    return sum(connection._held_bytes() for connection in engine.connections)  # noqa: SLF001 - a peer cannot see memory


async def test_a_flooding_publisher_fills_no_more_than_its_buffers() -> None:
    """The broker stops reading from a publisher that reads no answers; others continue."""
    async with (
        broker_at(limits={"output_buffer_bytes": 100_000}) as broker,
        slow(broker.address("qumbed"), broker.fingerprint) as peer,
        connected(broker) as other,
    ):
        stream = peer.open()
        stream.send(publish("t", b"1"))
        await stream.frames(1)
        stream.pause()
        sent = 1
        flood = [publish("t", b"1")] * 100
        while stream.unsent_bytes() < 1_000_000:
            stream.send(*flood)
            sent += len(flood)
            await asyncio.sleep(0)
            assert sent < 100_000  # the broker must stop reading well before that
        await other.open().publish("u", b"1")
        # Everything read in one turn is answered before the limit is checked.
        assert sum(unsent(broker)) < 100_000 + 2 * READ_AHEAD_BYTES
        assert held(broker) < 3 * READ_AHEAD_BYTES
        stream.resume()

        assert [True] * (sent - 1) == [one["a"]["ok"] for one in await stream.frames(sent - 1)]
