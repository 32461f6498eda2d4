"""The log over HTTP: any key may inspect it, only an administrator may have it verified."""

import asyncio
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from braidmq.admin import log as log_module
from braidmq.admin.log import damage_of, quarantined
from braidmq.base.errors import DamagedLogError, LogFullError
from braidmq.server.engine.requests import UnavailableError
from braidmq.wal.disk import Disk
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal
from tests.unit.admin.queue_broker import engine_of, quiet_broker, status_of
from tests.unit.admin.world import ADMIN, ORDERS, World

SMALL: dict[str, object] = {"segment_bytes": 65_536}


def filled(disk: Disk | None = None) -> World:
    """Return a broker with three sealed segments, and one that grows."""
    world = World(disk, wal=SMALL)
    for _ in range(3):
        world.publish("t", 70_000 * b"x")
    return world


def test_any_key_sees_the_log() -> None:
    """Segments in order, the last one growing; none is verified yet."""
    answer = filled().client().get("/api/log", headers=ORDERS).json()

    segments = answer.pop("segments")
    assert [(1, 1, True), (2, 2, True), (3, 3, True), (4, 3, False)] == [
        (segment["first_id"], segment["last_id"], segment["sealed"]) for segment in segments
    ]
    assert {None} == {segment["verified"] for segment in segments}
    assert "00000000000000000001.wal" == segments[0]["name"]
    assert {
        "segments_total": 4,
        "bytes": sum(segment["bytes"] for segment in segments),
        "committed_id": 3,
        "fsync": "always",
        "full": False,
        "poisoned": False,
        "retention_hours": 168.0,
        "retention_bytes": 0,
        "quarantine": [],
    } == answer


def test_only_an_administrator_may_have_the_log_verified(client: TestClient) -> None:
    """Verification reads the whole log."""
    answers = [client.post("/api/log/verify", headers=h) for h in (ORDERS, ADMIN)]

    assert [403, 200] == [answer.status_code for answer in answers]


@pytest.mark.asyncio
async def test_a_check_finds_the_damaged_segment(tmp_path: Path) -> None:
    """The others are intact, the growing one is not checked, and the results are kept."""
    world = filled(Disk(tmp_path))
    path = tmp_path / "wal" / "00000000000000000002.wal"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    log = world.status.log
    found, again = await asyncio.gather(log.verify(), log.verify())

    assert [True, False, True, None] == [one.verified for one in found.segments]
    assert found.segments == again.segments
    assert found.segments == (await log.facts()).segments
    assert world.engine.failed is not None


@pytest.mark.asyncio
async def test_a_check_finds_the_missing_segment(tmp_path: Path) -> None:
    """It is damage like any other, by which the broker ends, and no error of the request."""
    world = filled(Disk(tmp_path))
    (tmp_path / "wal" / "00000000000000000002.wal").unlink()
    found = await world.status.log.verify()

    assert [True, False, True, None] == [one.verified for one in found.segments]
    await asyncio.sleep(0)  # the answer goes out first
    failed = world.engine.failed
    assert isinstance(failed, DamagedLogError)
    assert ("wal/00000000000000000002.wal", 2, 2) == (
        failed.segment,
        failed.first_id,
        failed.last_id,
    )


@pytest.mark.asyncio
async def test_concurrent_requests_share_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the whole log once is enough work."""
    read: list[int] = []

    def counted(wal: Wal, segment: SegmentInfo) -> DamagedLogError | None:
        read.append(segment.first_id)
        return damage_of(wal, segment)

    monkeypatch.setattr(log_module, "damage_of", counted)
    log = filled().status.log
    await asyncio.gather(log.verify(), log.verify(), log.verify())

    assert [1, 2, 3] == read


def test_only_the_last_of_very_many_segments_and_files_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A response is bounded; the total shows that there are more."""
    monkeypatch.setattr(log_module, "SEGMENTS_SHOWN_MAX", 2)
    monkeypatch.setattr(log_module, "QUARANTINE_SHOWN_MAX", 2)
    client = filled(Disk(tmp_path)).client()
    (tmp_path / "quarantine").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "quarantine" / name).touch()
    facts = client.get("/api/log", headers=ADMIN).json()

    assert ([3, 4], 4) == (
        [one["first_id"] for one in facts["segments"]],
        facts["segments_total"],
    )
    assert ["b", "c"] == [one["name"] for one in facts["quarantine"]]


@pytest.mark.asyncio
async def test_a_wrong_index_is_not_damage(tmp_path: Path) -> None:
    """It is rebuilt from the segment."""
    world = filled(Disk(tmp_path))
    (tmp_path / "wal" / "00000000000000000001.idx").write_bytes(b"noise")
    found = await world.status.log.verify()

    assert [True, True, True, None] == [one.verified for one in found.segments]


def test_files_in_quarantine_are_shown(tmp_path: Path) -> None:
    """By name and size; without the directory there are none."""
    assert [] == quarantined(Disk(tmp_path))
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "a.wal.at7.1").write_bytes(b"torn")
    # Listed, but gone when it is opened.
    (tmp_path / "quarantine" / "b.wal.at7.1").symlink_to(tmp_path / "nowhere")

    assert [("a.wal.at7.1", 4)] == [
        (row.name, row.bytes) for row in quarantined(Disk(tmp_path))
    ]


def test_before_recovery_there_is_no_log() -> None:
    """503, whether it is to be shown or verified."""
    client = World(recovered=False).client()
    answers = [
        client.get("/api/log", headers=ADMIN),
        client.post("/api/log/verify", headers=ADMIN),
    ]

    assert [503, 503] == [answer.status_code for answer in answers]


@pytest.mark.asyncio
async def test_the_log_is_read_on_a_thread(world: World) -> None:
    """The event loop goes on meanwhile."""
    thread = await world.status.log.read(lambda _: threading.current_thread())

    assert threading.current_thread() is not thread


@pytest.mark.asyncio
async def test_a_log_that_cannot_be_read_is_unavailable(world: World) -> None:
    """With the reason, and before recovery, too; the broker goes on."""

    def read(_wal: Wal) -> None:
        raise LogFullError("no room for an index")

    with pytest.raises(UnavailableError, match="no room for an index"):
        await world.status.log.read(read)
    await asyncio.sleep(0)
    assert None is world.engine.failed
    world.status.engine = None
    with pytest.raises(UnavailableError, match="recovering the log"):
        await world.status.log.read(read)
    world.status.engine, world.status.wal = world.engine, None
    with pytest.raises(UnavailableError, match="recovering the log"):
        await world.status.log.read(read)


@pytest.mark.asyncio
async def test_damage_is_answered_and_then_ends_the_broker() -> None:
    """The request is answered first; then the broker ends as if the scrub had found it."""
    damage = DamagedLogError("wal/1.wal", offset=7, first_id=1, last_id=2, reason="torn")

    def read(_wal: Wal) -> None:
        raise damage

    async with quiet_broker() as broker:
        engine = engine_of(broker)
        with pytest.raises(UnavailableError, match="torn"):
            await status_of(broker).log.read(read)
        assert not broker.daemon.ended.is_set()
        await asyncio.wait_for(broker.daemon.ended.wait(), 10)

        assert damage is engine.failed
        assert damage is broker.daemon.failure
