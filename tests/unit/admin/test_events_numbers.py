"""The numbers of each second: rates from counters, the history, and waiting for a point."""

import asyncio

import pytest

from braidmq.admin.events import HISTORY_POINTS, Numbers, rss_bytes
from braidmq.admin.metrics import MetricValues

pytestmark = pytest.mark.asyncio


class World:
    """Counters and fsyncs that a test sets."""

    def __init__(self) -> None:
        self.values = MetricValues()
        self.fsyncs: list[float] = []
        self.numbers = Numbers(
            lambda: self.values, now_us=lambda: 0, take_fsyncs=lambda: self.fsyncs
        )
        self.numbers.start()


async def test_a_point_covers_the_time_since_the_one_before() -> None:
    """Counters become rates, by strand where they are counted so; levels stay as they are."""
    world = World()
    world.values = MetricValues(
        strand_messages_published={"blip": 7},
        messages_published_bytes=100,
        messages_waiting=5,
        connections={"blip": 2},
    )
    first = world.numbers.take()
    second = world.numbers.take()
    world.numbers.stop()

    assert first.into["blip"] > 0
    assert first.in_bytes > 0
    assert (0.0, 0.0) == (second.into["blip"], second.in_bytes)
    assert (5, {"blip": 2}) == (second.backlog, second.connections)
    assert {"blip", "vibe", "qumbed", "http", "spark"} == second.out.keys()


async def test_fsyncs_are_shown_by_their_percentiles() -> None:
    """In milliseconds; without an fsync they are 0."""
    world = World()
    silent = world.numbers.take()
    world.fsyncs = [0.001 * number for number in range(100, 0, -1)]
    point = world.numbers.take()
    world.numbers.stop()

    assert (0.0, 0.0) == (silent.fsync_p50_ms, silent.fsync_p99_ms)
    assert (51.0, 100.0) == (point.fsync_p50_ms, point.fsync_p99_ms)


async def test_the_history_is_bounded() -> None:
    """Two minutes, oldest first."""
    world = World()
    for number in range(HISTORY_POINTS + 3):
        world.values = MetricValues(messages_waiting=number)
        world.numbers.take()
    world.numbers.stop()

    history = world.numbers.history()
    assert (HISTORY_POINTS, 3) == (len(history), history[0].backlog)


async def test_a_listener_gets_the_newest_point_and_misses_earlier_ones() -> None:
    """Points are not buffered for a slow listener."""
    world = World()
    waiting = asyncio.ensure_future(world.numbers.after(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.values = MetricValues(messages_waiting=1)
    world.numbers.take()
    count, point = await waiting
    assert point is not None
    for number in (2, 3):
        world.values = MetricValues(messages_waiting=number)
        world.numbers.take()
    later, newest = await world.numbers.after(count)
    world.numbers.stop()

    assert newest is not None
    assert (1, 1, 3, 3) == (count, point.backlog, later, newest.backlog)


async def test_stop_wakes_every_listener() -> None:
    """A stopping broker does not wait for its listeners."""
    world = World()
    waiting = asyncio.ensure_future(world.numbers.after(0))
    await asyncio.sleep(0)
    world.numbers.stop()

    assert (0, None) == await waiting


async def test_a_point_is_taken_every_second() -> None:
    """The lag of the event loop is one of its numbers."""
    world = World()
    async with asyncio.timeout(30):
        count, point = await world.numbers.after(0)
    world.numbers.stop()

    assert 1 == count
    assert point is not None
    assert point.loop_lag_ms >= 0


async def test_the_memory_of_the_process_is_measured() -> None:
    """As the system counts it."""
    assert rss_bytes() > 2**20
