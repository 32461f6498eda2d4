"""The clock that tests move."""

import pytest

from braidmq.testing.clock import FakeClock


def test_it_stands_still_until_it_is_moved() -> None:
    """Seconds in, microseconds out."""
    clock = FakeClock(10)
    assert [10, 10] == [clock.now_us(), clock.now_us()]
    clock.advance(1.5)

    assert 1_500_010 == clock.now_us()


def test_whoever_watches_sees_the_new_time() -> None:
    """Watchers are called after the move, in the order in which they came."""
    clock = FakeClock(0)
    seen: list[tuple[str, int]] = []
    clock.watch(lambda: seen.append(("one", clock.now_us())))
    clock.watch(lambda: seen.append(("two", clock.now_us())))
    clock.advance(2)

    assert [("one", 2_000_000), ("two", 2_000_000)] == seen


def test_it_does_not_go_back() -> None:
    """A test that turns it back has a mistake in it."""
    with pytest.raises(AssertionError):
        FakeClock().advance(-1)
