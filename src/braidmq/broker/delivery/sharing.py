"""Sharing: which of a queue's consumers gets a message, and what a queue that is full drops.

What a single delivery is, and how it ends, is the same for every channel: see `pushing` and
`settling`.
"""

from typing import final

from braidmq.broker.authorize import SUBSCRIBE, authorize
from braidmq.broker.delivery.channels import Channel, Delivery
from braidmq.broker.delivery.purges import Purges
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.queue import Lane, Ledger
from braidmq.broker.delivery.queues import Queue, QueueConsumer
from braidmq.broker.delivery.replays import Replays
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.outgoing import Effects
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message


@final
class Sharing:
    """Moves messages into queues and out of them."""

    def __init__(self, pushing: Pushing, purges: Purges, replays: Replays) -> None:
        self.pushing: Pushing = pushing
        self.purges: Purges = purges
        self.replays: Replays = replays
        self.effects: Effects = pushing.effects
        self.windows: Windows = pushing.windows
        self.stats: Stats = pushing.stats

    # In: a message comes to a queue.

    def route(self, queue: Queue, message: Message, now_us: int) -> None:
        """Put a message before the consumers of a queue."""
        if message.qos != 0:
            if message.id < queue.id:
                return  # it was on its way before the queue was declared
            queue.pending -= 1
        if queue.ledger is not None:
            self._route_to_views(queue, queue.ledger, message, now_us)
            return
        lane = queue.lane_of(message.priority)
        if message.qos == 0:
            self.windows.offer_volatile(lane, message)
        else:
            lane.unsettled += 1
            lane.last_id = message.id
            if queue.consumers or queue.drops_oldest():
                self.pushing.offer(lane, message, now_us)
            else:
                lane.position.behind = True  # without a consumer it can wait in the log
        self.pump(queue, now_us)
        self.drop_excess(queue, now_us)

    def _route_to_views(
        self, queue: Queue, ledger: Ledger, message: Message, now_us: int
    ) -> None:
        if ledger.keeps_nothing:
            self._broadcast(queue, message)
            return
        if message.qos == 0:
            self.windows.offer_volatile(ledger, message)
        else:
            ledger.unsettled += 1
            for consumer in queue.consumers:
                view = consumer.view
                assert view is not None
                view.unsettled += 1
                self.pushing.offer(view, message, now_us)
        self.pump(queue, now_us)
        self.drop_excess(queue, now_us)

    def _broadcast(self, queue: Queue, message: Message) -> None:
        """Push a message once to every subscriber that has room; the others miss it."""
        pushed = False
        for consumer in list(queue.consumers):
            has_room = consumer.peer.room_bytes > 0 and consumer.prefetch > 0
            if has_room and self._is_allowed(queue, consumer):
                self.pushing.deliver(consumer.peer, Delivery(message, 0, 0))
                pushed = True
            else:
                self.stats.dropped.overflow += 1
        if not pushed:
            self.stats.dropped.unheard += 1

    def drop_excess(self, queue: Queue, now_us: int) -> None:
        """Drop the oldest messages of a queue that has too many, if that is its policy."""
        if not queue.drops_oldest():
            return
        size_max = queue.policy.max_size
        views = queue.views()
        for view in views:
            while view.unsettled - view.in_flight.count > size_max:
                if not self._drop_oldest(view, now_us):
                    break
        while not views and queue.waiting() > size_max:
            if not self._drop_oldest(_lowest_waiting(queue), now_us):
                return  # it has to be read from the log first; this is called again then

    def _drop_oldest(self, channel: Channel, now_us: int) -> bool:
        if not self.purges.drop_oldest(channel, now_us):
            return False
        self.stats.dropped.overflow += 1
        return True

    # Out: a consumer gets a message.

    def pump(self, queue: Queue, now_us: int) -> None:
        """Push what waits in a queue to its consumers."""
        if queue.replaying:
            self.replays.send_back(queue, now_us)
        if queue.ledger is not None:
            self._pump_views(queue, queue.ledger, now_us)
        else:
            while True:
                consumer = self._next_consumer(queue)
                if consumer is None or not self._hand_out_any(queue, consumer, now_us):
                    break
                if len(queue.consumers) > 1:
                    queue.consumers.remove(consumer)
                    queue.consumers.append(consumer)
        if queue.blocked:
            self.unblock(queue)

    def _pump_views(self, queue: Queue, ledger: Ledger, now_us: int) -> None:
        volatile = ledger.volatile
        while volatile and queue.consumers:
            message = volatile.popleft()
            self.windows.hold(ledger, -len(message.body))
            self._broadcast(queue, message)
        for consumer in list(queue.consumers):
            view = consumer.view
            if view is None:
                return  # nothing waits in a fan-out without acknowledgement
            while _may_take(consumer) and self._is_allowed(queue, consumer):
                if not self.pushing.hand_out(view, consumer, 0, now_us):
                    break

    def _next_consumer(self, queue: Queue) -> QueueConsumer | None:
        """Return the consumer that holds fewest and may take one more; equals take turns."""
        while True:
            best: QueueConsumer | None = None
            for consumer in queue.consumers:
                if (best is None or consumer.held < best.held) and _may_take(consumer):
                    best = consumer
                    if consumer.held == 0:
                        break
            if best is None or self._is_allowed(queue, best):
                return best
            # It was barred just now: look again, without it.

    def _is_allowed(self, queue: Queue, consumer: QueueConsumer) -> bool:
        """Say whether the consumer may still have messages: permissions change meanwhile."""
        principal = consumer.peer.principal
        assert principal is not None
        if consumer.allowed == principal.version:
            return True
        if consumer.barred == principal.version:
            return False
        if authorize(principal, SUBSCRIBE, queue.topic.name):
            consumer.allowed = principal.version
            return True
        consumer.barred = principal.version
        return False

    def _hand_out_any(self, queue: Queue, consumer: QueueConsumer, now_us: int) -> bool:
        for number in range(len(queue.lanes) - 1, -1, -1):  # the highest priority first
            lane = queue.lanes[number]
            if self.pushing.hand_out(lane, consumer, 0, now_us):
                return True
            if _has_messages(lane):
                return False  # no message of a lower priority goes before them
        return False

    def unblock(self, queue: Queue) -> None:
        """Wake the publishers that wait for room in a queue, if it has some or has ended."""
        if queue.blocked and (queue.topic.queue is not queue or queue.has_room()):
            self.wake_blocked(queue)

    def wake_blocked(self, queue: Queue) -> None:
        """Have the publishers that wait for room in a queue ask for a verdict again."""
        blocked = queue.blocked
        queue.blocked = []
        for peer in blocked:
            self.effects.touch(peer)


def _lowest_waiting(queue: Queue) -> Channel:
    """Return the channel with the lowest priority of those where messages wait."""
    if queue.ledger is not None:
        return queue.ledger
    for lane in queue.lanes:
        if lane.waiting() > 0:
            break
    return lane


def _has_messages(lane: Lane) -> bool:
    if lane.ready or lane.in_flight.returned or lane.in_flight.last_chances:
        return True
    position = lane.position
    settled = position.settled  # after a restart all that the log has of it may be settled
    return position.behind and (
        settled is None or settled.skip_from(position.cursor) < lane.last_id
    )


def _may_take(consumer: QueueConsumer) -> bool:
    principal = consumer.peer.principal
    return (
        consumer.held < consumer.prefetch
        and consumer.peer.room_bytes > 0
        and not consumer.isolated
        and (principal is None or consumer.barred != principal.version)
    )
