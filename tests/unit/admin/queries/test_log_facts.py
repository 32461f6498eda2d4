"""The log as an administrator has it: segments, quarantine, and the check of both ends."""

import asyncio
from pathlib import Path

import pytest

from braidmq.admin.queries import log_facts
from braidmq.admin.queries.log_facts import LogAdministration, damage_of, quarantined
from braidmq.base.errors import DamagedLogError
from braidmq.server.config.config import WalConfig
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.disk import FakeDisk
from braidmq.wal.disk import Disk
from braidmq.wal.segment import SegmentInfo
from braidmq.wal.wal import Wal
from tests.unit.admin.queries.queue_broker import publish, status_of

pytestmark = pytest.mark.asyncio

SMALL: dict[str, object] = {"wal": {"segment_bytes": 65_536}}


async def fill(broker: RunningBroker) -> None:
    for _ in range(3):
        await publish(broker, "t", 70_000 * b"x")


async def test_segments_are_shown_in_order() -> None:
    """The last is the one that grows; nobody has checked any."""
    async with running_broker(config=SMALL) as broker:
        await fill(broker)
        facts = await status_of(broker).log.facts()

        assert [(1, 1, True), (2, 2, True), (3, 3, True), (4, 3, False)] == [
            (segment.first_id, segment.last_id, segment.sealed) for segment in facts.segments
        ]
        assert {None} == {segment.verified for segment in facts.segments}
        assert "00000000000000000001.wal" == facts.segments[0].name
        assert (4, sum(segment.bytes for segment in facts.segments), 3) == (
            facts.segments_total,
            facts.bytes,
            facts.committed_id,
        )


async def test_a_check_finds_the_damaged_segment(tmp_path: Path) -> None:
    """The others are good; what grows is not checked, and what was found is remembered."""
    async with running_broker(config=SMALL, data_dir=tmp_path) as broker:
        await fill(broker)
        path = tmp_path / "wal" / "00000000000000000002.wal"
        data = bytearray(path.read_bytes())
        data[1000] ^= 1
        path.write_bytes(data)
        log = status_of(broker).log
        found, again = await asyncio.gather(log.verify(), log.verify())

        assert [True, False, True, None] == [one.verified for one in found.segments]
        assert found.segments == again.segments
        assert found.segments == (await log.facts()).segments


async def test_one_check_runs_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the whole log once is enough work."""
    read: list[int] = []

    def counted(wal: Wal, segment: SegmentInfo) -> DamagedLogError | None:
        read.append(segment.first_id)
        return damage_of(wal, segment)

    monkeypatch.setattr(log_facts, "damage_of", counted)
    async with running_broker(config=SMALL) as broker:
        await fill(broker)
        log = status_of(broker).log
        await asyncio.gather(log.verify(), log.verify(), log.verify())

        assert [1, 2, 3] == read


async def test_of_very_many_segments_and_files_the_last_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An answer is bounded; the total says that there are more."""
    monkeypatch.setattr(log_facts, "SEGMENTS_SHOWN_MAX", 2)
    monkeypatch.setattr(log_facts, "QUARANTINE_SHOWN_MAX", 2)
    async with running_broker(config=SMALL, data_dir=tmp_path) as broker:
        await fill(broker)
        (tmp_path / "quarantine").mkdir()
        for name in ("a", "b", "c"):
            (tmp_path / "quarantine" / name).touch()
        facts = await status_of(broker).log.facts()

        assert ([3, 4], 4) == ([one.first_id for one in facts.segments], facts.segments_total)
        assert ["b", "c"] == [one.name for one in facts.quarantine]


async def test_an_index_that_is_wrong_is_no_damage(tmp_path: Path) -> None:
    """It is made anew from the segment."""
    async with running_broker(config=SMALL, data_dir=tmp_path) as broker:
        await fill(broker)
        (tmp_path / "wal" / "00000000000000000001.idx").write_bytes(b"noise")
        found = await status_of(broker).log.verify()

        assert [True, True, True, None] == [one.verified for one in found.segments]


async def test_what_is_in_quarantine_is_shown(tmp_path: Path) -> None:
    """By name and size; an empty one is not there."""
    assert [] == quarantined(Disk(tmp_path))
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "a.wal.at7.1").write_bytes(b"torn")
    # Listed, and gone when it is opened.
    (tmp_path / "quarantine" / "b.wal.at7.1").symlink_to(tmp_path / "nowhere")

    assert [("a.wal.at7.1", 4)] == [
        (row.name, row.bytes) for row in quarantined(Disk(tmp_path))
    ]


async def test_before_recovery_there_is_no_log() -> None:
    """The broker is not up."""
    log = LogAdministration(WalConfig(), FakeDisk(), lambda: None, lambda: None)
    for ask in (log.facts, log.verify):
        with pytest.raises(UnavailableError):
            await ask()
