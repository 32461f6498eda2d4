"""Limits: what one peer, or many, cannot do to the broker and to others."""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from braidmq.testing.broker import RunningBroker
from braidmq.wal.disk import DiskFile
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
"""What an event loop reads from a socket at once."""


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with broker_at() as running:
        yield running


def connections(broker: RunningBroker) -> int:
    return broker.daemon.status.metrics().connections["blip"]


def refused(broker: RunningBroker, why: str) -> int:
    return broker.daemon.status.metrics().connections_refused.get(why, 0)


def unsent(broker: RunningBroker) -> int:
    return sum(wire.unsent_bytes() for wire in listener(broker)._wires)  # noqa: SLF001 - not for peers to see


# Strangers.


async def test_a_strangers_frame_of_4096_is_read(broker: RunningBroker) -> None:
    """Before authentication `length` may be at most 4,096, which is legal itself."""
    key = "k" * (UNAUTHENTICATED_MAX - 9 - 2)
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2, key))
        await peer.expect(ack(1, 0), nack(2, 401, "invalid API key"))


@pytest.mark.parametrize("greeted", [False, True])
async def test_a_strangers_frame_of_4097_closes(broker: RunningBroker, greeted: bool) -> None:
    """One more is too many: closed as soon as the length is in, without a reply."""
    async with stranger(broker) as peer:
        if greeted:
            peer.send(hello(1))
            await peer.expect(ack(1, 0))
        peer.send(struct.pack(">IB", UNAUTHENTICATED_MAX + 1, AUTH))
        await peer.expect_close()


async def test_the_length_is_judged_after_all_earlier_frames(broker: RunningBroker) -> None:
    """A large PUBLISH pipelined right behind a good AUTH is a known peer's."""
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2), publish(3, "t", bytes(100_000)), ping(4))
        await peer.expect(ack(1, 0), ack(2, 0), pong(4))


async def test_a_large_frame_behind_a_refused_auth_closes(broker: RunningBroker) -> None:
    """The refusal is answered first; the frame behind it is a stranger's."""
    async with stranger(broker) as peer:
        peer.send(hello(1), auth(2, "wrong"), publish(3, "t", bytes(5_000)), ping(4))
        await peer.expect(ack(1, 0), nack(2, 401, "invalid API key"))
        await peer.expect_close()


async def test_a_stranger_has_an_absolute_deadline() -> None:
    """Past `limits.handshake_timeout_s` from accept: closed, however busy it has been."""
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


async def test_above_the_connection_limit_close_on_accept() -> None:
    """`limits.connections`: the next one is closed; when one leaves there is room again."""
    async with broker_at(limits={"connections": 2}) as broker:
        async with connected(broker) as first:
            async with connected(broker), stranger(broker) as third:
                await third.expect_close()
                await first.expect_silence()
            await until(lambda: connections(broker) == 1)
            async with connected(broker):
                pass

        assert 1 == refused(broker, "connections")


async def test_one_address_may_not_have_them_all() -> None:
    """`limits.connections_per_ip` counts each address by itself."""
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


async def test_a_silent_connection_is_closed_when_that_is_configured() -> None:
    """`limits.idle_timeout_s`: whoever says nothing goes, also one that does not read."""
    async with (
        broker_at(limits={"idle_timeout_s": 1.0}) as broker,
        connected(broker) as deaf,
    ):
        subscription = await deaf.subscribe("t")
        await deaf.publish("t", bytes(14_000_000))  # more than the kernel takes
        deaf.transport.pause_reading()
        deaf.send(poll(5, subscription))
        await until(lambda: unsent(broker) > 0)
        async with connected(broker) as active, connected(broker) as silent:
            async with asyncio.timeout(20):
                while connections(broker) > 1:
                    await active.expect_silence()
            await silent.expect_close()

            assert 2 == refused(broker, "idle")


async def test_silence_is_allowed_by_default(broker: RunningBroker) -> None:
    """`limits.idle_timeout_s` 0 is off."""
    async with connected(broker) as silent:
        for wire in listener(broker)._wires:  # noqa: SLF001 - a day cannot be waited for
            wire.heard_at -= 86_400
        listener(broker).close_idle()
        await silent.expect_silence()


# Rate.


async def test_above_the_rate_a_publisher_waits_and_loses_nothing() -> None:
    """`limits.messages_per_s`: that connection is not read from for a while, others are."""
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


async def test_a_publisher_above_the_rate_is_not_read_from() -> None:
    """What it goes on sending stays in its own buffers, not in ours."""
    async with (
        broker_at(limits={"messages_per_s": 1}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        peer.send(*(publish(1, "t", bytes(1000), 0) for _ in range(20_000)))
        for _ in range(20):
            await other.expect_silence()
        held = sum(
            connection._held_bytes()  # noqa: SLF001 - memory cannot be seen by a peer
            for connection in listener(broker)._wires.values()  # noqa: SLF001 - as above
        )

        assert held <= 3 * READ_BYTES


# The output buffer.


async def test_a_peer_that_never_reads_is_not_served_without_end() -> None:
    """Output buffer full: stop reading that connection; everything comes once it reads."""
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
    """Output buffer full: stop pushing to that connection; others get the messages."""
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


async def test_one_frame_passes_however_large() -> None:
    """A message larger than the output buffer is delivered, by POLL and by CREDIT."""
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


async def test_replies_to_a_peer_that_never_reads_are_bounded() -> None:
    """A flood of small questions stops being read when the answers pile up."""
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
            # One read's worth of 13-byte questions has 53-byte answers.
            assert unsent(broker) <= bound + 5 * READ_BYTES


# Slow peers.


async def test_half_a_frame_holds_nobody_up(broker: RunningBroker) -> None:
    """A large frame that never ends costs its sender, not the others."""
    async with connected(broker) as slow, connected(broker) as other:
        slow.send(publish(1, "t", bytes(1_000_000))[:500_000])
        await other.publish("t", b"x")
        slow.send(bytes(500_000)[:1])
        await other.expect_silence()


async def test_many_silent_strangers_hold_nobody_up(broker: RunningBroker) -> None:
    """Connections that say nothing do not keep a known peer from being served."""
    raw = [socket.create_connection(broker.address()) for _ in range(100)]
    try:
        async with connected(broker) as peer:
            subscription = await peer.subscribe("t")
            await peer.publish("t", b"x")
            assert b"x" == (await peer.take(subscription))[1]
    finally:
        for one in raw:
            one.close()


async def test_peers_that_vanish_leave_nothing_behind(broker: RunningBroker) -> None:
    """Connections, in-flight counts and credit of peers that are gone are gone as well."""
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


async def test_windows_keep_the_memory_budget() -> None:
    """`limits.max_memory_bytes`: what does not fit stays in the log, and is delivered."""
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
        assert held <= budget + topics * (size + 100)
        for subscription in subscriptions:
            for _ in range(count):
                tag, message = await peer.take(subscription)
                assert size == len(message)
                peer.send(ack(tag, subscription))
            assert None is await peer.poll(subscription)


@pytest.fixture
def held_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Syncs wait until this is set."""
    may_sync = threading.Event()
    may_sync.set()
    really = DiskFile.fdatasync

    def fdatasync(file: DiskFile) -> None:
        assert may_sync.wait(15)
        really(file)

    monkeypatch.setattr(DiskFile, "fdatasync", fdatasync)
    yield may_sync
    may_sync.set()


async def test_the_memory_budget_pauses_publishers(held_disk: threading.Event) -> None:
    """Memory budget reached: publishers are not read from until the log has caught up."""
    budget, size, count = 1_000_000, 10_000, 1000
    async with (
        broker_at(limits={"max_memory_bytes": budget}) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        held_disk.clear()
        peer.send(*(publish(1, "t", bytes(size)) for _ in range(count)), ping(2))
        await until(lambda: broker.daemon.status.metrics().memory_used_bytes >= budget)
        for _ in range(50):
            await other.expect_silence()
        assert broker.daemon.status.metrics().memory_used_bytes <= budget + size + 100
        held_disk.set()
        await peer.expect(pong(2))

        assert count == (await peer.stats())[2]
