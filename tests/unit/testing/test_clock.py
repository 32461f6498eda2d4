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


def test_the_clock_does_not_go_back() -> None:
    """Turning it back is a mistake in the test."""
    with pytest.raises(AssertionError):
        FakeClock().advance(-1)
