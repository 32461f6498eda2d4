"""A broker with very much in it: how long a ping and an awaited publish are held up at most.

The campaign runs `braidmq serve` at the sizes that operators have met, with two pingers beside
each kind of work, and prints the longest delay with and without. A stall that the code causes
is there in every round, and one that the machine causes is not, so the best of a few rounds
counts. The short form counts rows and bytes instead of time, and cannot fail by chance.
"""

import asyncio
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from braidmq.broker import snapshots
from braidmq.broker.broker import MAINTENANCE_PAUSE_US, MAINTENANCE_ROWS_MAX
from braidmq.broker.delivery.recounts import Survey
from braidmq.broker.policy import PRIORITY_BASED
from braidmq.broker.topics import Message, body_of
from braidmq.server.engine.engine import Engine
from braidmq.testing.broker import running_broker
from tests.integration.blip import peer as blip
from tests.integration.served import Served, served
from tests.unit.broker.drive import peer_of, policy_of

pytestmark = pytest.mark.asyncio

STALL_S_MAX: Final = 0.050
ROUNDS: Final = 5
ROUND_S: Final = 2.0
PAUSE_S: Final = 0.002
"""Between two pings; a stall is met by the one that is on its way."""

WAL: Final = """
[wal]
segment_bytes = 65536
snapshot_interval_s = {snapshot_s}
retention_hours = 0
retention_bytes = {retention_bytes}
retention_force = {force}
"""
QUIET: Final = WAL.format(snapshot_s=3600, retention_bytes=0, force="false")
"""Neither snapshots nor retention."""
SNAPSHOTS: Final = WAL.format(snapshot_s=1, retention_bytes=0, force="false")
RETENTION: Final = WAL.format(snapshot_s=1, retention_bytes=1_000_000, force="true")

REST: Final = "nothing"
FIRST_SEGMENT: Final = "wal/00000000000000000001.wal"

PAGES: Final = {
    "/metrics": ["/metrics"],
    "topics": ["/api/topics?limit=100"],
    "topics, searched": ["/api/topics?limit=100&search=77"],
    "topics, sorted": ["/api/topics?limit=100&sort=messages"],
    "queues": ["/api/queues?limit=100", "/api/queues?limit=100&search=77"],
    "subscriptions": ["/api/subscriptions?limit=100", "/api/subscriptions?limit=100&search=77"],
}


@dataclass(frozen=True)
class Size:
    """How much a broker has."""

    topics: int
    subscriptions: int
    queues: int


SIZES: Final = {
    "a million topics": Size(1_000_000, 0, 0),
    "very many of each": Size(100_000, 95_000, 20_000),
}
SMALL: Final = Size(6_000, 5_000, 3_000)


def fill(engine: Engine, size: Size, first: int, end: int) -> None:
    """Make what has the numbers from *first* up to *end*; a message waits in each queue."""
    broker, now_us, peer = engine.broker, engine.now_us(), peer_of("ada")
    for number in range(first, end):
        topic = broker.topics.get(f"topic.{number}")
        assert topic is not None
        if number < size.subscriptions:
            broker.subscribe(peer, topic, 1, now_us)
        else:
            broker.publish(Message(topic, 1, body_of(topic, b"x")), now_us)
        if number < size.queues:
            queue_topic = broker.topics.get(f"queue.{number}")
            assert queue_topic is not None
            broker.queues.declare(queue_topic, policy_of(mode=PRIORITY_BASED), now_us)
            broker.publish(Message(queue_topic, 1, body_of(queue_topic, b"x")), now_us)
    engine.end_turn()


async def filled(directory: Path, size: Size) -> None:
    """Leave a data directory with that much."""
    async with running_broker(data_dir=directory) as running:
        engine = running.daemon.status.engine
        assert engine is not None
        for first in range(0, size.topics, 1000):
            fill(engine, size, first, first + 1000)
            await engine.waiters.until(engine.is_committed)


class Pinger:
    """Sends one request after another, each with a PING behind it, and notes how long it took.

    The PONG comes when everything before it is committed.
    """

    def __init__(self, peer: blip.Peer, request: bytes) -> None:
        self._peer = peer
        self._request = request
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            self._peer.send(self._request, blip.ping(7))
            await self._peer.expect(blip.pong(7))
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def pingers(broker: Served) -> AsyncIterator[list[Pinger]]:
    """Ping on one connection, and await durable publishes on another."""
    async with broker.peer() as pinged, broker.peer() as publishing:
        found = [
            Pinger(pinged, b""),
            Pinger(publishing, blip.publish(8, "queue.0", bytes(8192))),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pinger.run()) for pinger in found]
            yield found
            for task in tasks:
                task.cancel()


async def rounds_of(
    broker: Served, work: Callable[[Served], Awaitable[object]]
) -> list[tuple[float, float]]:
    """Return the longest delay of a ping and of a publish in each round of *work*."""
    found: list[tuple[float, float]] = []
    async with pingers(broker) as both:
        for _ in range(ROUNDS):
            for pinger in both:
                pinger.longest_s = 0.0
            until = time.perf_counter() + ROUND_S
            while time.perf_counter() < until:
                await work(broker)
            found.append((both[0].longest_s, both[1].longest_s))
            assert all(found[-1]), "a pinger got no answer in this round"
    return found


async def ready(broker: Served) -> None:
    """Wait for a broker that has very much to read."""
    async with asyncio.timeout(300):
        while broker.facts().get("pid") != broker.process.pid:
            assert broker.process.returncode is None, broker.stderr
            await asyncio.sleep(0.1)


def table(found: dict[str, list[tuple[float, float]]]) -> str:
    """Return the figures of all rounds, to be printed."""
    lines = [f"{f'longest in {ROUND_S:.0f} s, in ms':36}    ping, publish: best      median"]
    for doing, rows in found.items():
        figures = [
            f"{1000 * kind(each):9.1f}"
            for kind in (min, statistics.median)
            for each in zip(*rows, strict=True)
        ]
        lines.append(f"{doing:36} {' '.join(figures)}")
    return "\n".join(lines) + "\n"


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SIZES)
async def test_no_work_holds_up_a_ping_or_a_publish(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snapshots, forced retention, metrics and pages, at full size, on the real daemon."""
    origin = tmp_path / "origin"
    await filled(origin, SIZES[name])
    found: dict[str, list[tuple[float, float]]] = {}

    async def run(config: str, works: dict[str, Callable[[Served], Awaitable[object]]]) -> None:
        directory = tmp_path / f"run.{len(found)}"
        shutil.copytree(origin, directory / "data")
        async with served(directory, config=config) as broker:
            await ready(broker)
            for doing, work in works.items():
                found[doing] = await rounds_of(broker, work)
            assert "Traceback" not in broker.stderr
            has_first = (directory / "data" / FIRST_SEGMENT).exists()
            assert has_first == (config != RETENTION)

    async def rest(_: Served) -> None:
        await asyncio.sleep(0.1)

    def asking(paths: list[str]) -> Callable[[Served], Awaitable[object]]:
        async def ask(broker: Served) -> None:
            for path in paths:
                status, text = await broker.get(path, "dev-key")
                assert 200 == status, text

        return ask

    # Each after rounds of rest: what else the machine does changes from minute to minute.
    pages: dict[str, Callable[[Served], Awaitable[object]]] = {}
    for page, paths in PAGES.items():
        pages |= {f"{REST} before {page}": rest, page: asking(paths)}
    await run(QUIET, pages)
    for doing, config in (("snapshots", SNAPSHOTS), ("snapshots, retention", RETENTION)):
        await run(QUIET, {f"{REST} before {doing}": rest})
        await run(config, {doing: rest})
    best = {
        doing: [min(each) for each in zip(*rows, strict=True)] for doing, rows in found.items()
    }
    with capsys.disabled():
        sys.stdout.write(f"\n{name}:\n{table(found)}")
    over: dict[str, list[float]] = {}
    for doing, both in best.items():
        alone = best.get(f"{REST} before {doing}", both)
        if any(s - s_alone > STALL_S_MAX for s, s_alone in zip(both, alone, strict=True)):
            over[doing] = both

    assert {} == over


async def test_no_turn_takes_more_than_its_rows() -> None:
    """Snapshots, maintenance and recounts: rows of a turn, and bytes of one write.

    Here many times what a turn may take; each takes as many turns as that, and no fewer.
    """
    async with running_broker() as running:
        engine = running.daemon.status.engine
        assert engine is not None
        fill(engine, SMALL, 0, SMALL.topics)
        async with asyncio.timeout(60):
            await engine.waiters.until(engine.is_committed)
        broker, now_us = engine.broker, engine.now_us()
        taken = snapshots.Snapshot(broker, now_us)
        turns = 1
        while not taken.go_on():
            turns += 1
        survey = Survey(broker.queues, [(0, broker.committed_id)])
        surveys = 1
        while not survey.go_on():
            surveys += 1
        rounds = 1
        now_us = max(now_us, broker.maintenance_us)
        broker.tick(now_us)
        while broker.maintenance_us == now_us + MAINTENANCE_PAUSE_US:
            now_us = broker.maintenance_us
            broker.tick(now_us)
            rounds += 1
    channels = SMALL.queues * 4
    rows = SMALL.topics + SMALL.queues + SMALL.subscriptions + channels

    assert rows // snapshots.ROWS_MAX <= turns
    assert 2 * snapshots.PART_BYTES + snapshots.ROWS_MAX * 64 > max(map(len, taken.parts()))
    assert SMALL.queues == len(survey.found)
    assert channels // 2_000 <= surveys
    assert (SMALL.subscriptions + channels) // MAINTENANCE_ROWS_MAX <= rounds
