"""Acknowledgements: which messages of a channel are settled, as ranges.

A range (after, last] stands for every message of the channel's topic with an id above `after`
and up to `last`. `after` is the id of the topic's previous message, so neighbours' ranges meet
although ids of other topics lie between them: acknowledged in order, they stay one range.
"""

from typing import Final


class Settled:
    """Ranges of settled messages; everything up to `floor` is settled.

    Most methods walk over all ranges. There are few: messages are settled nearly in order, and
    what is settled out of order is bounded by what consumers hold, or by `AHEAD_RANGES_MAX`.
    """

    def __init__(self, floor: int) -> None:
        self._ranges: list[tuple[int, int]] = [(0, floor)]

    @property
    def floor(self) -> int:
        """The id up to which every message is settled."""
        return self._ranges[0][1]

    @property
    def range_count(self) -> int:
        """How many ranges there are."""
        return len(self._ranges)

    def add(self, after: int, last: int) -> None:
        """Settle the messages in (after, last]."""
        assert after < last
        ranges = self._ranges
        if after == ranges[-1][1]:  # in order, the common case
            ranges[-1] = (ranges[-1][0], last)
            return
        if after > ranges[-1][1]:
            ranges.append((after, last))
            return
        # Out of order: join every range that it meets or overlaps.
        low = after
        high = last
        kept: list[tuple[int, int]] = []
        for first, end in ranges:
            if end < low or first > high:
                kept.append((first, end))
            else:
                low = min(low, first)
                high = max(high, end)
        kept.append((low, high))
        kept.sort()
        self._ranges = kept

    def skip_from(self, position: int) -> int:
        """Return the end of the settled range that begins at or spans *position*."""
        for after, last in self._ranges:
            if after <= position < last:
                return last
        return position

    def next_range_after(self, position: int) -> int:
        """Return where the next settled range above *position* begins, or 0 if none does."""
        for after, _ in self._ranges:
            if after > position:
                return after
        return 0

    def contains(self, message_id: int) -> bool:
        """Say whether the message is settled."""
        return any(after < message_id <= last for after, last in self._ranges)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges in order; the first begins at 0."""
        return list(self._ranges)

    def open_ranges(self, up_to: int) -> list[tuple[int, int]]:
        """Return the ranges up to *up_to* that are between the settled ones."""
        found: list[tuple[int, int]] = []
        at = 0
        for after, last in self._ranges:
            if at < after and at < up_to:
                found.append((at, min(after, up_to)))
            at = max(at, last)
        if at < up_to:
            found.append((at, up_to))
        return found

    def copy(self) -> "Settled":
        """Return a copy, to be changed on its own."""
        other = Settled(0)
        other._ranges = list(self._ranges)
        return other

    def reopen(self, message_id: int) -> None:
        """Undo the settling of a message."""
        kept: list[tuple[int, int]] = []
        for after, last in self._ranges:
            if after < message_id <= last:
                # The range that begins at 0 stays even if it is empty: its end is the floor.
                if after < message_id - 1 or after == 0:
                    kept.append((after, message_id - 1))
                if message_id < last:
                    kept.append((message_id, last))
            else:
                kept.append((after, last))
        self._ranges = kept


COMPACT_RANGES: Final = 4096
"""More ranges than this are sorted and joined; they only pile up out of order."""


class Progress:
    """What happened in one channel since its last progress record."""

    def __init__(self) -> None:
        self.handed_id: int = 0
        self.settled_count: int = 0
        self.ranges: list[tuple[int, int]] = []
        self.attempts: dict[int, int] = {}
        self._compact_at: int = COMPACT_RANGES

    def settle(self, after: int, message_id: int) -> None:
        """Note that a message was settled; *after* is the message before it."""
        self.settled_count += 1
        ranges = self.ranges
        if ranges and ranges[-1][1] == after:  # in order, as most are: spare the call
            ranges[-1] = (ranges[-1][0], message_id)
        else:
            self._add_range(after, message_id)
        if self.attempts:
            self.attempts.pop(message_id, None)  # of no use to a restart now

    def settle_range(self, after: int, last: int, count: int) -> None:
        """Note that the *count* messages in (after, last] were settled."""
        self.settled_count += count
        self._add_range(after, last)

    def _add_range(self, after: int, message_id: int) -> None:
        ranges = self.ranges
        if ranges and ranges[-1][1] == after:
            ranges[-1] = (ranges[-1][0], message_id)
        else:
            ranges.append((after, message_id))
            if len(ranges) >= self._compact_at:
                self.compact()

    def compact(self) -> None:
        """Join the ranges that meet, in whatever order they were noted."""
        joined: list[tuple[int, int]] = []
        for after, last in sorted(self.ranges):
            if joined and joined[-1][1] >= after:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((after, last))
        self.ranges = joined
        self._compact_at = max(COMPACT_RANGES, 2 * len(joined))

    def size_bytes(self) -> int:
        """Return about how many bytes of a record this takes."""
        return 28 + 16 * len(self.ranges) + 12 * len(self.attempts)

    def followed_by(self, later: "Progress | None") -> "Progress":
        """Return this with what happened after it added: the log refused the record of this."""
        if later is None:
            return self
        # `later.attempts` win below: they are the newer count of the same messages.
        self.handed_id = max(self.handed_id, later.handed_id)
        self.settled_count += later.settled_count
        for after, last in later.ranges:
            self._add_range(after, last)
            self.attempts.pop(last, None)
        self.compact()
        self.attempts.update(later.attempts)
        return self
