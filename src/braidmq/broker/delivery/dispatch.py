"""Dispatch: routes messages to the parts that move them, and joins those parts.

    route (a commit) ─────▶ Subscriptions ──┐
    supply (the log) ─────▶ Followers ──────┼──▶ Pushing ──▶ Settling ──▶ Windows, Effects
    timers_ended (time) ──▶ Queues ─────────┘        (arrows: who calls)
                               └──▶ Replays ──────────▶

The parts hold each other by name. The *backlog* of a channel or a follower is what it has only
in the log; it is read in pieces, each as large as there is room for.
"""

from typing import final

from braidmq.broker import records
from braidmq.broker.delivery.channels import Channel, Entry, Peer
from braidmq.broker.delivery.followers import Follower, Followers
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.queue import Lane
from braidmq.broker.delivery.queues import Queues
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.delivery.subscriptions import Subscription, Subscriptions
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.marks import recipient_of
from braidmq.broker.outgoing import Effects, Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.times import Times
from braidmq.broker.topics import ORIGIN_BLIP, ORIGIN_QUMBED, Message, Topic, Topics


class ReadRequest:
    """A piece of backlog that there is room for."""

    def __init__(self, topic: Topic, after_id: int) -> None:
        self.topic: bytes = topic.raw
        self.priority: int = -1  # -1: messages of every priority
        self.after_id: int = after_id
        self.up_to: int = topic.last_id
        self.count_max: int = 1
        self.bytes_max: int = 1

    def limit(self, count: int, room_bytes: int) -> None:
        """Bound the piece; one message is read however little room there is."""
        # Otherwise a message larger than the room would block its channel for ever.
        self.count_max = max(1, count)
        self.bytes_max = max(1, room_bytes)


@final
class ChannelRead(ReadRequest):
    """A piece that a channel's window has room for."""

    def __init__(self, channel: Channel, settings: Settings, held_bytes: int) -> None:
        super().__init__(channel.topic, channel.position.cursor)
        self.channel: Channel = channel
        if isinstance(channel, Lane):
            self.priority = channel.priority
        rules = channel.rules
        room_bytes = min(
            rules.window_bytes - channel.held_bytes, settings.memory_bytes - held_bytes
        )
        self.limit(channel.position.window - len(channel.ready), room_bytes)


@final
class FollowerRead(ReadRequest):
    """A piece that a follower's peer has room for; the follower itself holds nothing."""

    def __init__(
        self, follower: Follower, peer: Peer, settings: Settings, held_bytes: int
    ) -> None:
        super().__init__(follower.topic, follower.cursor)
        self.follower: Follower = follower
        room_bytes = min(settings.window_bytes, settings.memory_bytes - held_bytes)
        self.limit(settings.window, min(max(1, room_bytes), peer.room_bytes))


@final
class Dispatch:
    """Everything that moves messages."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        outgoing: Outgoing,
        stats: Stats,
        times: Times,
    ) -> None:
        self.stats: Stats = stats
        self.times: Times = times
        self.settling: Settling = Settling(settings, topics, outgoing, stats)
        self.effects: Effects = self.settling.effects
        self.windows: Windows = self.settling.windows
        self.pushing: Pushing = Pushing(self.settling)
        self.subscriptions: Subscriptions = Subscriptions(settings, self.pushing)
        self.followers: Followers = Followers(settings, self.pushing)
        self.queues: Queues = Queues(settings, self.pushing)
        self.settling.queues = self.queues  # dead letters make queues, which settle in turn
        self._settings: Settings = settings
        self._is_past_queues: bool = False  # in the current round of maintenance

    # A message comes: from a publisher, or back from a consumer.

    def route(self, message: Message, now_us: int) -> None:
        """Put a message that is committed, or lives in memory only, before its consumers."""
        topic = message.topic
        if message.id > 0:
            # Before any channel is asked: a channel is behind if its cursor is below this id.
            topic.last_id = message.id
            topic.message_count += 1
        else:
            topic.is_idle = False  # the log does not know that it is used
        stats = self.stats
        stats.published += 1
        stats.published_bytes += len(message.body)
        if message.origin != ORIGIN_BLIP:
            stats.by_origin[message.origin] += 1
        audience = topic.audience
        if audience is not None:
            pushing = self.pushing
            pushing.arrivals += 1
            message.arrival = pushing.arrivals
            is_full = False
            if audience.aside_qos0 or (audience.aside_qos1 and message.qos == 0):
                stats.dropped.overflow += audience.hear(message)
            for subscription in audience.awake:
                if message.qos != 0 and subscription.qos != 0:
                    if pushing.offer(subscription, message, now_us):
                        is_full = True
                    if subscription.consumers:
                        self.subscriptions.pump(subscription, now_us)
                elif not subscription.consumers:
                    # One of the two has QoS 0, so this delivery has QoS 0.
                    self.windows.offer_volatile(subscription, message)
                    if len(subscription.volatile) >= subscription.position.window:
                        is_full = True
                elif not self.subscriptions.pass_on(subscription, message):
                    self.windows.offer_volatile(subscription, message)
                    self.subscriptions.pump(subscription, now_us)
            if is_full:
                self.subscriptions.put_aside(topic)
        if topic.followers:
            self.followers.route(message, now_us)
        if topic.queue is not None:
            if audience is None:  # else it has its number, by which a ring knows it
                self.pushing.arrivals += 1
                message.arrival = self.pushing.arrivals
            self.queues.route(topic.queue, message, now_us)

    def pump(self, channel: Channel, now_us: int) -> None:
        """Push what waits in a channel of any kind to its consumers."""
        queue = channel.queue_of()
        if queue is not None:
            self.queues.pump(queue, now_us)
        elif isinstance(channel, Subscription):
            self.subscriptions.pump(channel, now_us)

    def timers_ended(self, due: list[Entry], now_us: int) -> None:
        """Take messages back that were not acknowledged in time."""
        channels: dict[Channel, bool] = {}
        for entry in due:
            channels[entry.channel] = True
            self.settling.release(entry)
            self.settling.give_back(entry, now_us)
        # Only now, so that no newer message is pushed ahead of one that has just come back.
        for channel in channels:
            self.pump(channel, now_us)

    def maintain(self, now_us: int, rows_max: int, *, may_end: bool) -> bool:
        """Go on with a round of maintenance, about *rows_max* rows; say whether it is done."""
        rows = 0
        if not self._is_past_queues:
            is_done, rows = self.queues.maintain(now_us, rows_max)
            if not is_done:
                return False
        self._is_past_queues = True
        if not self.subscriptions.maintain(now_us, rows_max - rows, may_end=may_end):
            return False
        self._is_past_queues = False
        return True

    # What is in the log only.

    def take_reads(self, now_us: int) -> list[ReadRequest]:
        """Take the pieces of backlog that are to be read back from the log."""
        requests: list[ReadRequest] = []
        effects = self.effects
        if effects.reads:
            wanted = effects.reads
            effects.reads = []
            for channel in wanted:
                request = self._request(channel)
                if request is not None:
                    requests.append(request)
                elif not channel.ended:
                    # There was nothing left to read, and a replay may have waited for it.
                    queue = channel.queue_of()
                    if queue is not None:
                        self.queues.pump(queue, now_us)
        # A follower whose peer has gone meanwhile reads again when its next peer comes.
        if effects.follower_reads:
            asking = effects.follower_reads
            effects.follower_reads = []
            held_bytes = self.windows.held_bytes
            for follower in asking:
                peer = follower.peer
                if peer is not None:
                    requests.append(FollowerRead(follower, peer, self._settings, held_bytes))
        return requests

    def _request(self, channel: Channel) -> ReadRequest | None:
        position = channel.position
        settled = position.settled
        if settled is not None:
            # Step over what is settled without reading it, here and with `up_to` below.
            skipped_to = settled.skip_from(position.cursor)
            if skipped_to > position.cursor:
                position.begin(skipped_to)
        if channel.ended or position.cursor >= channel.newest_id():
            self._end_reading(channel)
            return None
        request = ChannelRead(channel, self._settings, self.windows.held_bytes)
        if settled is not None:
            next_range = settled.next_range_after(position.cursor)
            if next_range:
                request.up_to = min(request.up_to, next_range)
        return request

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog, up to *reached_id*, and push what it brought.

        Ids that forced retention has deleted are not among what is found; they are passed over.
        """
        if isinstance(request, FollowerRead):
            self.followers.take_up(
                request.follower,
                [self._stored(request.follower.topic, i, record) for i, record in found],
                after_id=request.after_id,
                reached_id=reached_id,
                now_us=now_us,
            )
            return
        assert isinstance(request, ChannelRead)
        channel = request.channel
        if channel.ended:
            return
        position = channel.position
        passed_id = position.cursor  # a purge may have gone past some of it meanwhile
        # No check for room: the request was bounded by it, and a channel that is behind takes
        # nothing else in meanwhile.
        for message_id, record in found:
            if message_id > passed_id:
                message = self._stored(channel.topic, message_id, record)
                self.pushing.take_in_from_log(channel, message, now_us)
        position.cursor = max(position.cursor, reached_id)
        # A consumer that works through a backlog gets it in ever larger pieces.
        position.window = min(2 * position.window, channel.rules.window)
        self._end_reading(channel)
        queue = channel.queue_of()
        if queue is not None:
            self.queues.drop_excess(queue, now_us)
        self.pump(channel, now_us)

    def _stored(self, topic: Topic, message_id: int, record: bytes) -> Message:
        message = stored(topic, message_id, record)
        # It was written by another reading of the clock, perhaps.
        message.expires_us = self.times.deadline_us(message_id, message.expires_us)
        return message

    def _end_reading(self, channel: Channel) -> None:
        position = channel.position
        position.reading = False
        position.behind = position.cursor < channel.newest_id()
        if not position.behind:
            channel.caught_up()
            if position.aside and isinstance(channel, Subscription):
                self.subscriptions.wake(channel)
        # Each peer asks again, and so requests the next piece if this one did not reach its
        # message.
        for peer in position.take_waiters():
            self.effects.touch(peer)


def stored(topic: Topic, message_id: int, record: bytes) -> Message:
    """Return the message that a record of *topic* holds, its expiry as it was written."""
    head = records.Head(record)
    message = Message(topic, 1, record[head.body_at :])  # QoS 1: only durable ones have records
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
