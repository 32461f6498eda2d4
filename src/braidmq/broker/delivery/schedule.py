"""The schedule: deadlines of many things with few different delays.

Deadlines of one delay fall due in the order they were set, because time does not go back; so
each delay has a lane, a queue that is only touched at its ends. What is settled before its
deadline stays in its lane until it comes to the front or the lane is swept, which happens
when most of it is stale: setting and clearing cost O(1) each, and a lane is never longer than
twice what is live in it and a bit.
"""

from typing import Final, final

_SWEEP_MIN: Final = 1024
"""A lane shorter than this is not worth sweeping."""


class Deadline:
    """Something that falls due; `due_us` is 0 when it no longer does.

    `lane_us` and `place` say where it stands; any other place where it is listed is stale.
    """

    due_us: int = 0
    lane_us: int = 0
    place: int = 0


@final
class _Lane:
    """The deadlines of one delay, in order; those before `head` have been taken out."""

    def __init__(self, delay_us: int) -> None:
        self.delay_us: int = delay_us
        self.items: list[Deadline] = []
        self.head: int = 0
        self.first_place: int = 0  # of items[0]
        self.sweep_at: int = _SWEEP_MIN

    def is_live(self, index: int) -> bool:
        item = self.items[index]
        return (
            item.due_us != 0
            and item.lane_us == self.delay_us
            and item.place == self.first_place + index
        )

    def skip_stale(self) -> bool:
        """Step to the first live item; say whether there is one."""
        items = self.items
        while self.head < len(items):
            if self.is_live(self.head):
                return True
            self.head += 1
        if items:
            self.first_place += len(items)
            self.items = []
            self.head = 0
        return False

    def sweep(self) -> None:
        """Keep only what is live, each at a new place."""
        place = self.first_place + len(self.items)
        live: list[Deadline] = []
        for index in range(self.head, len(self.items)):
            if self.is_live(index):
                item = self.items[index]
                item.place = place + len(live)
                live.append(item)
        self.items = live
        self.head = 0
        self.first_place = place
        self.sweep_at = max(_SWEEP_MIN, 2 * len(live))


class Schedule:
    """Deadlines in lanes of equal delay."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}

    def __len__(self) -> int:
        return sum(len(lane.items) - lane.head for lane in self._lanes.values())

    def set(self, item: Deadline, now_us: int, delay_us: int) -> None:
        """Let *item* fall due *delay_us* from now; any earlier deadline of it is void."""
        lane = self._lanes.get(delay_us)
        if lane is None:
            lane = _Lane(delay_us)
            self._lanes[delay_us] = lane
        if len(lane.items) >= lane.sweep_at:
            lane.sweep()
        item.due_us = now_us + delay_us
        item.lane_us = delay_us
        item.place = lane.first_place + len(lane.items)
        lane.items.append(item)

    def next_due_us(self) -> int:
        """Return when the next live item falls due, or 0 if none does."""
        soonest = 0
        for lane in self._lanes.values():
            if lane.skip_stale():
                due_us = lane.items[lane.head].due_us
                if soonest == 0 or due_us < soonest:
                    soonest = due_us
        return soonest

    def take_due(self, now_us: int) -> list[Deadline]:
        """Take out and return what is due, each lane's in order."""
        due: list[Deadline] = []
        for lane in self._lanes.values():
            while lane.skip_stale():
                item = lane.items[lane.head]
                if item.due_us > now_us:
                    break
                item.due_us = 0
                due.append(item)
        return due
