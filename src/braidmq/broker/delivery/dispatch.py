"""Dispatch: the parts that move messages, joined; and the way of a message to each of them.

    route ──▶ Subscriptions ──┐
          ──▶ Followers ──────┼──▶ Pushing ──▶ Settling ──▶ Windows, Effects
          ──▶ Sharing ────────┘        (arrows: who calls)
              ▲  └──▶ Replays, Purges ─────▶
              Queues: what peers and operators do with a queue

The parts hold each other by name. Where two need each other, the field that closes the circle
is set here, once both are made.
"""

from typing import final

from braidmq.broker.delivery.backlog import Backlog, ReadRequest
from braidmq.broker.delivery.channels import Channel, Entry
from braidmq.broker.delivery.followers import Followers
from braidmq.broker.delivery.purges import Purges
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.queues import Queues
from braidmq.broker.delivery.replays import Replays
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.delivery.sharing import Sharing
from braidmq.broker.delivery.subscriptions import Subscription, Subscriptions
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.outgoing import Effects, Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import ORIGIN_BLIP, Message, Topics


@final
class Dispatch:
    """Everything that moves messages."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        self.stats: Stats = stats
        self.effects: Effects = Effects()
        self.windows: Windows = Windows(settings, stats)
        self.settling: Settling = Settling(
            settings, topics, outgoing, stats, self.effects, self.windows
        )
        self.pushing: Pushing = Pushing(self.settling)
        self.subscriptions: Subscriptions = Subscriptions(settings, self.pushing)
        self.followers: Followers = Followers(settings, self.pushing)
        self.queues: Queues = Queues(settings, self.settling)
        self.replays: Replays = Replays(self.settling)
        purges = Purges(self.settling)
        self.sharing: Sharing = Sharing(self.pushing, purges, self.replays)
        self.backlog: Backlog = Backlog(settings, self.pushing, self.sharing, self.followers)
        self.settling.queues = self.queues
        self.replays.sharing = self.sharing
        self.queues.sharing = self.sharing
        self.queues.replays = self.replays
        self.queues.purges = purges

    def route(self, message: Message, now_us: int) -> None:
        """Put a message that is committed, or lives in memory only, before its consumers."""
        topic = message.topic
        if message.id > 0:
            topic.last_id = message.id
            topic.message_count += 1
        stats = self.stats
        stats.published += 1
        stats.published_bytes += len(message.body)
        if message.origin != ORIGIN_BLIP:
            stats.count_origin(message.origin)
        if topic.subscriptions:
            pushing = self.pushing
            pushing.arrivals += 1
            message.arrival = pushing.arrivals
            for subscription in topic.subscriptions:
                if message.qos != 0 and subscription.qos != 0:
                    pushing.offer(subscription, message, now_us)
                    if subscription.consumers:
                        self.subscriptions.pump(subscription, now_us)
                elif not subscription.consumers:
                    self.windows.offer_volatile(subscription, message)
                elif not self.subscriptions.pass_on(subscription, message):
                    self.windows.offer_volatile(subscription, message)
                    self.subscriptions.pump(subscription, now_us)
        if topic.followers:
            self.followers.route(message, now_us)
        if topic.queue is not None:
            self.pushing.arrivals += 1
            message.arrival = self.pushing.arrivals
            self.sharing.route(topic.queue, message, now_us)

    def pump(self, channel: Channel, now_us: int) -> None:
        """Push what waits in a channel of any kind to its consumers."""
        queue = channel.queue_of()
        if queue is not None:
            self.sharing.pump(queue, now_us)
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

    def supply(
        self, request: ReadRequest, found: list[tuple[int, bytes]], reached_id: int, now_us: int
    ) -> None:
        """Take in a piece of backlog, and push what it brought."""
        channel = self.backlog.supply(request, found, reached_id, now_us)
        if channel is not None:
            queue = channel.queue_of()
            if queue is not None:
                self.sharing.drop_excess(queue, now_us)
            self.pump(channel, now_us)
