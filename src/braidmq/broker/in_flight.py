"""In flight: the messages of a subscription that were handed out and are not settled.

Each is either with a consumer or *returned*: its timer ended or its consumer went, and it
waits to be handed out again, oldest first. A message whose next delivery is its last allowed
one waits apart, for a consumer that holds nothing else.
"""

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.broker.subscriptions import Entry


class InFlight:
    """Open tags and what became of them."""

    def __init__(self) -> None:
        self.count: int = 0  # with consumers
        self.bytes: int = 0  # of those messages
        self._open: dict[int, Entry] = {}
        self._returned: list[int] = []
        self._last_chance: list[int] = []

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> "list[Entry]":
        """Return every open entry."""
        return list(self._open.values())

    def find(self, tag: int) -> "Entry | None":
        """Return the open entry with that tag."""
        return self._open.get(tag)

    def add(self, entry: "Entry") -> None:
        """Count an entry as being with a consumer."""
        self._open[entry.id] = entry
        self.count += 1
        self.bytes += len(entry.message.body)

    def give_back(self, entry: "Entry", *, last_chance: bool) -> None:
        """Let an entry that is with no consumer wait for its next delivery."""
        self._open[entry.id] = entry
        heapq.heappush(self._last_chance if last_chance else self._returned, entry.id)

    def uncount(self, entry: "Entry") -> None:
        """Note that an entry is no longer with a consumer."""
        self.count -= 1
        self.bytes -= len(entry.message.body)

    def remove(self, tag: int) -> None:
        """Close a tag; the heaps forget it when they come to it."""
        del self._open[tag]

    def waiting(self) -> int:
        """Return how many entries wait for another delivery, some of them perhaps settled."""
        return len(self._returned) + len(self._last_chance)

    def last_chance(self) -> "Entry | None":
        """Return the oldest entry that waits for a consumer that holds nothing else."""
        return self._live_head(self._last_chance)

    def take_returned(self, *, consumer_is_idle: bool) -> "Entry | None":
        """Take the oldest entry that this consumer may have."""
        if consumer_is_idle:
            entry = self._live_head(self._last_chance)
            if entry is not None:
                heapq.heappop(self._last_chance)
                return entry
        entry = self._live_head(self._returned)
        if entry is not None:
            heapq.heappop(self._returned)
        return entry

    def _live_head(self, heap: list[int]) -> "Entry | None":
        while heap:
            entry = self._open.get(heap[0])
            if entry is not None:
                return entry
            heapq.heappop(heap)
        return None
