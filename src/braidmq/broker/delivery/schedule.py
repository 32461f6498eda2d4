"""The schedule: deadlines of many things with few different delays.

Deadlines of one delay fall due in the order they were set, because time does not go back; so
each delay has a row that is only touched at its ends. What is settled before its deadline stays
in its row until it comes to the front, or until most of the row is stale and it is swept:
setting and clearing cost O(1) each, and a row is never longer than about twice what is live.
"""

from typing import Final, final

_SWEEP_MIN: Final = 1024
"""A row shorter than this is not worth sweeping."""


class Deadline:
    """Something that falls due; `due_us` is 0 when it no longer does.

    `row_us` and `place` say where it stands; any other row or place that lists it is stale.
    """

    due_us: int = 0
    row_us: int = 0
    place: int = 0


@final
class _Row:
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
            and item.row_us == self.delay_us
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
    """Deadlines in rows of equal delay."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        return sum(len(row.items) - row.head for row in self._rows.values())

    def set(self, item: Deadline, now_us: int, delay_us: int) -> None:
        """Let *item* fall due *delay_us* from now; any earlier deadline of it is void."""
        row = self._rows.get(delay_us)
        if row is None:
            row = _Row(delay_us)
            self._rows[delay_us] = row
        if len(row.items) >= row.sweep_at:
            row.sweep()
        item.due_us = now_us + delay_us
        item.row_us = delay_us
        item.place = row.first_place + len(row.items)
        row.items.append(item)

    def next_due_us(self) -> int:
        """Return when the next live item falls due, or 0 if none does."""
        soonest = 0
        for row in self._rows.values():
            if row.skip_stale():
                due_us = row.items[row.head].due_us
                if soonest == 0 or due_us < soonest:
                    soonest = due_us
        return soonest

    def take_due(self, now_us: int) -> list[Deadline]:
        """Take out and return what is due, each row's in order."""
        due: list[Deadline] = []
        for row in self._rows.values():
            while row.skip_stale():
                item = row.items[row.head]
                if item.due_us > now_us:
                    break
                item.due_us = 0
                due.append(item)
        return due
