"""The broker's time against a system's clock that is set."""

import time
from itertools import pairwise

import pytest

from braidmq.broker.times import AHEAD, BEHIND, FINE, Start
from braidmq.server.engine.clock import BrokerClock
from braidmq.testing.clock import FakeClock

S = 1_000_000


def started(clock: BrokerClock, *, now_us: int, verdict: int = FINE, off_us: int = 0) -> None:
    clock.begin(Start(now_us, verdict=verdict, off_us=off_us, step_us=off_us))


def test_it_is_the_systems_time() -> None:
    """Of this machine, unless it is given another source."""
    assert abs(BrokerClock().now_us() - time.time_ns() // 1000) < 60 * S


def test_setting_the_systems_clock_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real clocks, with a system's time of 1970."""
    clock = BrokerClock()
    before = clock.now_us()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    clock.look()
    seen = [clock.now_us() for _ in range(100)]

    assert [before, *seen] == sorted([before, *seen])
    assert clock.is_stepped


@pytest.mark.parametrize("step_s", [61, -61, 10**9, -(10**9)])
def test_a_large_step_is_an_alarm_and_changes_nothing(step_s: int) -> None:
    """Until the clocks agree again."""
    source = FakeClock()
    clock = BrokerClock(source)
    before_us = clock.now_us()
    source.step(step_s)
    clock.look()
    source.advance(10)
    clock.look()

    assert (before_us + 10 * S, step_s * S) == (clock.now_us(), clock.wall_ahead_us)
    (said,) = clock.alarms
    assert ("ahead of" if step_s > 0 else "behind") in said
    source.step(-step_s)
    clock.look()
    assert [] == clock.alarms


@pytest.mark.parametrize("step_s", [30, -30, 60, -60])
def test_a_small_step_is_slewed_away(step_s: int) -> None:
    """A hundredth faster or slower; never back, and no alarm."""
    source = FakeClock()
    clock = BrokerClock(source)
    source.step(step_s)
    seen = [clock.now_us()]
    for _ in range(100 * 61):
        clock.look()
        source.advance(1)
        seen.append(clock.now_us())

    assert {990_000, 1_010_000} & {b - a for a, b in pairwise(seen)}
    assert seen == sorted(seen)
    assert abs(source.wall_us() - clock.now_us()) <= 20_000
    assert [] == clock.alarms


def test_a_log_that_is_a_little_ahead_holds_the_time() -> None:
    """It starts at the log's newest time and is slewed from there."""
    source = FakeClock()
    clock = BrokerClock(source)
    started(clock, now_us=source.wall_us() + 30 * S)
    source.advance(1)

    assert source.wall_us() + 30 * S - 10_000 == clock.now_us()
    assert [] == clock.alarms


@pytest.mark.parametrize(
    ("verdict", "off_us", "said"),
    [
        (BEHIND, -3 * 86_400 * S, "3 days, 0:00:00 behind the newest time"),
        (AHEAD, 3_600 * S, "1:00:00 ahead of the newest time"),
    ],
)
def test_what_a_start_finds_is_an_alarm_until_the_next(
    verdict: int, off_us: int, said: str
) -> None:
    """It names by how much, and what to do."""
    source = FakeClock()
    clock = BrokerClock(source)
    started(clock, now_us=source.wall_us(), verdict=verdict, off_us=off_us)
    source.advance(3600)
    clock.look()

    (alarm,) = clock.alarms
    assert said in alarm
    assert "start again" in alarm
    assert off_us == clock.step_us
    started(clock, now_us=source.wall_us())
    assert [] == clock.alarms
