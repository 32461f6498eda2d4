"""Settling: how a delivery ends: acknowledged, given back, expired, given up on.

Everything here acts on one entry and leaves its effects as data: progress to be recorded in
`dirty`, letters in `outgoing`, peers in `touched`, subscriptions in `reads`.
"""

from typing import Final

from braidmq.broker import dead_letters
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.schedule import Schedule
from braidmq.broker.delivery.subscriptions import IN_FLIGHT, RETURNED, Entry, Peer, Subscription
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.expiry import is_expired
from braidmq.broker.outgoing import Buried, Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic, Topics

PROGRESS_DELAY_US: Final = 10_000
"""How long a hand-out or an acknowledgement that no fence asks for may wait to be recorded."""


class Settler:
    """Ends deliveries; `subscriptions` draws the states."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        self.settings: Settings = settings
        self.topics: Topics = topics
        self.outgoing: Outgoing = outgoing
        self.stats: Stats = stats
        self.retries: Schedule = Schedule()
        self.touched: list[Peer] = []
        self.reads: list[Subscription] = []
        self.dirty: dict[int, Subscription] = {}  # made progress that is not recorded
        self.acknowledged: bool = False  # and some of it is an acknowledgement
        self.progress_due_us: int = 0
        self.in_flight: int = 0
        self.windows: Windows = Windows(settings, stats)
        self.log_refuses: bool = False

    def declare_letters(self, topic: Topic, now_us: int) -> None:
        """Make a queue of a topic that dead letters are about to come to."""
        raise NotImplementedError

    def touch(self, peer: Peer) -> None:
        """Have the server look after this peer at the end of the turn."""
        if not peer.touched:
            peer.touched = True
            self.touched.append(peer)

    def read_ahead(self, subscription: Subscription) -> None:
        """Ask for more of the backlog when half the window is free."""
        if (
            subscription.behind
            and not subscription.reading
            and 2 * len(subscription.ready) <= subscription.rules.window
        ):
            subscription.reading = True
            self.reads.append(subscription)

    def settle(self, entry: Entry, now_us: int) -> None:
        """Note that a message that was handed out is acknowledged."""
        if entry.state == IN_FLIGHT:
            self.uncount(entry)
        del entry.subscription.in_flight.open[entry.id]
        self.end_entry(entry, now_us)
        self.acknowledged = True
        self.stats.acknowledged += 1

    def release(self, entry: Entry) -> None:
        """Take an entry from its consumer and close its tag."""
        in_flight = entry.subscription.in_flight
        if entry.state == IN_FLIGHT:
            self.uncount(entry)
        in_flight.remove(entry.id)

    def uncount(self, entry: Entry) -> None:
        """Take an entry from its consumer; its tag stays open."""
        entry.subscription.in_flight.uncount(entry)
        self.in_flight -= 1
        consumer = entry.consumer
        assert consumer is not None
        consumer.held -= 1
        consumer.isolated = False
        entry.consumer = None

    def end_entry(self, entry: Entry, now_us: int) -> None:
        """Note that an entry that is listed nowhere any more is settled."""
        subscription = entry.subscription
        lane = subscription if subscription.lane is None else subscription.lane
        progress = lane.progress
        if progress is None:
            progress = lane.made_progress()
            self.note_progress(lane, now_us)
        if subscription.queue is not None:
            self.settle_in_queue(entry, note=True)
        else:
            progress.settle(entry.previous, entry.id)
        size = len(entry.message.body)
        subscription.held_bytes -= size
        self.windows.held_bytes -= size
        entry.finish()

    def settle_in_queue(self, entry: Entry, *, note: bool) -> bool:
        """Count a message of a queue once, however many views have it; say whether now."""
        subscription = entry.subscription
        lane = subscription.lane
        if subscription.unsettled > 0:
            subscription.unsettled -= 1
        if lane is None:
            lane = subscription
        else:
            assert lane.settled is not None
            if lane.settled.contains(entry.id):
                if note and subscription.queue is not None:
                    # Should the log refuse its dead letter, it has this end all the same.
                    subscription.queue.burying.discard(entry.id)
                return False
            lane.settled.add(entry.previous, entry.id)
            lane.unsettled -= 1
        if note:
            lane.made_progress().settle(entry.previous, entry.id)
        return True

    def note_progress(self, subscription: Subscription, now_us: int) -> None:
        """Have the progress of a subscription recorded soon."""
        due_us = now_us + PROGRESS_DELAY_US
        if not self.dirty or due_us < self.progress_due_us:
            self.progress_due_us = due_us
        self.dirty[subscription.id] = subscription

    def progress_of(self, lane: Subscription, now_us: int) -> Progress:
        """Return the progress of a queue's lane to note something in, to be recorded soon."""
        if lane.progress is None:
            self.note_progress(lane, now_us)
        return lane.made_progress()

    def give_back(self, entry: Entry, now_us: int) -> None:
        """Decide what becomes of a message that was handed out and is with nobody."""
        entry.state = RETURNED
        entry.due_us = 0
        subscription = entry.subscription
        if is_expired(entry.message.expires_us, now_us):
            self.expire(entry, now_us)
            return
        rules = subscription.rules
        if rules.is_exhausted(entry.attempts):
            self.bury(entry, dead_letters.MAX_RETRIES, now_us)
            return
        last_chance = rules.is_last(entry.attempts)
        subscription.in_flight.give_back(entry, last_chance=last_chance)

    def drop_expired(self, subscription: Subscription, now_us: int) -> None:
        """End what has waited too long at the front of the window."""
        ready = subscription.ready
        while ready and is_expired(ready[0].message.expires_us, now_us):
            self.expire(ready.popleft(), now_us)
        volatile = subscription.volatile
        while volatile and is_expired(volatile[0].expires_us, now_us):
            self.windows.hold(subscription, -len(volatile.popleft().body))
            self.stats.expired += 1
        queue = subscription.queue
        if queue is None:
            if subscription.consumers:
                self.read_ahead(subscription)
            return
        # What expires in a queue becomes a dead letter, whether anybody consumes it or not.
        in_flight = subscription.in_flight
        if len(in_flight.open) > in_flight.count:
            for entry in in_flight.all():
                is_waiting = entry.consumer is None and entry.due_us == 0
                if is_waiting and is_expired(entry.message.expires_us, now_us):
                    self.expire_open(entry, now_us)
        if queue.policy.ttl_us > 0 and not subscription.is_ledger:
            self.read_ahead(subscription)

    def expire_open(self, entry: Entry, now_us: int) -> None:
        """End a message that was handed out and whose time is over."""
        self.release(entry)
        self.expire(entry, now_us)

    def expire(self, entry: Entry, now_us: int) -> None:
        """End a message whose time is over, and that is with nobody."""
        rules = entry.subscription.rules
        if not (rules.expired_are_letters and rules.dead_letters):
            self.stats.expired += 1
            self.end_entry(entry, now_us)
        elif self.bury(entry, dead_letters.EXPIRED, now_us):
            self.stats.expired += 1

    def bury(self, entry: Entry, reason: str, now_us: int) -> bool:
        """Make a dead letter of a message that is with nobody; False when it has to wait."""
        subscription = entry.subscription
        rules = subscription.rules
        if not rules.dead_letters:
            self.stats.drop(reason)
            self.end_entry(entry, now_us)
            return True
        topic = self._letters_of(subscription, now_us)
        if topic is None:
            # Keep it open, with nobody, and try again when its timer ends once more.
            entry.state = RETURNED
            subscription.in_flight.add(entry)
            subscription.in_flight.uncount(entry)
            self.retries.set(entry, now_us, self.settings.retry_backoff_us)
            return False
        letter = dead_letters.letter_of(
            entry.message,
            topic,
            reason=reason,
            attempts=entry.attempts,
            keep_id=subscription.queue is not None,
            now_us=now_us,
        )
        self.move(entry, letter, is_letter=True)
        self.stats.dead_lettered += 1
        return True

    def _letters_of(self, subscription: Subscription, now_us: int) -> Topic | None:
        """Return where dead letters go, or None when there is no room for any now."""
        if self.log_refuses:
            return None
        name = subscription.rules.dead_letter_topic
        if not name and subscription.queue is not None:
            name = dead_letters.queue_for(subscription.topic.name)
        elif not name:
            name = dead_letters.topic_for(subscription.topic.name)
        topic = self.topics.get(name)
        if topic is not None and topic.queue is None:
            self.declare_letters(topic, now_us)
        return topic

    def move(self, entry: Entry, letter: Message, *, is_letter: bool) -> None:
        """Put *letter* in the place of an entry, by one record."""
        subscription = entry.subscription
        lane = subscription if subscription.lane is None else subscription.lane
        record = dead_letters.record_of(
            letter, subscription_id=lane.id, after_id=entry.previous, message_id=entry.id
        )
        message = entry.message
        buried = Buried(letter, entry, message, is_letter)
        letter.id = self.outgoing.add(buried, record)
        self.outgoing.bytes += len(letter.body)
        if letter.topic.queue is not None:
            letter.topic.queue.pending += 1
        self.windows.hold(subscription, -len(message.body))
        if subscription.queue is not None and self.settle_in_queue(entry, note=False):
            buried.settles_lane = subscription.lane is not None
            if buried.settles_lane:
                subscription.queue.burying.add(entry.id)
        entry.finish()

    def buried(self, buried: Buried) -> None:
        """Note that a dead letter is committed."""
        queue = buried.entry.subscription.queue
        if buried.settles_lane and queue is not None:
            queue.burying.discard(buried.entry.id)

    def unbury(self, buried: Buried, now_us: int) -> None:
        """Take a dead letter back that the log refused."""
        entry = buried.entry
        if buried.is_letter:
            self.stats.dead_lettered -= 1
        if buried.letter.topic.queue is not None:
            buried.letter.topic.queue.pending -= 1
        if buried.settles_lane:
            self._reopen_in_lane(entry, now_us)
        if entry.subscription.ended:
            return
        subscription = entry.subscription
        if subscription.queue is not None:
            subscription.unsettled += 1
        if entry.id > subscription.cursor:
            # It had gone ahead, and waits in the log again. Were it at hand, all that the log
            # has before it would count as settled.
            assert subscription.settled is not None
            subscription.settled.reopen(entry.id)
            return
        entry.message = buried.message
        self.windows.hold(subscription, len(entry.message.body))
        self.give_back(entry, now_us)

    def _reopen_in_lane(self, entry: Entry, now_us: int) -> None:
        """Take back that a view's message is settled, also when the view is gone."""
        view = entry.subscription
        lane = view.lane
        assert lane is not None
        assert view.queue is not None
        if lane.ended:
            return
        assert lane.settled is not None
        if entry.id in view.queue.burying:
            view.queue.burying.discard(entry.id)
            lane.settled.reopen(entry.id)
            lane.unsettled += 1
            if view.ended:
                lane.known_attempts[entry.id] = entry.attempts
            return
        # Another subscriber has acknowledged it since, and no record says so yet.
        self.progress_of(lane, now_us).settle(entry.previous, entry.id)
        self.acknowledged = True

    def forget(self, subscription: Subscription) -> None:
        """Let go of everything a subscription that ended was holding."""
        subscription.ended = True
        for entry in subscription.in_flight.all():
            self.release(entry)
            entry.finish()
        subscription.ready.clear()
        subscription.volatile.clear()
        self.windows.hold(subscription, -subscription.held_bytes)
        subscription.progress = None
        self.dirty.pop(subscription.id, None)
        for consumer in subscription.consumers:
            consumer.credit = 0
        for peer in subscription.waiters:
            self.touch(peer)
        subscription.waiters = []
