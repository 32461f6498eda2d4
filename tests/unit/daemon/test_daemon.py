"""The daemon: full and failing disks, failed starts, and early snapshots."""

import errno
from pathlib import Path

import pytest

from braidmq.base.errors import AddressInUseError, DataDirInUseError
from braidmq.daemon import daemon
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.testing.disk import FakeDisk
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

pytestmark = pytest.mark.asyncio

SMALL_LOG = {"segment_bytes": 64 * 1024}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    fake = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _: fake)
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
