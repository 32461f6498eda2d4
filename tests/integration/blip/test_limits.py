"""Limits: peers cannot exhaust the broker or harm each other."""

import asyncio
import socket
import struct
import threading

import pytest

from braidmq.server.engine.connection import READ_AHEAD_BYTES
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    AUTH,
    PUBLISH,
    STATS,
    Peer,
    ack,
    auth,
    broker_at,
    connected,
    credit,
    frame,
    hello,
    listener,
    nack,
    ping,
    poll,
    pong,
    publish,
    stranger,
    until,
)

pytestmark = pytest.mark.asyncio

UNAUTHENTICATED_MAX = 4096
READ_BYTES = 256 * 1024
"""The most that an event loop reads from a socket at once."""


def connections(broker: RunningBroker) -> int:
    return broker.daemon.status.metrics().connections["blip"]


def refused(broker: RunningBroker, reason: str) -> int:
    return broker.daemon.status.metrics().connections_refused.get(reason, 0)


def unsent(broker: RunningBroker) -> int:
    return sum(wire.unsent_bytes() for wire in listener(broker)._wires)  # noqa: SLF001 - not visible to a peer


# Before authentication.


async def test_an_unauthenticated_frame_may_have_4096_bytes(broker: RunningBroker) -> None:
    """That is the largest `length` before authentication."""
    key = "k" * (UNAUTHENTICATED_MAX - 9 - 2)
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2, key))
        await peer.expect(ack(1, 0), nack(2, 401, "invalid API key"))


@pytest.mark.parametrize("greeted", [False, True])
async def test_an_unauthenticated_frame_of_4097_bytes_closes_the_connection(
    broker: RunningBroker, greeted: bool
) -> None:
    """The broker closes as soon as it has the length, without a reply."""
    async with stranger(broker) as peer:
        if greeted:
            peer.send(hello(1))
            await peer.expect(ack(1, 0))
        peer.send(struct.pack(">IB", UNAUTHENTICATED_MAX + 1, AUTH))
        await peer.expect_close()


async def test_the_length_is_checked_after_all_earlier_frames(broker: RunningBroker) -> None:
    """A large PUBLISH pipelined right behind a good AUTH counts as authenticated."""
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2), publish(3, "t", bytes(100_000)), ping(4))
        await peer.expect(ack(1, 0), ack(2, 0), pong(4))


async def test_a_large_frame_behind_a_refused_auth_closes_the_connection(
    broker: RunningBroker,
) -> None:
    """The AUTH gets its reply first; the frame behind it counts as unauthenticated."""
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2, "wrong"), publish(3, "t", bytes(5_000)), ping(4))
        await peer.expect(ack(1, 0), nack(2, 401, "invalid API key"))
        await peer.expect_close()


async def test_the_handshake_timeout_counts_from_accept() -> None:
    """After `limits.handshake_timeout_s` the broker closes even a busy connection."""
    async with (
        broker_at(limits={"handshake_timeout_s": 0.3}) as broker,
        connected(broker) as known,
        stranger(broker) as silent,
        stranger(broker) as busy,
    ):
        busy.send(hello(1))
        await busy.expect(ack(1, 0))
        async with asyncio.timeout(20):
            while not busy.transport.is_closing():
                busy.send(ping(7))
                await asyncio.sleep(0.01)
        await until(silent.transport.is_closing)

        assert {nack(7, 401, "unauthenticated")[4:]} >= {busy.unread[4 : 4 + 9 + 19]}
        await known.expect_silence()
        assert 2 == refused(broker, "unauthenticated")


# Connections.


async def test_a_connection_above_the_limit_is_closed_on_accept() -> None:
    """`limits.connections`; once a client disconnects there is room again."""
    async with broker_at(limits={"connections": 2}) as broker:
        async with connected(broker) as first:
            async with connected(broker), stranger(broker) as third:
                await third.expect_close()
                await first.expect_silence()
            await until(lambda: connections(broker) == 1)
            async with connected(broker):
                pass

        assert 1 == refused(broker, "connections")


async def test_the_connections_of_one_address_are_limited() -> None:
    """`limits.connections_per_ip` counts each address separately."""
    loop = asyncio.get_running_loop()
    async with broker_at(limits={"connections_per_ip": 1}) as broker:
        async with connected(broker) as first, stranger(broker) as second:
            await second.expect_close()
            _, elsewhere = await loop.create_connection(
                Peer, *broker.address(), local_addr=("127.0.0.2", 0)
            )
            await elsewhere.log_in()
            await elsewhere.leave()
            await first.expect_silence()
        await until(lambda: connections(broker) == 0)
        async with connected(broker):
            pass

        assert 1 == refused(broker, "connections_per_ip")


async def test_an_idle_connection_is_closed_if_so_configured() -> None:
    """`limits.idle_timeout_s` applies to a client that does not read, too."""
    async with (
        broker_at(limits={"idle_timeout_s": 1.0}) as broker,
        connected(broker) as deaf,
    ):
        subscription = await deaf.subscribe("t")
        await deaf.publish("t", bytes(14_000_000))  # more than the kernel buffers
        deaf.transport.pause_reading()
        deaf.send(poll(5, subscription))
        await until(lambda: unsent(broker) > 0)
        async with connected(broker) as active, connected(broker) as silent:
            async with asyncio.timeout(20):
                while connections(broker) > 1:
                    await active.expect_silence()
            await silent.expect_close()

            assert 2 == refused(broker, "idle")


async def test_idle_connections_stay_open_by_default(broker: RunningBroker) -> None:
    """`limits.idle_timeout_s` is 0, which turns the timeout off."""
    async with connected(broker) as silent:
        for wire in listener(broker)._wires:  # noqa: SLF001 - a test cannot wait a day
            wire.heard_at -= 86_400
        listener(broker).close_idle()
        await silent.expect_silence()


# Rate.


async def test_a_publisher_above_the_rate_limit_waits_and_loses_nothing() -> None:
    """`limits.messages_per_s`: the broker pauses reading that connection, not others."""
    async with (
        broker_at(limits={"messages_per_s": 10}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await other.subscribe("t", 0)
        other.send(credit(9, subscription, 100))
        peer.send(*(publish(1, "t", b"%d" % number, 0) for number in range(25)), ping(2))
        seen = [(await other.next()).payload[4:] for _ in range(10)]
        await other.expect_silence()
        assert b"" == peer.unread
        broker.clock.advance(1)
        seen += [(await other.next()).payload[4:] for _ in range(10)]
        await other.expect_silence()
        assert b"" == peer.unread
        broker.clock.advance(1)
        seen += [(await other.next()).payload[4:] for _ in range(5)]
        await peer.expect(pong(2))

        assert [b"%d" % number for number in range(25)] == seen


async def test_the_broker_does_not_buffer_for_a_publisher_above_the_rate_limit() -> None:
    """What it keeps sending stays in its own socket buffers."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        peer.send(*(publish(1, "t", bytes(1000), 0) for _ in range(20_000)))
        for _ in range(20):
            await other.expect_silence()
        held = sum(
            connection._held_bytes()  # noqa: SLF001 - a peer cannot see memory
            for connection in listener(broker)._wires.values()  # noqa: SLF001 - as above
        )

        assert held <= 3 * READ_BYTES


# The output buffer.


async def test_replies_to_a_peer_that_never_reads_stop_at_the_output_buffer() -> None:
    """The broker stops reading that connection; once the peer reads, it gets everything."""
    size, count, bound = 50_000, 300, 200_000
    async with (
        broker_at(limits={"output_buffer_bytes": bound}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await peer.subscribe("t")
        await other.publish("t", *[bytes(size)] * count)
        peer.transport.pause_reading()
        peer.send(*(poll(7, subscription) for _ in range(count)), ping(8))
        await until(lambda: unsent(broker) > 0)
        for _ in range(20):
            await other.expect_silence()
            assert unsent(broker) <= bound + size + 100
        assert broker.daemon.status.metrics().messages_delivered < count
        peer.transport.resume_reading()
        for _ in range(count):
            assert PUBLISH == (await peer.next()).kind
        await peer.expect(pong(8))


async def test_pushes_to_a_peer_that_never_reads_stop() -> None:
    """Once its output buffer is full; other consumers get the messages."""
    size, count, bound = 50_000, 250, 200_000
    async with (
        broker_at(limits={"output_buffer_bytes": bound}) as broker,
        connected(broker) as deaf,
        connected(broker) as other,
    ):
        subscription = await deaf.subscribe("t")
        deaf.transport.pause_reading()
        deaf.send(credit(7, subscription, count))
        await other.publish("t", *[bytes(size)] * count)
        for _ in range(20):
            await other.expect_silence()
            assert unsent(broker) <= bound + size + 100
        pushed = broker.daemon.status.metrics().messages_delivered
        assert pushed < count
        other.send(credit(8, subscription, count))
        for _ in range(count - pushed):
            answer = await other.next()
            other.send(ack(answer.correlation_id, subscription))


async def test_one_frame_always_fits_into_the_output_buffer() -> None:
    """The broker delivers a message larger than the buffer, by POLL and by CREDIT."""
    async with (
        broker_at(limits={"output_buffer_bytes": 1000}) as broker,
        connected(broker) as peer,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", *[bytes(3_000_000)] * 4)
        for _ in range(2):
            assert 3_000_000 == len((await peer.take(subscription))[1])
        peer.send(credit(5, subscription, 2))
        for _ in range(2):
            assert 3_000_000 < len((await peer.next()).payload)


async def test_a_flood_of_small_requests_stops_when_the_replies_pile_up() -> None:
    """The broker stops reading a peer that does not read its replies."""
    bound = 100_000
    async with (
        broker_at(limits={"output_buffer_bytes": bound}) as broker,
        connected(broker) as flood,
        connected(broker) as other,
    ):
        flood.transport.pause_reading()
        flood.send(frame(STATS, 1) * 400_000)
        await until(lambda: unsent(broker) > 0)
        for _ in range(20):
            await other.expect_silence()
            # One read's worth of 13-byte requests has 53-byte replies.
            assert unsent(broker) <= bound + 5 * READ_BYTES


# Slow peers.


async def test_an_unfinished_frame_does_not_delay_other_clients(broker: RunningBroker) -> None:
    """A large frame that never ends delays only its sender."""
    async with connected(broker) as slow, connected(broker) as other:
        slow.send(publish(1, "t", bytes(1_000_000))[:500_000])
        await other.publish("t", b"x")
        slow.send(bytes(500_000)[:1])
        await other.expect_silence()


async def test_many_silent_connections_do_not_delay_a_client(broker: RunningBroker) -> None:
    """The broker serves an authenticated client beside 100 silent connections."""
    raw = [socket.create_connection(broker.address()) for _ in range(100)]
    try:
        async with connected(broker) as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"x")
            assert b"x" == (await peer.take(subscription))[1]
    finally:
        for one in raw:
            one.close()


async def test_disconnected_peers_leave_nothing_behind(broker: RunningBroker) -> None:
    """Their connections, in-flight counts and credit are gone as well."""
    async with connected(broker) as source:
        subscription = await source.subscribe("t")
        for number in range(30):
            async with connected(broker) as peer:
                peer.send(credit(1, subscription, 5))
                await peer.expect_silence()
                if number % 3 == 0:
                    peer.send(publish(2, "t", b"x" * 100)[:50])
        await until(lambda: connections(broker) == 1)
        await source.publish("t", b"x")
        metrics = broker.daemon.status.metrics()

        assert (0, 0) == (metrics.messages_inflight, metrics.messages_delivered)
        assert 0 == sum(metrics.connections_refused.values())


# Memory.


async def test_windows_stay_within_the_memory_budget() -> None:
    """`limits.max_memory_bytes`: what does not fit stays in the log until it is delivered."""
    budget, size, topics, count = 1_000_000, 50_000, 12, 10
    async with (
        broker_at(limits={"max_memory_bytes": budget}) as broker,
        connected(broker) as peer,
    ):
        subscriptions = [await peer.subscribe(f"t{topic}") for topic in range(topics)]
        for topic in range(topics):
            await peer.publish(f"t{topic}", *[bytes(size)] * count)

        # One message always fits into each window, however small the budget is.
        held = broker.daemon.status.metrics().memory_used_bytes
        assert held <= budget + topics * (size + 300)
        for subscription in subscriptions:
            for _ in range(count):
                tag, message = await peer.take(subscription)
                assert size == len(message)
                peer.send(ack(tag, subscription))
            assert None is await peer.poll(subscription)


async def test_the_memory_budget_pauses_publishers(may_sync: threading.Event) -> None:
    """The broker stops reading from publishers until the log has caught up."""
    budget, size, count = 1_000_000, 10_000, 1000
    async with (
        broker_at(limits={"max_memory_bytes": budget}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        may_sync.clear()
        peer.send(*(publish(1, "t", bytes(size)) for _ in range(count)), ping(2))
        await until(lambda: broker.daemon.status.metrics().memory_used_bytes >= budget)
        for _ in range(50):
            await other.expect_silence()
        # What was read of a publisher that waits counts as well.
        read_ahead = 2 * READ_AHEAD_BYTES
        used = broker.daemon.status.metrics().memory_used_bytes
        assert used <= budget + size + 100 + read_ahead
        may_sync.set()
        await peer.expect(pong(2))

        assert count == (await peer.stats())[2]
