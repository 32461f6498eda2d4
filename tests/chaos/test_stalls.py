"""A broker with very much in it: how long its event loop is held up at most."""

import asyncio
import gc
import time

import pytest

from braidmq.broker.policy import PRIORITY_BASED
from braidmq.testing.broker import running_broker
from tests.unit.broker.drive import peer_of, policy_of

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign, pytest.mark.timeout(600)]

TOPICS, SUBSCRIPTIONS, QUEUES = 100_000, 95_000, 20_000
STALL_S_MAX = 0.050


async def test_nothing_holds_the_event_loop_for_long() -> None:
    """Snapshots, retention, maintenance, metrics and pages, beside a pinger."""
    async with running_broker() as running:
        status = running.daemon.status
        engine = status.engine
        assert engine is not None
        broker, now_us, peer = engine.broker, engine.now_us, peer_of("ada")
        for number in range(TOPICS):
            topic = broker.topics.get(f"topic.{number}")
            assert topic is not None
            if number < SUBSCRIPTIONS:
                broker.subscribe(peer, topic, 1, now_us())
            if number < QUEUES:
                queue_topic = broker.topics.get(f"queue.{number}")
                assert queue_topic is not None
                broker.queues.declare(queue_topic, policy_of(mode=PRIORITY_BASED), now_us())
            if number % 1000 == 0:
                engine.end_turn()
                await asyncio.sleep(0)
        engine.end_turn()
        async with asyncio.timeout(120):
            await engine.waiters.until(engine.is_committed)
        gc.collect()
        gc.freeze()  # as the daemon's process does when it has started
        stalls: list[tuple[float, str]] = []
        doing = ""

        async def ping() -> None:
            while True:
                # Of this thread: other processes on the machine are not what is measured.
                began = time.thread_time()
                await asyncio.sleep(0.001)
                stalls.append((time.thread_time() - began, doing))

        pinger = asyncio.create_task(ping())
        for doing in ("snapshot", "metrics", "topics", "maintenance"):
            until = time.perf_counter() + 5
            while time.perf_counter() < until:
                if doing == "snapshot":
                    engine.take_snapshot()
                elif doing == "metrics":
                    status.metrics()
                elif doing == "topics":
                    await status.topics.page(
                        after="", limit=100, search="", sort="name", visible=None
                    )
                await asyncio.sleep(0.05)
        pinger.cancel()
        gc.unfreeze()
        longest = max(stalls)

        assert longest[0] < STALL_S_MAX, longest
