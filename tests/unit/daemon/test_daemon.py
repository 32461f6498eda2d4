"""The daemon: full and failing disks, failed starts, and early snapshots."""

import errno
from pathlib import Path

import pytest

from braidmq.base.errors import AddressInUseError, DataDirInUseError
from braidmq.daemon import daemon
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.testing.disk import FakeDisk
from tests.integration import vibe_peer
from tests.integration.blip.peer import (
    NACK,
    PONG,
    ack,
    broker_at,
    connected,
    ping,
    publish,
    until,
)
from tests.integration.vibe.peer import ERROR

pytestmark = pytest.mark.asyncio

SMALL_LOG = {"segment_bytes": 64 * 1024}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    fake = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _, spare: fake)
    return fake


async def test_a_full_disk_refuses_and_recovers(disk: FakeDisk, tmp_path: Path) -> None:
    """Durable publishes get a 500 and ACKs use the reserve until there is room again."""
    async with broker_at(tmp_path, wal=SMALL_LOG) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"before")
        tag, _ = await peer.take(subscription)
        disk.capacity = disk.used_bytes
        peer.send(publish(7, "t", bytes(40_000)), ping(8))
        answers = [await peer.next(), await peer.next()]
        assert [(NACK, 7), (PONG, 8)] == [answer[:2] for answer in answers]
        assert answers[0].payload[4:].startswith(b"durable publish failed: ")
        assert broker.daemon.status.metrics().wal_full
        await peer.acknowledge(subscription, tag)
        disk.capacity = None
        await until(lambda: not broker.daemon.status.metrics().wal_full)
        await peer.publish("t", b"after")

        assert b"after" == (await peer.take(subscription))[1]


async def test_a_failing_disk_ends_the_daemon(disk: FakeDisk, tmp_path: Path) -> None:
    """The publisher gets a 500, the daemon is no longer ready, and the exit code is 74."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        disk.fail("fdatasync", errno.EIO, forever=True)
        peer.send(publish(7, "t", b"x"))
        answer = await peer.next()
        await broker.daemon.ended.wait()

        assert (NACK, 7) == answer[:2]
        assert broker.daemon.failure is not None
        assert 74 == broker.daemon.failure.exit_code
        assert broker.daemon.status.unready_reason()


async def test_acknowledgements_on_a_full_disk_survive_a_restart(
    disk: FakeDisk, tmp_path: Path
) -> None:
    """The reserve makes them durable."""
    async with broker_at(tmp_path, wal=SMALL_LOG) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"1", b"2")
        tag, _ = await peer.take(subscription)
        disk.capacity = disk.used_bytes
        peer.send(publish(7, "t", bytes(40_000)), ack(tag, subscription), ping(8))
        assert (NACK, 7) == (await peer.next())[:2]
        assert (PONG, 8) == (await peer.next())[:2]
        # The broker stops with the disk still full.
    disk.capacity = None
    async with broker_at(tmp_path, wal=SMALL_LOG) as broker, connected(broker) as peer:
        assert b"2" == (await peer.take(subscription))[1]
        assert None is await peer.poll(subscription)


async def test_what_a_pong_confirms_on_a_full_disk_survives_a_kill(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each rejection is a committed dead letter, or has its Error; then the message is back."""
    ids = [f"m{number}" for number in range(20)]
    running = broker_at(tmp_path, wal=SMALL_LOG)
    async with running as broker, vibe_peer.connected(broker) as peer:
        peer.send(vibe_peer.create("c", "q", maxRetryAttempts="100"))
        await peer.reply("c")
        await peer.subscribe("q")
        await peer.publish_all("q", ids, b'"' + 300 * b"x" + b'"')
        await peer.deliveries(len(ids))
        disk.capacity = disk.used_bytes + 2000
        for each in ids:
            peer.send(vibe_peer.ack(each, result="reject"), vibe_peer.ping("p" + each))
        answers = [await peer.next() for _ in ids]
        while answers[-1].id != "p" + ids[-1]:
            answers.append(await peer.next())
        left = disk.kill()
    left.capacity = None
    monkeypatch.setattr(daemon, "Disk", lambda _, spare: left)
    refused = {answer.id for answer in answers if answer.kind == ERROR}
    assert refused
    running = broker_at(tmp_path, wal=SMALL_LOG)
    async with running as broker, vibe_peer.connected(broker) as peer:
        await peer.subscribe("q")
        back = {message.id for message in await peer.deliveries(len(refused))}
        letters = (await peer.info("dlq.q")).get("messageCount", 0)

        assert refused == back
        assert len(ids) - len(refused) == letters


async def test_stop_undoes_a_start_that_failed(tmp_path: Path) -> None:
    """Everything that had been started is stopped, and the lock is released."""
    async with broker_at() as other:
        host, port = other.address()
        taken = {"host": host, "port": port}
        config = {"data_dir": tmp_path, "dev": True, "blip": taken, "http": {"port": 0}}
        failing = Daemon(Config.model_validate(config))
        with pytest.raises(AddressInUseError):
            await failing.start()
        await failing.stop()
    async with broker_at(tmp_path):
        pass


async def test_a_daemon_that_did_not_get_the_lock_leaves_it_alone(tmp_path: Path) -> None:
    """Stopping the second broker takes nothing from the first."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        second = Daemon(Config(data_dir=tmp_path, dev=True))
        with pytest.raises(DataDirInUseError):
            await second.start()
        await second.stop()
        with pytest.raises(DataDirInUseError):
            await Daemon(Config(data_dir=tmp_path, dev=True)).start()

        assert (tmp_path / daemon.RUN_FILE).exists()
        await peer.publish("t", b"x")


async def test_many_records_trigger_an_early_snapshot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The recovery of a busy broker is bounded by records, not only by the interval."""
    monkeypatch.setattr(daemon, "SNAPSHOT_RECORDS", 10)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        for number in range(12):
            await peer.publish("t", bytes([number]))

        await until(lambda: any((tmp_path / "snapshot").glob("*.snap")))
