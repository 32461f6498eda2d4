"""Purges: how everything that waits in a queue is dropped at once, and how the oldest is.

Deliveries that consumers hold are never touched: they are acknowledged, or come back.
"""

from typing import final

from braidmq.broker.delivery.channels import RETURNED, Channel
from braidmq.broker.delivery.queue import Lane, Ledger, View
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.outgoing import Effects


@final
class Purges:
    """Drops what waits."""

    def __init__(self, settling: Settling) -> None:
        self.settling: Settling = settling
        self.effects: Effects = settling.effects
        self.windows: Windows = settling.windows

    def empty(self, queue: Queue, now_us: int) -> None:
        """Settle everything that waits in a queue."""
        for lane in queue.lanes:
            self._empty_lane(lane, now_us)
        if queue.ledger is not None:
            self._empty_ledger(queue, queue.ledger, now_us)
        # As after an acknowledgement the next barrier records it: purged messages must not
        # return after a restart.
        self.effects.acknowledged = True

    def _empty_lane(self, lane: Lane, now_us: int) -> None:
        """Settle what waits in a lane, in its window and in the log."""
        while self.drop_oldest(lane, now_us):
            pass
        rest = max(0, lane.unsettled - len(lane.in_flight.open))
        lane.unsettled -= rest
        position = lane.position
        after_id = position.cursor
        position.skip_to(lane.topic.last_id)
        if position.cursor > after_id:
            progress = self.effects.progress_of(lane, now_us)
            progress.settle_range(after_id, position.cursor, rest)

    def _empty_ledger(self, queue: Queue, ledger: Ledger, now_us: int) -> None:
        """Settle what no subscriber of a fan-out holds, even if others still wait for it."""
        settled = ledger.settled()
        held: set[int] = set()
        for view in queue.views():
            self._empty_view(view)
            for message_id in view.in_flight.open:
                if not settled.contains(message_id):
                    held.add(message_id)
        while self.drop_oldest(ledger, now_us):  # messages that live in memory only
            pass
        ledger.position.skip_to(ledger.topic.last_id)
        emptied = settled.copy()
        for message_id in held:
            emptied.add(message_id - 1, message_id)
        count = ledger.unsettled - len(held)
        for after, last in emptied.open_ranges(ledger.position.cursor):
            self.effects.progress_of(ledger, now_us).settle_range(after, last, count)
            settled.add(after, last)
            count = 0
        ledger.unsettled = len(held)

    def _empty_view(self, view: View) -> None:
        """Drop what waits for one subscriber; the ledger records what is settled by that."""
        waiting = list(view.ready)
        view.ready.clear()
        for entry in view.in_flight.all():
            if entry.consumer is None:
                view.in_flight.remove(entry.id)
                waiting.append(entry)
        for entry in waiting:
            self.windows.hold(view, -len(entry.message.body))
            entry.finish()
        view.unsettled = len(view.in_flight.open)
        view.position.skip_to(view.topic.last_id)

    def drop_oldest(self, channel: Channel, now_us: int) -> bool:
        """Drop the oldest waiting message; say whether one was in memory."""
        ready = channel.ready
        volatile = channel.volatile
        entry = channel.in_flight.oldest_unheld()
        if entry is None and ready:
            entry = ready[0]
        if volatile and (entry is None or volatile[0].arrival < entry.message.arrival):
            self.windows.hold(channel, -len(volatile.popleft().body))
            return True
        if entry is None:
            if channel.position.behind:
                self.effects.read_now(channel)
            return False
        if entry.state == RETURNED:
            self.settling.release(entry)
        else:
            ready.popleft()
        self.settling.end_entry(entry, now_us)
        return True
