"""The daemon's timers."""

import asyncio

import pytest

from braidmq.server.engine.ticker import Ticker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import until


class Deadlines:
    """One deadline, which each tick moves on by an hour."""

    def __init__(self, due_us: int) -> None:
        self.due_us = due_us
        self.ticks = 0
        self.chores = 0

    def tick(self) -> None:
        self.ticks += 1
        self.due_us += 3600 * 10**6

    def do_chores(self) -> None:
        self.chores += 1

    def ticker(self, clock: FakeClock) -> Ticker:
        return Ticker(
            clock,
            next_deadline_us=lambda: self.due_us,
            tick=self.tick,
            chores=self.do_chores,
        )


@pytest.mark.asyncio
async def test_it_ticks_at_the_deadline() -> None:
    """Once for each deadline."""
    clock = FakeClock()
    deadlines = Deadlines(clock.now_us() + 10_000)
    ticker = deadlines.ticker(clock)
    ticker.start()
    await until(lambda: deadlines.ticks)
    ticker.stop()

    assert 1 == deadlines.ticks


@pytest.mark.asyncio
async def test_an_earlier_deadline_moves_the_timer() -> None:
    """No deadline is missed because a later one was armed first."""
    clock = FakeClock()
    deadlines = Deadlines(clock.now_us() + 3600 * 10**6)
    ticker = deadlines.ticker(clock)
    ticker.start()
    deadlines.due_us = clock.now_us()
    ticker.rearm()
    await until(lambda: deadlines.ticks)
    ticker.stop()


@pytest.mark.asyncio
async def test_after_stop_nothing_happens() -> None:
    """A timer must not fire into a closed broker."""
    clock = FakeClock()
    deadlines = Deadlines(clock.now_us())
    ticker = deadlines.ticker(clock)
    ticker.start()
    ticker.stop()
    ticker.rearm()
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, passed.set)
    await passed.wait()

    assert (0, 0) == (deadlines.ticks, deadlines.chores)


@pytest.mark.asyncio
async def test_chores_run_periodically() -> None:
    """Once a second, whatever the broker's deadlines are."""
    clock = FakeClock()
    deadlines = Deadlines(clock.now_us() + 3600 * 10**6)
    ticker = deadlines.ticker(clock)
    ticker.start()
    await until(lambda: deadlines.chores == 2)
    ticker.stop()
