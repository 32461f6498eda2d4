"""The fence: a PONG says that everything before it is durable, and what may pass meanwhile."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.wal.disk import DiskFile
from tests.integration.blip.peer import (
    STATS,
    ack,
    broker_at,
    connected,
    frame,
    nack,
    not_found,
    ping,
    poll,
    pong,
    publish,
    subscribe,
    unsubscribe,
    until,
)

pytestmark = pytest.mark.asyncio


class SlowDisk:
    """A disk whose syncs take until the test lets them pass."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait(self) -> None:
        assert self._open.wait(15)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    really = DiskFile.fdatasync

    def fdatasync(file: DiskFile) -> None:
        disk.wait()
        really(file)

    monkeypatch.setattr(DiskFile, "fdatasync", fdatasync)
    yield disk
    disk.release()


def uncommitted(broker: RunningBroker) -> int:
    engine = broker.daemon.status.engine
    assert engine is not None
    return len(engine.broker.outgoing.pending())


def in_flight(broker: RunningBroker) -> int:
    return broker.daemon.status.metrics().messages_inflight


async def test_pong_waits_for_the_commit(slow_disk: SlowDisk) -> None:
    """PONG after every earlier PUBLISH of this connection is committed; others do not wait."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        slow_disk.hold()
        peer.send(publish(1, "t", b"x"), ping(2))
        await until(lambda: uncommitted(broker) == 1)
        await other.expect_silence()

        assert b"" == peer.unread
        slow_disk.release()
        await peer.expect(pong(2))


async def test_nothing_is_delivered_before_it_is_durable(slow_disk: SlowDisk) -> None:
    """A message that could be lost again is not shown to anybody."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await other.subscribe("t")
        slow_disk.hold()
        peer.send(publish(1, "t", b"x"))
        await until(lambda: uncommitted(broker) == 1)

        assert None is await other.poll(subscription)
        slow_disk.release()
        await peer.expect_silence()
        assert b"x" == (await other.take(subscription))[1]


async def test_while_a_pong_waits_publish_and_ack_pass_and_the_rest_waits(
    slow_disk: SlowDisk,
) -> None:
    """Later PUBLISH and ACK are accepted; every other frame waits its turn."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"one")
        tag, _ = await peer.take(subscription)
        slow_disk.hold()
        peer.send(publish(1, "t", b"two"), ping(2))
        await until(lambda: uncommitted(broker) > 0)
        before = uncommitted(broker)
        peer.send(
            ack(tag, subscription),
            publish(3, "t", b"three"),
            publish(4, "", b"refused"),
            ping(5),
            poll(6, subscription),
            subscribe(7, "t"),
            publish(8, "t", b"four"),
        )
        await until(lambda: in_flight(broker) == 0 and uncommitted(broker) > before)
        await other.expect_silence()

        assert b"" == peer.unread
        slow_disk.release()
        await peer.expect(pong(2), nack(4, 400, "empty topic"), pong(5))
        await peer.expect(publish(tag + 1, "t", b"two"))
        answer = await peer.next()
        assert 7 == answer.correlation_id
        await peer.expect_silence()
        assert b"three" == (await peer.take(subscription))[1]
        assert b"four" == (await peer.take(int.from_bytes(answer.payload, "big")))[1]


async def test_subscribe_is_acknowledged_after_its_commit(slow_disk: SlowDisk) -> None:
    """ACK of a new id comes after the subscription's own record is committed."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        slow_disk.hold()
        peer.send(subscribe(1, "t", 0))
        await until(lambda: uncommitted(broker) == 1)
        await other.expect_silence()

        assert b"" == peer.unread
        slow_disk.release()
        await peer.expect(ack(1, 1))


async def test_a_bad_frame_behind_a_waiting_pong_lets_it_come(slow_disk: SlowDisk) -> None:
    """The connection is closed after the PONG, not instead of it."""
    async with broker_at() as broker, connected(broker) as peer:
        slow_disk.hold()
        peer.send(publish(1, "t", b"x"), ping(2), b"\x00\x00\x00\x00")
        await until(lambda: uncommitted(broker) == 1)
        slow_disk.release()
        await peer.expect(pong(2))
        await peer.expect_close()


async def test_half_close_behind_a_waiting_pong_lets_everything_come(
    slow_disk: SlowDisk,
) -> None:
    """What waits for the log at half-close is answered: PONG, POLL, SUBSCRIBE."""
    async with broker_at() as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        slow_disk.hold()
        peer.send(publish(1, "t", b"x"), ping(2), poll(3, subscription), subscribe(4, "t"))
        peer.finish()
        await until(lambda: uncommitted(broker) == 1)
        slow_disk.release()
        await peer.expect(pong(2), publish(2, "t", b"x"), ack(4, 3))
        await peer.expect_close()


async def test_a_fence_does_not_wait_for_others(slow_disk: SlowDisk) -> None:
    """PING asks about this connection's own frames; STATS and POLL need no commit either."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        slow_disk.hold()
        peer.send(*(publish(1, "t", b"x") for _ in range(100)))
        await until(lambda: uncommitted(broker) == 100)
        other.send(ping(1), frame(STATS, 2), poll(3, 77), ping(4))
        await other.expect(pong(1))
        assert 2 == (await other.next()).correlation_id
        await other.expect(not_found(3), pong(4))
        slow_disk.release()
        await peer.expect_silence()


async def test_a_publisher_that_leaves_at_once_is_still_heard(slow_disk: SlowDisk) -> None:
    """A durable PUBLISH that came in whole is kept, though nobody waits for its fence."""
    async with (
        broker_at() as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await other.subscribe("t")
        slow_disk.hold()
        peer.send(publish(1, "t", b"last words"), ping(2))
        await until(lambda: uncommitted(broker) == 1)
        await peer.leave()
        slow_disk.release()
        await until(lambda: uncommitted(broker) == 0)

        assert b"last words" == (await other.take(subscription))[1]


async def test_after_a_pong_a_crash_loses_nothing(tmp_path: Path) -> None:
    """PUBLISH, SUBSCRIBE, ACK and UNSUBSCRIBE before a PONG are there after a crash."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with broker_at(running) as broker, connected(broker) as peer:
        kept = await peer.subscribe("t")
        ended = await peer.subscribe("t")
        await peer.publish("t", b"acknowledged", b"open", b"waiting")
        first, _ = await peer.take(kept)
        second, _ = await peer.take(kept)
        peer.send(ack(first, kept), unsubscribe(5, ended), publish(6, "t", b"last"), ping(7))
        await peer.expect(ack(5, ended), pong(7))
        shutil.copytree(running, crashed)
    async with broker_at(crashed) as broker, connected(broker) as peer:
        assert (second, b"open") == await peer.take(kept)
        assert b"waiting" == (await peer.take(kept))[1]
        assert b"last" == (await peer.take(kept))[1]
        peer.send(ack(first, kept), poll(8, ended))
        await peer.expect(not_found(first), not_found(8))


async def test_a_pong_covers_an_ack_of_another_connections_delivery(tmp_path: Path) -> None:
    """The fence is about the frames of this connection, whoever had received the message."""
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with (
        broker_at(running) as broker,
        connected(broker) as peer,
        connected(broker) as other,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"x")
        tag, _ = await peer.take(subscription)
        await other.acknowledge(subscription, tag)
        shutil.copytree(running, crashed)
    async with broker_at(crashed) as broker, connected(broker) as peer:
        assert None is await peer.poll(subscription)
