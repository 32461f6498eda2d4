"""The fake clock of tests."""

import pytest

from braidmq.testing.clock import FakeClock


def test_the_clock_stands_still_until_it_is_advanced() -> None:
    """Seconds in, microseconds out."""
    clock = FakeClock(10)
    assert [10, 10] == [clock.now_us(), clock.now_us()]
    clock.advance(1.5)

    assert 1_500_010 == clock.now_us()


def test_watchers_see_the_new_time() -> None:
    """They are called after the clock has advanced, in the order they were added."""
    clock = FakeClock(0)
    seen: list[tuple[str, int]] = []
    clock.watch(lambda: seen.append(("one", clock.now_us())))
    clock.watch(lambda: seen.append(("two", clock.now_us())))
    clock.advance(2)

    assert [("one", 2_000_000), ("two", 2_000_000)] == seen


def test_a_watcher_that_is_gone_is_not_called() -> None:
    """A broker that has stopped must not be told what time it is."""
    clock = FakeClock(0)
    seen: list[int] = []

    def look() -> None:
        seen.append(clock.now_us())

    clock.watch(look)
    clock.advance(1)
    clock.unwatch(look)
    clock.advance(1)

    assert [1_000_000] == seen


def test_the_clock_does_not_go_back() -> None:
    """Turning it back is a mistake in the test."""
    with pytest.raises(AssertionError):
        FakeClock().advance(-1)


def test_setting_it_wrong_is_not_passing_time() -> None:
    """Only the system's time changes, and watchers are told."""
    clock = FakeClock(10)
    told: list[int] = []
    clock.watch(lambda: told.append(clock.wall_us()))
    clock.step(-1)
    clock.advance(2)

    assert [10 - 1_000_000, 10 + 1_000_000] == told
    assert (2_000_010, 2_000_010) == (clock.now_us(), clock.steady_us())
