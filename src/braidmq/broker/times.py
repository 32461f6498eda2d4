"""Times: how those in the log hang together when the system's clock was wrong for a while.

Every record is stamped with the broker's time, and deadlines are stored as such times. A start
compares the system's clock with the end of the log. If they cannot both be right, the broker
takes the system's time from there on, and a CLOCK record says how far that is from where the
time would be by what is known to have passed:

    stamps    10:00  10:01  10:02 | CLOCK +10 years |  10:02 ...
    deadline         10:31 ·······│················▶ 10:31, ten years later

A deadline from before the step is moved by it, so that a message lives as long as it was meant
to, whichever way the clock was wrong. Stamps stay as they were written.
"""

from typing import Final, final

from braidmq.broker import records
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.topics import Pending

TOLERANCE_US: Final = 60 * 1_000_000
"""A clock that is off by less is not called wrong: the broker's time is slewed towards it."""

STEPS_MAX: Final = 1_000
"""Steps that are remembered; above it the oldest two become one."""

FINE: Final = 0
BEHIND: Final = 1
AHEAD: Final = 2


@final
class Stepped(Pending):
    """A step of the clock."""

    def __init__(self, by_us: int) -> None:
        self.by_us: int = by_us


@final
class Start:
    """What a start makes of the system's clock.

    `verdict` is BEHIND if the system's clock is before the end of the log, AHEAD if it is later
    than a broker is believed to have been down, and `off_us` is by how much it is off then.
    `now_us` is the broker's time, and `step_us` by how much earlier deadlines move.
    """

    def __init__(self, now_us: int, *, verdict: int, off_us: int, step_us: int) -> None:
        self.now_us: int = now_us
        self.verdict: int = verdict
        self.off_us: int = off_us
        self.step_us: int = step_us


class Times:
    """The newest time in the log, and every step of the clock since its beginning."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing: Outgoing = outgoing
        self.newest_us: int = 0  # what recovery has read last
        self.wall_ahead_us: int = 0  # how far the system's clock was ahead of the broker's time
        self.kept_ahead_us: int = 0  # the same, as a start would find it that came now
        self._steps: list[tuple[int, int]] = []  # id of the record, by how much; oldest first

    def saw(self, time_us: int) -> None:
        """Note a time that recovery has read."""
        self.newest_us = max(self.newest_us, time_us)

    def judge(self, wall_us: int, downtime_max_us: int) -> Start:
        """Say what the time is at a start when the system's clock says *wall_us*.

        A broker that was down for longer than *downtime_max_us* is not believed, 0 believes
        all: then, as when the clock went back, no time has passed since the end of the log.
        """
        if self.newest_us == 0:
            return Start(wall_us, verdict=FINE, off_us=0, step_us=0)
        off_us = wall_us - (self.newest_us + self.wall_ahead_us)
        verdict = FINE
        if off_us < -TOLERANCE_US:
            verdict = BEHIND
        elif 0 < downtime_max_us < off_us:
            verdict = AHEAD
        passed_us = max(0, off_us) if verdict == FINE else 0
        step_us = wall_us - (self.newest_us + passed_us)
        if verdict == FINE and abs(step_us) <= TOLERANCE_US:
            now_us = max(wall_us, self.newest_us)
            return Start(now_us, verdict=FINE, off_us=0, step_us=0)
        return Start(wall_us, verdict=verdict, off_us=off_us, step_us=step_us)

    def step(self, by_us: int, now_us: int) -> None:
        """Move the deadlines of all records so far, durably; *now_us* is the time after it."""
        assert by_us != 0
        self.newest_us = now_us
        self.wall_ahead_us = self.kept_ahead_us = 0
        record = records.encode_clock(by_us, now_us)
        self._add(self._outgoing.add(Stepped(by_us), record), by_us)

    @property
    def is_ahead_kept(self) -> bool:
        """Whether a start that came now would know where the system's clock is."""
        return abs(self.wall_ahead_us - self.kept_ahead_us) <= TOLERANCE_US

    def moved_us(self, record_id: int) -> int:
        """Return by how much the deadlines of a record have moved since it was written."""
        moved_us = 0
        for step_id, by_us in reversed(self._steps):
            if step_id <= record_id:
                break
            moved_us += by_us
        return moved_us

    def deadline_us(self, record_id: int, stored_us: int) -> int:
        """Return when a deadline falls due that a record holds; 0 stays 0, which is never."""
        if stored_us == 0 or not self._steps:
            return stored_us
        return max(1, stored_us + self.moved_us(record_id))

    def step_ids(self) -> list[int]:
        """Return the ids at which times may go back, oldest first."""
        return [step_id for step_id, _ in self._steps]

    def take_back(self, taken: list[Pending], now_us: int) -> None:
        """Queue a step again that the log had no room for."""
        for item in taken:
            if isinstance(item, Stepped):
                self._steps = [step for step in self._steps if step[0] != item.id]
                self.step(item.by_us, now_us)

    def replay(self, record_id: int, record: bytes) -> int:
        """Apply a CLOCK record again; return by how much deadlines move."""
        by_us, self.newest_us = records.read_clock(record)
        self.wall_ahead_us = self.kept_ahead_us = 0
        self._add(record_id, by_us)
        return by_us

    def rows(self) -> list[tuple[int, int]]:
        """Return what a snapshot keeps of the steps."""
        return list(self._steps)

    def restore(self, rows: list[tuple[int, int]]) -> None:
        """Restore what :meth:`rows` returned."""
        self._steps = list(rows)

    def _add(self, step_id: int, by_us: int) -> None:
        self._steps = [*self._steps, (step_id, by_us)]  # new: the log's threads read it too
        if len(self._steps) > STEPS_MAX:
            (_, older), (at_id, newer) = self._steps[:2]
            self._steps = [(at_id, older + newer), *self._steps[2:]]
