"""Publish: its Ack, its id, how many streams get it, and when the broker refuses it."""

import errno
import threading
from pathlib import Path

import pytest

from braidmq.daemon import daemon
from braidmq.testing.broker import RunningBroker
from braidmq.testing.disk import FakeDisk
from tests.integration.blip.peer import broker_at, until
from tests.integration.qumbed.peer import (
    ALICE,
    BOB,
    FRAME_MAX,
    Peer,
    ack,
    connected,
    core,
    opened,
    public,
    publish,
    sealed,
    subscribe,
)
from tests.integration.vibe import peer as vibe

pytestmark = pytest.mark.asyncio


async def test_an_ack_carries_the_brokers_id(peer: Peer) -> None:
    """`message_id` is the broker's id in decimal; `delivered` counts streams."""
    stream = peer.open()

    assert ack("1", 0) == await stream.ask(publish("t", b"1"))
    assert ack("2", 0) == await stream.ask(publish("t", b""))


async def test_an_ack_carries_the_clients_id_if_given(peer: Peer) -> None:
    """`message_id` is then the client's id."""
    stream = peer.open()

    assert ack('é"1', 0) == await stream.ask(publish("t", b"1", frame_id='é"1'))


async def test_an_ack_follows_the_commit(
    peer: Peer, broker: RunningBroker, may_sync: threading.Event
) -> None:
    """No subscriber gets a message before it is durable, either."""
    reader, writer = peer.open(), peer.open()
    await reader.subscribe("t", ALICE)
    may_sync.clear()
    writer.send(publish("t", b"1"))
    await until(lambda: core(broker).outgoing.bytes)
    await reader.ask(subscribe("other", public(ALICE)))
    assert b"" == bytes(writer.buffer)
    assert b"" == bytes(reader.buffer)
    may_sync.set()
    await writer.expect(ack("1", 1))

    assert b"1" == opened(await reader.message(), ALICE)


async def test_delivered_counts_the_streams_that_a_message_was_routed_to(
    broker: RunningBroker,
) -> None:
    """Streams of any connection, the publisher's own included, each once."""
    async with connected(broker) as one, connected(broker) as two:
        streams = [one.open(), one.open(), two.open()]
        for stream in streams:
            await stream.subscribe("t", ALICE)
        await streams[0].subscribe("other", ALICE)

        assert ack("1", 3) == await streams[0].ask(publish("t", b"1"))
        assert ack("2", 1) == await two.open().ask(publish("other", b"1"))
        assert ack("3", 0) == await two.open().ask(publish("third", b"1"))


async def test_a_duplicate_is_acknowledged_and_not_stored(
    broker: RunningBroker, peer: Peer
) -> None:
    """Same id, sender key and topic within the window, from whichever stream."""
    one, two = peer.open(), peer.open()
    await one.subscribe("t", BOB)
    box = sealed(b"1", ALICE, BOB)
    first = publish("t", box, sender=public(ALICE), frame_id="x")
    assert ack("x", 1) == await two.ask(first)
    assert ack("x", 0) == await two.ask(first)
    assert ack("x", 0) == await peer.open().ask(first)
    async with connected(broker) as other:
        assert ack("x", 0) == await other.open().ask(first)
    assert b"1" == opened(await one.message(), BOB)
    await one.expect_silence()

    assert 1 == core(broker).stats.published
    assert 3 == core(broker).stats.duplicates


async def test_pipelined_duplicates_are_stored_once(broker: RunningBroker, peer: Peer) -> None:
    """Even while the first is still being committed, on several streams at once."""
    streams = [peer.open() for _ in range(4)]
    for stream in streams:
        stream.send(*[publish("t", b"1", frame_id="x")] * 5)
    for stream in streams:
        await stream.expect(*[ack("x", 0)] * 5)

    assert 1 == core(broker).stats.published


async def test_ids_are_scoped_to_sender_topic_and_window(
    broker: RunningBroker, peer: Peer
) -> None:
    """Another sender, another topic or a later time makes it another message."""
    stream = peer.open()
    box = sealed(b"1", ALICE, BOB)
    for sender in (ALICE, BOB):
        for topic in ("t", "u"):
            await stream.publish(topic, box, sender=public(sender), frame_id="x")
    await stream.publish("t", b"1", frame_id="x")
    assert 5 == core(broker).stats.published
    broker.clock.advance(121.0)
    await stream.publish("t", box, sender=public(ALICE), frame_id="x")

    assert 6 == core(broker).stats.published


async def test_a_duplicate_is_recognised_after_a_restart(tmp_path: Path) -> None:
    """The log keeps the deduplication window."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        await peer.open().publish("t", b"1", frame_id="x" * 16)
        clock = broker.clock
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        again = publish("t", b"1", frame_id="x" * 16)
        assert ack("x" * 16, 0) == await peer.open().ask(again)

        assert 1 == core(broker).stats.duplicates


async def test_long_ids_are_compared_to_the_end(broker: RunningBroker, peer: Peer) -> None:
    """Two ids of 256 bytes that differ only in the last byte are different."""
    stream = peer.open()
    for last in "aab":
        frame_id = "x" * 255 + last
        await stream.publish("t", b"1", frame_id=frame_id)

    assert 2 == core(broker).stats.published


async def test_a_message_too_large_for_a_frame_is_refused(peer: Peer) -> None:
    """FRAME_TOO_LARGE; the stream stays open. Sealing adds 40 bytes to a plain payload."""
    stream = peer.open()
    await stream.subscribe("t", ALICE)
    size = 3 * (FRAME_MAX - 400) // 4
    fits = next(n for n in range(size, 0, -1) if len(publish("t", bytes(n))) < FRAME_MAX - 250)
    assert ack("1", 1) == await stream.ask(publish("t", bytes(fits)))
    assert bytes(fits) == opened(await stream.message(), ALICE)
    stream.send(publish("t", bytes(FRAME_MAX * 3 // 4 - 200), frame_id="x"))
    await stream.expect_error("FRAME_TOO_LARGE", "x")

    assert ack("2", 1) == await stream.ask(publish("t", b"1"))


async def test_without_durability_nothing_is_logged(tmp_path: Path) -> None:
    """qumbed.durable = false: in memory only, without an id, acknowledged at once."""
    async with (
        broker_at(tmp_path, qumbed={"durable": False}) as broker,
        connected(broker) as peer,
    ):
        stream = peer.open()
        stream.send(subscribe("t", public(ALICE)), publish("t", b"1"))
        await stream.expect(ack(), ack("", 1))
        message = await stream.message()
        assert b"1" == opened(message, ALICE)
        assert "" == message["m"]["id"]
        assert ack("x", 1) == await stream.ask(publish("t", b"2", frame_id="x"))

        assert 0 == core(broker).committed_id


async def test_a_full_log_refuses_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SERVER_ERROR on every stream until the log has room again."""
    disk = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _, spare: disk)
    small = {"segment_bytes": 64 * 1024}
    async with broker_at(tmp_path, wal=small) as broker, connected(broker) as peer:
        one, two = peer.open(), peer.open()
        await two.subscribe("t", ALICE)
        disk.capacity = disk.used_bytes
        one.send(publish("t", bytes(40_000), frame_id="x"), publish("t", b"2"))
        await one.expect_error("SERVER_ERROR", "x")
        await one.expect_error("SERVER_ERROR")
        two.send(publish("t", b"3"))
        await two.expect_error("SERVER_ERROR")
        disk.capacity = None
        await until(lambda: not broker.daemon.status.metrics().wal_full)
        # The refused publish was not stored, so its id is free.
        assert ack("x", 1) == await one.ask(publish("t", b"1", frame_id="x"))

        assert b"1" == opened(await two.message(), ALICE)


async def test_a_failing_log_refuses_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SERVER_ERROR, as the outcome is unknown; then the broker ends."""
    disk = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _, spare: disk)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        stream = peer.open()
        await stream.publish("t", b"1")
        disk.fail("fdatasync", errno.EIO, forever=True)
        stream.send(publish("t", b"2"))
        await stream.expect_error("SERVER_ERROR")
        await broker.daemon.ended.wait()


async def test_a_full_queue_applies_its_overflow_strategy(
    broker: RunningBroker, peer: Peer
) -> None:
    """A queue's limit applies to every strand: SERVER_ERROR, or a redirect to the DLQ."""
    stream = peer.open()
    async with vibe.connected(broker, vibe.V1_1) as other:
        await other.create("q", maxQueueSize=1, overflowStrategy="DropNewest")
        await other.create("r", maxQueueSize=1, overflowStrategy="RedirectToDlq")
        await stream.publish("q", b"1")
        stream.send(publish("q", b"2", frame_id="x"))
        assert "queue full" == await stream.expect_error("SERVER_ERROR", "x")
        await stream.publish("r", b"1")
        await stream.publish("r", b"2")
        await other.subscribe("dlq.r")

        assert b"2" == (await other.delivered()).payload


async def test_a_queue_that_blocks_publishers_blocks_the_stream(
    broker: RunningBroker, peer: Peer
) -> None:
    """BlockPublisher: this stream waits for room, other streams continue."""
    one, two = peer.open(), peer.open()
    async with vibe.connected(broker, vibe.V1_1) as other:
        await other.create("q", maxQueueSize=1, overflowStrategy="BlockPublisher")
        await one.publish("q", b"1")
        one.send(publish("q", b"2", frame_id="2"), publish("t", b"3", frame_id="3"))
        await two.publish("t", b"1")
        await two.expect_silence()
        assert b"" == bytes(one.buffer)
        await other.subscribe("q", 1)
        assert b"1" == (await other.delivered()).payload
        await one.expect(ack("2", 0), ack("3", 0))


async def test_many_streams_can_publish_at_once(broker: RunningBroker, peer: Peer) -> None:
    """Each is answered in its own order, and the broker stores nothing twice."""
    streams = [peer.open() for _ in range(20)]
    for number in range(25):
        for stream in streams:
            stream.send(publish(f"t{number % 3}", b"x" * number, frame_id=f"{number}"))
    for stream in streams:
        found = [(await stream.next())["a"]["message_id"] for _ in range(25)]
        assert [str(number) for number in range(25)] == found

    assert 25 == core(broker).stats.published
