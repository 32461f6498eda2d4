"""Recounts: how many messages a queue really has, after some were lost from the log.

A queue counts what is not settled without reading it. What forced retention deletes, and what a
repair gives up, is not settled by anyone and would be counted for ever; a queue with a bound
would then refuse every publish. So the log counts again what it still has, and the difference
to what the queue expects there is what was lost.

    Survey        which channels to count again, and where in the log their messages are
    Recount       one of them
    Corrections   what the log has counted, to be applied

The log counts on another thread. Messages that come, and deliveries that end meanwhile, change
the number as always: only the difference is subtracted. With very many queues a survey and its
corrections take several turns, as maintenance does.
"""

from typing import Final, final

from braidmq.broker.delivery.queue import Lane, Ledger, Queue, QueueChannel
from braidmq.broker.delivery.queues import Queues

ROWS_MAX: Final = 2_000
"""Channels, and holes in what is settled of them, that are looked at in one turn."""

Ranges = list[tuple[int, int]]
"""Of ids, each from the first to the last."""


@final
class Recount:
    """One channel, and the part of the log where its messages are."""

    def __init__(self, channel: QueueChannel, ranges: Ranges, expected: int) -> None:
        self.channel: QueueChannel = channel
        self.topic: bytes = channel.topic.raw
        self.priority: int = channel.priority if isinstance(channel, Lane) else -1
        self.ranges: Ranges = ranges
        self.expected: int = expected

    def apply(self, counted: int) -> None:
        """Subtract what was expected in the log and is not there."""
        channel = self.channel
        lost = self.expected - counted
        if lost <= 0 or channel.ended:
            return
        if not isinstance(channel, Ledger) and not channel.position.behind:
            return  # it has read everything meanwhile, and knows its number
        held = len(channel.ready) + len(channel.in_flight.open)
        channel.unsettled = max(held, channel.unsettled - lost)


@final
class Survey:
    """What to count again after the ids of *lost* have left the log: in the end, `found`."""

    def __init__(self, queues: Queues, lost: Ranges) -> None:
        self.found: list[Recount] = []
        self._lost: Ranges = lost
        self._left: list[Queue] = list(queues.by_name.values()) if lost else []

    def go_on(self, rows_max: int = ROWS_MAX) -> bool:
        """Look at some more queues; return whether those were the last."""
        rows = 0
        while self._left and rows < rows_max:
            queue = self._left.pop()
            rows += 1
            if queue.topic.queue is not queue:
                continue  # it was deleted meanwhile
            for channel in queue.channels():
                rows += 1
                if channel.unsettled > 0 and not channel.ended:
                    recount = _of(queue, channel, self._lost)
                    if recount is not None:
                        rows += len(recount.ranges)
                        self.found.append(recount)
        return not self._left


@final
class Corrections:
    """What the log has counted, on its way to the queues."""

    def __init__(self, queues: Queues, counts: list[tuple[Recount, int]]) -> None:
        self._queues: Queues = queues
        self._left: list[tuple[Recount, int]] = counts

    def go_on(self, rows_max: int = ROWS_MAX) -> bool:
        """Apply some more; return whether those were the last."""
        rows = 0
        while self._left and rows < rows_max:
            recount, counted = self._left.pop()
            rows += 1
            recount.apply(counted)
            self._queues.unblock(recount.channel.queue)  # there may be room now
        return not self._left


def _of(queue: Queue, channel: QueueChannel, lost: Ranges) -> Recount | None:
    ranges = _ranges(channel)
    if not any(_overlap(ranges, first, last) for first, last in lost):
        return None
    expected = channel.unsettled
    if isinstance(channel, Ledger):
        expected -= _held_by_views(queue, channel, lost)
    else:
        expected -= len(channel.ready) + len(channel.in_flight.open)
    return Recount(channel, ranges, expected) if expected > 0 else None


def _ranges(channel: QueueChannel) -> Ranges:
    """Return where the log holds messages of a channel that are not in its memory."""
    position = channel.position
    after_id = 0 if isinstance(channel, Ledger) else position.cursor
    newest_id = channel.newest_id()
    if after_id >= newest_id:
        return []
    if position.settled is None:
        return [(after_id + 1, newest_id)]
    return [
        (max(after, after_id) + 1, last)
        for after, last in position.settled.open_ranges(newest_id)
        if last > after_id
    ]


def _overlap(ranges: Ranges, first: int, last: int) -> bool:
    return any(start <= last and first <= end for start, end in ranges)


def _held_by_views(queue: Queue, ledger: Ledger, lost: Ranges) -> int:
    """Return how many lost messages are still in the memory of a subscriber's view."""
    held: set[int] = set()
    for view in queue.views():
        for entry in [*view.ready, *view.in_flight.all()]:
            if not ledger.settled().contains(entry.id) and _overlap(lost, entry.id, entry.id):
                held.add(entry.id)
    return len(held)
