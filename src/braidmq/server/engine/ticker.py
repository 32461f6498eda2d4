"""The ticker: the timers that drive the broker."""

import asyncio
from collections.abc import Callable
from typing import Final

from braidmq.server.engine.clock import Clock

_US_PER_S: Final = 1_000_000
_CHORES_S: Final = 1.0
_RESOLUTION_S: Final = 0.005
"""Timers closer together than this are merged."""


class Ticker:
    """One timer for the broker's next deadline, and chores once a second."""

    def __init__(
        self,
        clock: Clock,
        *,
        next_deadline_us: Callable[[], int],
        tick: Callable[[], None],
        chores: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._next_deadline_us = next_deadline_us
        self._tick = tick
        self._chores = chores
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._chores_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timers."""
        self._chores_timer = self._loop.call_later(_CHORES_S, self._do_chores)
        self.rearm()

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._chores_timer):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._chores_timer = None

    def rearm(self) -> None:
        """Set the timer to fire no later than the broker's next deadline."""
        if self._chores_timer is None:
            return  # not started, or stopped: the engine still calls this at the end of a turn
        delay_s = max(0, self._next_deadline_us() - self._clock.now_us()) / _US_PER_S
        due = self._loop.time() + delay_s
        if self._timer is not None:
            # An early timer is harmless, and is set again when it fires; so most turns change
            # nothing here.
            if self._timer_due <= due + _RESOLUTION_S:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._due)

    def _due(self) -> None:
        self._timer = None
        self._tick()
        self.rearm()

    def _do_chores(self) -> None:
        # Set again first: an exception in a chore must not stop the chores for good.
        self._chores_timer = self._loop.call_later(_CHORES_S, self._do_chores)
        self._chores()
