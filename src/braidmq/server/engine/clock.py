"""The broker's clock: the one place that reads the system's time, and says when that is wrong.

The broker's time starts at the system's time and follows the steady clock from there, which no
step of the system's clock moves: so a step expires nothing. While the two differ by less than
`TOLERANCE_US` the broker's time is slewed, a hundredth faster or slower, and never goes back. A
larger difference is an alarm, and changes nothing until the next start, where
`braidmq.broker.times` decides what the time is.
"""

import time
from datetime import timedelta
from typing import Final, Protocol

from braidmq.broker.times import AHEAD, BEHIND, TOLERANCE_US, Start

_US_PER_S: Final = 1_000_000

_SLEW_PARTS: Final = 100
"""Time is slewed by one part of this many."""

_NEGLIGIBLE_US: Final = 1_000
"""Less is not slewed away: reading two clocks takes some of it."""


class Clock(Protocol):
    """A time in microseconds since the epoch that never goes back."""

    def now_us(self) -> int:
        """Return the time."""


class TimeSource(Protocol):
    """What a machine knows of time, in microseconds."""

    def wall_us(self) -> int:
        """Return the system's time since the epoch, which can be set."""

    def steady_us(self) -> int:
        """Return a time that nothing but its passing moves."""


class SystemTime:
    """The clocks of this machine."""

    def wall_us(self) -> int:
        """Return the system's time."""
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        """Return the monotonic time."""
        return time.monotonic_ns() // 1000


class BrokerClock:
    """The broker's time, and what is wrong with the system's; `now_us` is for any thread."""

    def __init__(self, source: TimeSource | None = None) -> None:
        self._source: TimeSource = SystemTime() if source is None else source
        self._steady_us = self._source.steady_us
        # A time, the steady time at which it was, and the direction of the slew. One object, so
        # that a thread sees all of it or none.
        self._line: tuple[int, int, int] = (self._source.wall_us(), self._steady_us(), 0)
        self._start_alarm = ""
        self.step_us = 0
        """By how much deadlines from before this start were moved."""
        self.wall_ahead_us = 0
        """How far the system's clock is ahead of the broker's time, as of the last look."""

    def now_us(self) -> int:
        """Return the time."""
        base_us, from_us, slew = self._line
        passed_us = self._steady_us() - from_us
        if slew:
            passed_us += slew * passed_us // _SLEW_PARTS
        return base_us + passed_us

    def begin(self, start: Start) -> None:
        """Go on from what a start has decided."""
        self._line = (start.now_us, self._steady_us(), 0)
        self.step_us = start.step_us
        self._start_alarm = _said_at_start(start)
        self.look()

    def look(self) -> None:
        """Compare with the system's clock; call it about once a second."""
        now_us = self.now_us()
        self.wall_ahead_us = self._source.wall_us() - now_us
        off_us = abs(self.wall_ahead_us)
        slew = 0
        if _NEGLIGIBLE_US <= off_us <= TOLERANCE_US:
            slew = 1 if self.wall_ahead_us > 0 else -1
        if slew or self._line[2]:
            self._line = (now_us, self._steady_us(), slew)

    @property
    def is_stepped(self) -> bool:
        """Whether the system's clock has been set since the start, by more than is slewed."""
        return abs(self.wall_ahead_us) > TOLERANCE_US

    @property
    def alarms(self) -> list[str]:
        """What an operator should know, a sentence each."""
        said = [self._start_alarm] if self._start_alarm else []
        if self.is_stepped:
            said.append(_said_while_running(self.wall_ahead_us))
        return said


def _said_at_start(start: Start) -> str:
    if start.verdict == BEHIND:
        return (
            f"at the start the system's clock was {_long(start.off_us)} behind the newest time "
            "in the log: it was wrong before, or is wrong now; messages get the system's time, "
            "and deadlines of older ones were moved to fit; correct the clock and start again "
            "if it is wrong now"
        )
    if start.verdict == AHEAD:
        return (
            f"at the start the system's clock was {_long(start.off_us)} ahead of the newest "
            "time in the log, more than limits.downtime_max_s: the broker was down for so "
            "long, or the clock is wrong; nothing expired and nothing was deleted by age for "
            "that time; start again to clear this, with a corrected clock if it is wrong"
        )
    return ""


def _said_while_running(ahead_us: int) -> str:
    direction = "ahead of" if ahead_us > 0 else "behind"
    return (
        f"the system's clock was set, and is {_long(ahead_us)} {direction} the broker's time, "
        "which did not follow it: nothing expires by that; start again to take the system's "
        "time once it is right"
    )


def _long(off_us: int) -> str:
    """Return a duration in days and h:mm:ss."""
    return str(timedelta(seconds=abs(off_us) // _US_PER_S))
