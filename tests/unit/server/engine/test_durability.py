"""The log behind its threads: what it reports, in which order, and on a failing disk."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from braidmq.base.errors import BraidError, LogFullError, LogPoisonedError, LogScarceError
from braidmq.broker import records
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.dispatch import ChannelRead, ReadRequest
from braidmq.broker.delivery.recounts import Recount
from braidmq.broker.policy import Policy
from braidmq.broker.settings import Settings
from braidmq.server.engine import counting
from braidmq.server.engine import durability as durability_module
from braidmq.server.engine.durability import Durability
from braidmq.server.engine.engine import Engine
from braidmq.testing.disk import FakeDisk
from braidmq.wal import snapshots
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal
from tests.integration.blip.peer import until
from tests.unit.broker.drive import message_of

pytestmark = pytest.mark.asyncio

SEGMENT_BYTES = 64 * 1024


class Reports:
    """Stand in for the engine, and record what the log reports."""

    def __init__(self) -> None:
        self.committed_ids: list[int] = []
        self.failures: list[BraidError] = []
        self.found: list[tuple[list[tuple[int, bytes]], int, int]] = []
        self.counts: list[int] = []
        self.order: list[str] = []
        self.rooms = 0
        self.floors: list[int] = []

    def committed(self, up_to: int) -> None:
        self.committed_ids.append(up_to)

    def log_failed(self, error: BraidError) -> None:
        self.failures.append(error)

    def backlog_read(
        self,
        request: ReadRequest,
        found: list[tuple[int, bytes]],
        *,
        reached_id: int,
        lost_count: int,
    ) -> None:
        self.found.append((found, reached_id, lost_count))
        self.order.append("read")

    def recounted(self, counts: list[tuple[Recount, int]]) -> None:
        self.counts += [count for _, count in counts]
        self.order.append("recount")

    def room_made(self) -> None:
        self.rooms += 1

    def retained(self, floor_id: int) -> None:
        self.floors.append(floor_id)


def opened(disk: FakeDisk, fsync: str = "always") -> Wal:
    options = WalOptions(fsync=fsync, segment_bytes=SEGMENT_BYTES)
    return Wal.open(
        disk, options, records.describe, now_us=1, after_id=0, visit=lambda *_: None
    )


@asynccontextmanager
async def durability_on(
    disk: FakeDisk, fsync: str = "always", **options: float
) -> AsyncIterator[tuple[Durability, Reports]]:
    reports = Reports()
    engine = cast("Engine", reports)
    durability = Durability(
        opened(disk, fsync), disk, engine, now_us=lambda: 1, needed_id=0, **options
    )
    durability.start()
    try:
        yield durability, reports
    finally:
        await asyncio.to_thread(durability.close)


def message(payload: bytes, topic: bytes = b"t") -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + payload
    return records.encode_message(message_of(body))


async def test_commits_are_reported_in_order() -> None:
    """Each batch is committed before the next, and reported on the event loop."""
    async with durability_on(FakeDisk()) as (durability, reports):
        for size in (1, 3, 2):
            durability.append([message(b"x")] * size, urgent=False)
        await until(lambda: len(reports.committed_ids) == 3)

        assert [1, 4, 6] == reports.committed_ids
        assert 6 == durability.wal.synced_id


async def test_a_full_disk_is_reported_and_the_log_goes_on() -> None:
    """LogFullError for the batch; once the reserve fits on the disk again, the next is fine."""
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        disk.capacity = disk.used_bytes
        durability.append([message(bytes(30_000))], urgent=False)
        await until(lambda: reports.failures)
        assert [LogFullError] == [type(error) for error in reports.failures]
        disk.capacity = None
        durability.make_room()
        await until(lambda: reports.rooms)
        durability.append([message(b"x")], urgent=False)
        await until(lambda: reports.committed_ids)

        assert [1] == reports.committed_ids


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
async def test_a_failing_disk_poisons_the_log_for_good(operation: str) -> None:
    """A failed write or sync is final: every later batch is refused as well."""
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        disk.fail(operation, errno.EIO)
        durability.append([message(b"x")], urgent=False)
        durability.append([message(b"y")], urgent=False)
        await until(lambda: len(reports.failures) == 2)

        assert [LogPoisonedError] * 2 == [type(error) for error in reports.failures]
        assert [] == reports.committed_ids
        assert durability.wal.is_poisoned


async def test_a_bug_is_reported_and_not_swallowed() -> None:
    """If the thread died silently, every publisher would wait for ever."""
    async with durability_on(FakeDisk()) as (durability, reports):
        durability.append([b"\0 is no record"], urgent=False)
        await until(lambda: reports.failures)
        durability.append([message(b"x")], urgent=False)
        await until(lambda: reports.committed_ids)

        assert [LogPoisonedError] == [type(error) for error in reports.failures]


async def test_nothing_is_read_once_the_log_is_closing() -> None:
    """A late read is dropped without a report."""
    broker = Broker(Settings())
    topic = broker.topics.get("t")
    assert topic is not None
    async with durability_on(FakeDisk()) as (durability, reports):
        durability.stop_reading()
        unread = broker.subscriptions.new(topic, 1, "client")
        durability.read(ChannelRead(unread, broker.settings, 0))
        durability.scrub()

    assert [] == reports.found


async def test_backlog_is_read_back() -> None:
    """Only the records of the topic, up to its newest."""
    broker = Broker(Settings())
    topic = broker.topics.get("t")
    assert topic is not None
    subscription = broker.subscriptions.new(topic, 1, "client")
    async with durability_on(FakeDisk()) as (durability, reports):
        bodies = [message(b"1"), message(b"no", b"u"), message(b"2")]
        durability.append(bodies, urgent=False)
        await until(lambda: reports.committed_ids)
        topic.last_id = 3
        durability.read(ChannelRead(subscription, broker.settings, 0))
        await until(lambda: reports.found)

        assert [([(1, bodies[0]), (3, bodies[2])], 3, 0)] == reports.found


async def test_an_interval_syncs_by_its_own_timer() -> None:
    """interval_ms: a commit does not wait for the disk; the timer syncs it soon after."""
    async with durability_on(FakeDisk(), "interval_ms:10", sync_interval_s=0.01) as running:
        durability, reports = running
        durability.append([message(b"x")], urgent=False)
        await until(lambda: reports.committed_ids)
        await until(lambda: durability.wal.synced_id == 1)


async def test_close_writes_everything_that_was_appended() -> None:
    """It reaches the disk under any fsync policy."""
    disk = FakeDisk()
    async with durability_on(disk, "none") as (durability, _):
        for _ in range(20):
            durability.append([message(b"x")], urgent=False)

    assert 21 == opened(disk.kill()).next_id


async def test_a_snapshot_is_saved() -> None:
    """The next start finds it, with the id that it covers."""
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        durability.append([message(b"x")], urgent=False)
        durability.save(1, [b"the ", b"state"], needed_id=1)
        await until(lambda: reports.committed_ids)
    saved = snapshots.load(disk)

    assert saved is not None
    assert (1, b"the state") == (saved.last_id, saved.body)


def lack_memory(disk: FakeDisk, operation: str, times: int = 1) -> None:
    """Let the next calls of *operation* find no memory."""
    left = times

    def lack(name: str, _size: int) -> None:
        nonlocal left
        if name == operation and left:
            left -= 1
            raise MemoryError

    disk.watch = lack


async def test_all_threads_run_from_the_start() -> None:
    """Later there may be no memory for the stack of another."""
    before = threading.active_count()
    async with durability_on(FakeDisk()) as (durability, reports):
        assert 3 == threading.active_count() - before
        durability.append([message(b"x")], urgent=False)
        durability.save(1, [b"state"], needed_id=1)
        durability.scrub()
        await until(lambda: reports.floors)
        assert 3 == threading.active_count() - before


async def test_without_memory_a_batch_is_refused_and_the_next_accepted() -> None:
    """It is a lack that passes: the log is not poisoned."""
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        lack_memory(disk, "pwrite")
        durability.append([message(b"x")], urgent=False)
        durability.append([message(b"y")], urgent=False)
        await until(lambda: reports.committed_ids)

        assert [LogScarceError] == [type(error) for error in reports.failures]
        assert [1] == reports.committed_ids


async def test_without_memory_snapshots_and_the_scrub_wait() -> None:
    """No publisher hears of it, and as many snapshots may be kept as before."""
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        durability.append([message(bytes(SEGMENT_BYTES))], urgent=False)
        await until(lambda: reports.committed_ids)
        for last_id in range(3):
            lack_memory(disk, "pwrite")
            durability.save(last_id, [b"state"], needed_id=1)
            await until(lambda last_id=last_id: len(reports.floors) > last_id)  # type: ignore[misc] # its type is plain
        assert [] == snapshots.list_ids(disk)
        durability.save(1, [b"state"], needed_id=1)
        await until(lambda: snapshots.list_ids(disk))
        lack_memory(disk, "pread")
        durability.scrub()

    assert [] == reports.failures


async def test_without_memory_backlog_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request stays, and is answered."""
    monkeypatch.setattr("braidmq.server.engine.durability.READ_AGAIN_S", 0)
    broker = Broker(Settings())
    topic = broker.topics.get("t")
    assert topic is not None
    disk = FakeDisk()
    subscription = broker.subscriptions.new(topic, 1, "client")
    async with durability_on(disk) as (durability, reports):
        body = message(b"1")
        durability.append([body], urgent=False)
        await until(lambda: reports.committed_ids)
        topic.last_id = 1
        lack_memory(disk, "pread", times=3)
        durability.read(ChannelRead(subscription, broker.settings, 0))
        await until(lambda: reports.found)

        assert [([(1, body)], 1, 0)] == reports.found
    assert [] == reports.failures


async def test_a_read_does_not_wait_for_a_recount(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over a long log is made in slices, and reads that come meanwhile go first.

    A slice for which there was no descriptor is repeated, and what was counted stays counted.
    """
    monkeypatch.setattr(counting, "SLICE_ROWS", 1)
    monkeypatch.setattr(durability_module, "READ_AGAIN_S", 0.001)
    broker = Broker(Settings())
    topic = broker.topics.get("t")
    assert topic is not None
    topic.last_id = 40
    queue = broker.queues.new(topic, Policy(), 1)
    queue.begin(0)
    (lane,) = queue.lanes
    disk = FakeDisk()
    async with durability_on(disk) as (durability, reports):
        for _ in range(40):
            durability.append([message(bytes(10_000))], urgent=False)
        await until(lambda: len(reports.committed_ids) == 40)
        assert 5 < len(durability.wal.segments())
        durability.count([Recount(lane, [(3, 40)], 40), Recount(lane, [(5, 5), (7, 8)], 3)])
        durability.read(ChannelRead(lane, broker.settings, 0))
        await until(lambda: reports.counts)

        assert (["read", "recount"], [38, 3]) == (reports.order, reports.counts)
        disk.fail("pread", errno.ENOMEM)
        durability.count([Recount(lane, [(3, 40)], 40)])
        await until(lambda: len(reports.counts) > 2)
        assert ([38], ["pread"]) == (reports.counts[2:], disk.failed)
        assert [] == reports.failures
