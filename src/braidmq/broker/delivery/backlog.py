"""The backlog: what of a subscription is in the log only, and is read back piece by piece."""

from typing import final

from braidmq.broker import records
from braidmq.broker.delivery.followers import Follower, recipient_of
from braidmq.broker.delivery.sharing import QueueDeliverer
from braidmq.broker.delivery.subscriptions import Peer, Subscription
from braidmq.broker.settings import Settings
from braidmq.broker.topics import ORIGIN_QUMBED, Message, Topic


class ReadRequest:
    """A piece of backlog that a subscription has room for."""

    def __init__(self, subscription: Subscription, settings: Settings, held_bytes: int) -> None:
        self.subscription: Subscription = subscription
        self.topic: bytes = subscription.topic.raw
        self.priority: int = subscription.priority
        self.after_id: int = subscription.cursor
        self.up_to: int = subscription.topic.last_id
        self.count_max: int = max(1, subscription.rules.window - len(subscription.ready))
        # Whatever the budget says, one message is read: somebody has asked for it.
        room_bytes = min(
            subscription.rules.window_bytes - subscription.held_bytes,
            settings.memory_bytes - held_bytes,
        )
        self.bytes_max: int = max(1, room_bytes)


@final
class Backlog:
    """Asks for pieces of backlog, and takes in what was read."""

    def __init__(self, settings: Settings, deliverer: QueueDeliverer) -> None:
        self._settings: Settings = settings
        self._deliverer: QueueDeliverer = deliverer

    def read_now(self, subscription: Subscription) -> None:
        """Have more of the backlog read, however full the window is."""
        if not subscription.reading:
            subscription.reading = True
            self._deliverer.reads.append(subscription)

    def take_reads(self, now_us: int) -> list[ReadRequest]:
        """Take the pieces of backlog that are to be read back from the log."""
        wanted = self._deliverer.reads
        if not wanted:
            return []
        self._deliverer.reads = []
        requests: list[ReadRequest] = []
        for subscription in wanted:
            if isinstance(subscription, Follower):
                if subscription.peer is not None:
                    requests.append(self._request_for(subscription, subscription.peer))
                continue
            request = self._request(subscription)
            if request is not None:
                requests.append(request)
            elif subscription.queue is not None and not subscription.ended:
                # There was nothing left to read: whoever waited for it need not.
                self._deliverer.pump_queue(subscription.queue, now_us)
        return requests

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog; *reached_id* is how far it goes.

        Ids that retention has deleted by force are simply not among what is found.
        """
        subscription = request.subscription
        if subscription.ended:
            return
        if isinstance(subscription, Follower):
            self._deliverer.take_up(
                subscription,
                [stored(subscription.topic, i, record) for i, record in found],
                after_id=request.after_id,
                reached_id=reached_id,
                now_us=now_us,
            )
            return
        passed_id = subscription.cursor  # a purge may have gone past it meanwhile
        for message_id, record in found:
            if message_id > passed_id:
                message = stored(subscription.topic, message_id, record)
                self._deliverer.take_in_from_log(subscription, message, now_us)
        subscription.cursor = max(subscription.cursor, reached_id)
        self._end_reading(subscription)
        queue = subscription.queue
        if queue is None:
            if subscription.consumers:
                self._deliverer.pump(subscription, now_us)
            return
        self._deliverer.drop_excess(queue, now_us)
        self._deliverer.pump_queue(queue, now_us)

    def _request_for(self, follower: Follower, peer: Peer) -> ReadRequest:
        request = ReadRequest(follower, self._settings, self._deliverer.windows.held_bytes)
        # It holds nothing: what its peer has no room for would be read in vain.
        request.bytes_max = max(1, min(request.bytes_max, peer.room_bytes))
        return request

    def _request(self, subscription: Subscription) -> ReadRequest | None:
        settled = subscription.settled
        if settled is not None:
            skipped_to = settled.skip_from(subscription.cursor)
            if skipped_to > subscription.cursor:
                subscription.cursor = skipped_to
                subscription.tail = skipped_to
        if subscription.ended or subscription.cursor >= _newest_id(subscription):
            self._end_reading(subscription)
            return None
        request = ReadRequest(subscription, self._settings, self._deliverer.windows.held_bytes)
        if settled is not None:
            next_range = settled.next_range_after(subscription.cursor)
            if next_range:
                request.up_to = min(request.up_to, next_range)
        return request

    def _end_reading(self, subscription: Subscription) -> None:
        subscription.reading = False
        subscription.behind = subscription.cursor < _newest_id(subscription)
        if not subscription.behind:
            subscription.settled = None
            subscription.known_attempts = {}
            if subscription.queue is not None:
                # Now it is known; what retention has deleted by force no longer counts.
                subscription.unsettled = len(subscription.ready) + len(
                    subscription.in_flight.open
                )
        for peer in subscription.waiters:
            self._deliverer.touch(peer)
        subscription.waiters = []


def _newest_id(subscription: Subscription) -> int:
    # Messages of other priorities keep no lane behind: while they flow, it would not end.
    if subscription.priority >= 0:
        return subscription.newest_id
    return subscription.topic.last_id


def stored(topic: Topic, message_id: int, record: bytes) -> Message:
    """Return the message that a record of *topic* holds."""
    head = records.Head(record)
    message = Message(topic, 1, record[head.body_at :])
    message.id = message_id
    message.priority = head.priority
    message.origin = head.origin
    message.timestamp_us = head.timestamp_us
    message.expires_us = head.expires_us
    if head.headers_at != head.body_at:
        message.headers = record[head.headers_at : head.body_at]
        if message.origin == ORIGIN_QUMBED:
            message.recipient_key_id = recipient_of(message.headers)
    return message
