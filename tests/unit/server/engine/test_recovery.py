"""Recovery: a broker rebuilt from a snapshot and the records after it."""

from pathlib import Path

import pytest

from braidmq.base.errors import DamagedLogError
from braidmq.broker import records, state
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.topics import Message
from braidmq.server.config.config import Config
from braidmq.server.engine.recovery import Recovered, readers_place, recover, settings_of
from braidmq.testing.disk import FakeDisk
from braidmq.wal import snapshots
from braidmq.wal.floor import FLOOR_PATH, Floor, write_floor
from braidmq.wal.maintenance.repair import repair
from braidmq.wal.segment import list_segments, segment_path

NOW_US = 5_000_000


def recovered(disk: FakeDisk, config: Config | None = None) -> Recovered:
    return recover(disk, config or Config(), now_us=NOW_US, clock=lambda: 0.0)


def write(found: Recovered) -> None:
    """Write and commit the broker's pending records."""
    found.wal.append(found.broker.take_records())
    found.broker.committed(found.wal.commit(NOW_US), NOW_US)


def publish(broker: Broker, topic: str, payload: bytes) -> int:
    named = broker.topics.get(topic)
    assert named is not None
    body = len(named.raw).to_bytes(2, "big") + named.raw + payload
    return broker.publish(Message(named, 1, body), NOW_US)


def subscribe(broker: Broker, topic: str) -> int:
    peer = Peer()
    peer.principal = Principal("client", publish=["*"], subscribe=["*"])
    named = broker.topics.get(topic)
    assert named is not None
    return broker.subscribe(peer, named, 1, NOW_US)


def facts(broker: Broker) -> tuple[object, ...]:
    rows = [(t.name, t.message_count, t.last_id) for t in broker.topics.all()]
    return (
        rows,
        sorted(broker.subscriptions.by_id),
        broker.committed_id,
        broker.outgoing.next_id,
    )


def test_settings_are_converted_to_the_brokers_units(tmp_path: Path) -> None:
    """Milliseconds and seconds become microseconds; a strand's section wins."""
    config = Config.model_validate(
        {
            "delivery": {"retry_backoff_ms": 7, "message_ttl_ms": 9, "max_retries": 3},
            "blip": {"max_retries": 4, "subscription_lease_s": 1.5},
            "limits": {"max_memory_bytes": 1234},
        }
    )
    settings = settings_of(config)

    assert (7_000, 9_000, 4) == (
        settings.retry_backoff_us,
        settings.message_ttl_us,
        settings.max_retries,
    )
    assert (1_500_000, 1234) == (settings.lease_us, settings.memory_bytes)


def test_qumbed_settings_reach_the_broker() -> None:
    """How long it keeps an offline subscriber, how it routes, and whether the gateway is on."""
    usual = settings_of(Config())
    other = settings_of(
        Config.model_validate({"qumbed": {"offline_s": 1.5, "route": "all", "gateway": "off"}})
    )

    assert [(0, False, False), (1_500_000, True, True)] == [
        (one.offline_us, one.qumbed_route_all, one.qumbed_gateway_off) for one in (usual, other)
    ]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_recovery_rebuilds_the_same_broker(with_snapshot: bool) -> None:
    """From the records alone, or from a snapshot and the records after it."""
    disk = FakeDisk()
    found = recovered(disk)
    subscribe(found.broker, "t")
    publish(found.broker, "t", b"1")
    write(found)
    if with_snapshot:
        last_id, body = state.snapshot(found.broker, NOW_US)
        snapshots.save(disk, last_id, body)
    publish(found.broker, "t", b"2")
    publish(found.broker, "u", b"3")
    write(found)
    found.wal.close()
    again = recovered(disk)

    assert facts(found.broker) == facts(again.broker)
    assert (2 if with_snapshot else 4) == again.wal.recovered.replayed_records
    assert [] == again.snapshots_rejected


def test_a_bad_snapshot_is_set_aside_and_named() -> None:
    """The records are enough; the bad file is reported, not deleted."""
    disk = FakeDisk()
    found = recovered(disk)
    publish(found.broker, "t", b"1")
    write(found)
    snapshots.save(disk, *state.snapshot(found.broker, NOW_US))
    (path,) = (one for one in disk.paths() if "snap" in one)
    disk.put(path, disk.content(path)[:-1] + b"?")
    found.wal.close()
    again = recovered(disk)

    assert facts(found.broker) == facts(again.broker)
    assert 1 == len(again.snapshots_rejected)
    assert disk.exists(again.snapshots_rejected[0])


def test_a_damaged_log_prevents_startup() -> None:
    """A single committed record that cannot be read is enough."""
    disk = FakeDisk()
    found = recovered(disk)
    for number in range(3):
        publish(found.broker, "t", b"canary%d" % number)
        write(found)
    found.wal.close()
    (path,) = (one for one in disk.paths() if one.endswith(".wal"))
    disk.put(path, disk.content(path).replace(b"canary0", b"CANARY0"))
    with pytest.raises(DamagedLogError) as caught:
        recovered(disk)

    assert 65 == caught.value.exit_code


def test_a_repaired_log_keeps_everything_but_the_accepted_loss() -> None:
    """The broker knows the gap record that a repair writes; only its ids are lost."""
    disk = FakeDisk()
    found = recovered(disk)
    ids = [publish(found.broker, "orders", bytes([n])) for n in range(3)]
    write(found)
    found.wal.close()
    log = disk.open("wal/00000000000000000001.wal", write=True, create=False)
    damaged_at = log.pread(log.size(), 0).index(b"\x00\x06orders\x01")
    log.pwrite(b"\xff", damaged_at)
    with pytest.raises(DamagedLogError):
        recovered(disk)

    repair(disk, records.describe, accept_loss=True)
    again = recovered(disk)

    assert ids[-1] + 1 == again.wal.next_id
    read = again.wal.read(0, topic=b"orders", up_to=ids[-1], count_max=9, bytes_max=999)
    assert [ids[0], ids[2]] == [message_id for message_id, _ in read.records]
    assert [(ids[1], ids[1])] == read.gaps


def without_oldest(*, force: bool = False) -> tuple[FakeDisk, Config]:
    """Return the log of a version without a floor whose oldest segment has been removed."""
    disk = FakeDisk()
    config = Config.model_validate({"wal": {"retention_force": force}})
    wal = config.wal.model_copy(update={"segment_bytes": 4096})
    config = config.model_copy(update={"wal": wal})
    found = recovered(disk, config)
    subscribe(found.broker, "t")
    for _ in range(60):
        publish(found.broker, "t", bytes(200))
        write(found)
    snapshots.save(disk, *state.snapshot(found.broker, NOW_US))
    disk.remove(FLOOR_PATH)
    disk.remove(segment_path(1))
    return disk, config


def test_a_reader_behind_the_start_of_a_log_without_a_floor_is_damage() -> None:
    """Messages that a subscription has not acknowledged are gone, and no floor explains it."""
    disk, config = without_oldest()
    with pytest.raises(DamagedLogError, match="has not passed it") as caught:
        recovered(disk.kill(), config)
    assert 65 == caught.value.exit_code
    repair(disk, records.describe, accept_loss=True)
    again = recovered(disk, config)

    assert again.wal.first_id > readers_place(again.broker)


def test_forced_retention_explains_a_reader_behind_the_start() -> None:
    """As does an older snapshot than the one that retention went by."""
    disk, config = without_oldest(force=True)
    for _ in range(2):
        recovered(disk, config).wal.close()
    disk, config = without_oldest()
    disk.put("snapshot/99999999999999999999.snap", b"not valid")

    assert 1 == len(recovered(disk, config).snapshots_rejected)
    assert 0 == len(recovered(disk, config).snapshots_rejected)  # the next start knows it too


@pytest.mark.parametrize("again", [False, True], ids=["first start", "second start"])
def test_a_reader_below_a_floor_that_was_not_forced_is_damage(again: bool) -> None:
    """Whenever the floor was written: a refused start adopts none that a later one believes."""
    disk, config = without_oldest()
    if again:
        with pytest.raises(DamagedLogError):
            recovered(disk, config)
    else:
        first_id = min(list_segments(disk))
        write_floor(disk, Floor(first_id, 0))
    with pytest.raises(DamagedLogError, match="has not passed it") as caught:
        recovered(disk, config)

    assert 65 == caught.value.exit_code
    repair(disk, records.describe, accept_loss=False)
    with pytest.raises(DamagedLogError):
        recovered(disk, config)
    repair(disk, records.describe, accept_loss=True)
    assert recovered(disk, config).wal.first_id > 1


def test_a_floor_that_was_forced_explains_a_reader_below_it() -> None:
    """Retention wrote down that it did not wait."""
    disk, config = without_oldest()
    first_id = min(list_segments(disk))
    write_floor(disk, Floor(first_id, first_id - 1))

    assert first_id == recovered(disk, config).wal.first_id


def of_many_files() -> tuple[FakeDisk, Config, list[tuple[int, bytes]]]:
    """Return a log with files of every kind, and what is to be read from it."""
    config = Config()
    wal = config.wal.model_copy(update={"segment_bytes": 4096})
    config = config.model_copy(update={"wal": wal})
    disk = FakeDisk()
    found = recovered(disk, config)
    subscribe(found.broker, "t")
    for number in range(60):
        publish(found.broker, "t", b"%d" % number + bytes(200))
        write(found)
        if number in {20, 40}:
            snapshots.save(disk, *state.snapshot(found.broker, NOW_US))
    found.wal.close()
    return disk, config, everything(found)


def everything(found: Recovered) -> list[tuple[int, bytes]]:
    last_id = found.wal.committed_id
    return found.wal.read(0, topic=b"t", up_to=last_id, count_max=1000, bytes_max=10**6).records


def test_a_broker_never_starts_without_what_its_files_held() -> None:
    """Each file missing, empty, or exchanged: refused, or all of it is there."""
    whole, config, expected = of_many_files()
    assert 60 == len(expected)
    outcomes = set()
    paths = whole.paths()
    for path in paths:
        same = [one for one in paths if one.rpartition(".")[2] == path.rpartition(".")[2]]
        for content in (None, b"", *(whole.content(one) for one in same if one != path)):
            disk = whole.kill()
            if content is None:
                disk.remove(path)
            else:
                disk.put(path, content)
            try:
                again = recovered(disk, config)
                assert (path, expected) == (path, everything(again))
                assert 1 == len(again.broker.subscriptions.by_id)
                outcomes.add("whole")
            except DamagedLogError:
                outcomes.add("refused")

    assert {"whole", "refused"} == outcomes
