"""A clock that stands still until a test moves it, and that a test can set wrong."""

from collections.abc import Callable
from typing import Final

_US_PER_S: Final = 1_000_000


class FakeClock:
    """Time in microseconds that only :meth:`advance` moves.

    A broker takes it for the clocks of its machine. :meth:`step` is what a wrong setting of the
    system's clock does: no time passes, but the system's time is another.
    """

    def __init__(self, start_us: int = 1_800_000_000 * _US_PER_S) -> None:
        self._now_us = start_us
        self._stepped_us = 0
        self._watchers: list[Callable[[], None]] = []

    def now_us(self) -> int:
        """Return the time."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, then call all watchers."""
        assert seconds >= 0
        self._now_us += int(seconds * _US_PER_S)
        for watcher in list(self._watchers):
            watcher()

    def wall_us(self) -> int:
        """Return the system's time."""
        return self._now_us + self._stepped_us

    def steady_us(self) -> int:
        """Return a time that steps do not move."""
        return self._now_us

    def step(self, seconds: float) -> None:
        """Set the system's clock forwards, or back, then call all watchers."""
        self._stepped_us += int(seconds * _US_PER_S)
        for watcher in list(self._watchers):
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call *watcher* whenever the time has moved."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Call *watcher* no more."""
        self._watchers.remove(watcher)
