"""In flight: the messages of a channel that were handed out and are not settled.

Each is either held by a consumer or *returned*: its timer ended or its consumer left, and it
waits to be handed out again, oldest first. A message whose next delivery is its last allowed
one waits apart, for a consumer that holds nothing else: if it makes that consumer crash, no
other message loses an attempt.
"""

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.broker.delivery.channels import Entry


class InFlight:
    """Open deliveries by tag, and those of them that wait to be handed out again."""

    def __init__(self) -> None:
        self.count: int = 0  # with consumers
        self.bytes: int = 0  # of those messages
        self.open: dict[int, Entry] = {}
        self.returned: list[int] = []  # heaps of tags; some may be stale
        self.last_chances: list[int] = []

    def __len__(self) -> int:
        return len(self.open)

    def all(self) -> "list[Entry]":
        """Return every open entry."""
        return list(self.open.values())

    def add(self, entry: "Entry") -> None:
        """Count an entry as being with a consumer."""
        self.open[entry.id] = entry
        self.count += 1
        self.bytes += len(entry.message.body)

    def give_back(self, entry: "Entry", *, last_chance: bool) -> None:
        """Let an entry that is with no consumer wait for its next delivery."""
        self.open[entry.id] = entry
        entry.is_last_chance = last_chance
        heapq.heappush(self.last_chances if last_chance else self.returned, entry.id)

    def uncount(self, entry: "Entry") -> None:
        """Note that an entry is no longer with a consumer."""
        self.count -= 1
        self.bytes -= len(entry.message.body)

    def remove(self, tag: int) -> None:
        """Close a tag; the heaps drop it when it reaches their top."""
        del self.open[tag]

    def last_chance(self) -> "Entry | None":
        """Return the oldest entry that waits for a consumer that holds nothing else."""
        return self._live_head(self.last_chances, last_chance=True)

    def oldest_unheld(self) -> "Entry | None":
        """Return the oldest entry that no consumer holds, delayed ones included."""
        oldest: Entry | None = None
        if len(self.open) > self.count:
            for entry in self.open.values():
                if entry.consumer is None and (oldest is None or entry.id < oldest.id):
                    oldest = entry
        return oldest

    def take_returned(self, *, consumer_is_idle: bool) -> "Entry | None":
        """Take the oldest entry that this consumer may have."""
        if consumer_is_idle:
            entry = self._live_head(self.last_chances, last_chance=True)
            if entry is not None:
                heapq.heappop(self.last_chances)
                return entry
        entry = self._live_head(self.returned, last_chance=False)
        if entry is not None:
            heapq.heappop(self.returned)
        return entry

    def _live_head(self, heap: list[int], *, last_chance: bool) -> "Entry | None":
        while heap:
            entry = self.open.get(heap[0])
            # It may be stale: a consumer holds the entry now, a timer delays it, or it is
            # listed in the other heap.
            if (
                entry is not None
                and entry.consumer is None
                and entry.due_us == 0
                and entry.is_last_chance == last_chance
            ):
                return entry
            heapq.heappop(heap)
        return None
