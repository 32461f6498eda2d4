"""Purges: how all that waits in a queue ends at once, and how the oldest of it does.

What consumers hold is never touched: it ends by their word, or comes back.
"""

from braidmq.broker.delivery.queues import Queue
from braidmq.broker.delivery.replays import Replayer
from braidmq.broker.delivery.subscriptions import RETURNED, Subscription


class Purger(Replayer):
    """Ends what waits."""

    def empty(self, queue: Queue, now_us: int) -> None:
        """Settle everything that waits in a queue."""
        for lane in queue.lanes:
            if lane.is_ledger:
                self._empty_ledger(queue, lane, now_us)
            else:
                self._empty_lane(lane, now_us)
        self.acknowledged = True  # nobody may meet again what an operator let go of

    def _empty_lane(self, lane: Subscription, now_us: int) -> None:
        """Settle what waits in a lane, at hand and in the log."""
        while self.drop_oldest(lane, now_us):
            pass
        rest = max(0, lane.unsettled - len(lane.in_flight.open))
        lane.unsettled -= rest
        after_id = lane.cursor
        _skip_the_log(lane)
        if lane.cursor > after_id:
            self.progress_of(lane, now_us).settle_range(after_id, lane.cursor, rest)

    def _empty_ledger(self, queue: Queue, ledger: Subscription, now_us: int) -> None:
        """Settle what no subscriber of a fan-out holds, though it waits for others."""
        settled = ledger.settled
        assert settled is not None
        held: set[int] = set()
        for consumer in queue.consumers:
            if consumer.subscription is not ledger:
                self._empty_view(consumer.subscription)
                for message_id in consumer.subscription.in_flight.open:
                    if not settled.contains(message_id):
                        held.add(message_id)
        while self.drop_oldest(ledger, now_us):  # what lives in memory only
            pass
        _skip_the_log(ledger)
        emptied = settled.copy()
        for message_id in held:
            emptied.add(message_id - 1, message_id)
        count = ledger.unsettled - len(held)
        for after, last in emptied.open_ranges(ledger.cursor):
            self.progress_of(ledger, now_us).settle_range(after, last, count)
            settled.add(after, last)
            count = 0
        ledger.unsettled = len(held)

    def _empty_view(self, view: Subscription) -> None:
        """Let go of what waits for one subscriber; the ledger says what has an end."""
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
        _skip_the_log(view)

    def drop_oldest(self, subscription: Subscription, now_us: int) -> bool:
        """End the oldest waiting message; say whether one was at hand."""
        ready = subscription.ready
        volatile = subscription.volatile
        entry = subscription.in_flight.oldest_unheld()
        if entry is None and ready:
            entry = ready[0]
        if volatile and (entry is None or volatile[0].arrival < entry.message.arrival):
            self.windows.hold(subscription, -len(volatile.popleft().body))
            return True
        if entry is None:
            if subscription.behind and not subscription.reading and not subscription.is_ledger:
                subscription.reading = True
                self.reads.append(subscription)
            return False
        if entry.state == RETURNED:
            self.release(entry)
        else:
            ready.popleft()
        self.end_entry(entry, now_us)
        return True


def _skip_the_log(subscription: Subscription) -> None:
    last_id = max(subscription.cursor, subscription.topic.last_id)
    subscription.cursor = last_id
    subscription.tail = last_id
    subscription.behind = False
    subscription.known_attempts = {}
