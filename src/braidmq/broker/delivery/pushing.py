"""Pushing: how a message gets into a channel's window, and from there to a consumer.

This is the same for every kind of channel. Which consumer is next differs: `subscriptions` and
`queues` decide that.
"""

from typing import final

from braidmq.broker.delivery.channels import (
    IN_FLIGHT,
    NEVER,
    Channel,
    Delivery,
    Entry,
    Holder,
    Peer,
)
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.delivery.windows import Windows
from braidmq.broker.outgoing import Effects
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message


@final
class Pushing:
    """Moves messages between the states that `channels` draws."""

    def __init__(self, settling: Settling) -> None:
        self.settling: Settling = settling
        self.effects: Effects = settling.effects
        self.windows: Windows = settling.windows
        self.stats: Stats = settling.stats
        self.stopped: bool = False
        self.arrivals: int = 0  # orders durable and memory-only messages of one channel

    # In: a channel gets a message.

    def offer(self, channel: Channel, message: Message, now_us: int) -> bool:
        """Take a committed message in, or leave it to the log when there is no room.

        True when the channel has fallen behind just now.
        """
        position = channel.position
        # A channel that is behind takes nothing from here, even if it has room: what the log
        # holds before this message must go first.
        if not position.behind:
            if self.windows.has_room(channel, len(message.body)):
                self.take_in(channel, message, now_us)
                position.cursor = message.id
            else:
                position.behind = True
                return True
        return False

    def take_in(self, channel: Channel, message: Message, now_us: int) -> None:
        """Append a durable message to the window."""
        position = channel.position
        entry = Entry(channel, message, position.tail)
        position.tail = entry.id
        self.windows.hold(channel, message)
        if entry.id <= position.handed_id:
            # It was handed out before a restart, or to a consumer that has left: this delivery
            # is a repeat, and counts on from the attempts that are known.
            attempts = channel.attempts_before(entry.id)
            if attempts != NEVER:
                entry.attempts = attempts
                self.settling.give_back(entry, now_us)
                return
        channel.add_ready(entry)

    def take_in_from_log(self, channel: Channel, message: Message, now_us: int) -> None:
        """Put a message that was read back from the log into the window."""
        self.arrivals += 1
        message.arrival = self.arrivals
        self.take_in(channel, message, now_us)

    def leave_to_log(self, channel: Channel, kept: int) -> None:
        """Drop the newest messages of a window until *kept* are left: the log has them."""
        ready = channel.ready
        position = channel.position
        if position.reading:
            return  # what is being read continues at the cursor
        while len(ready) > kept:
            entry = ready[-1]
            # Only what follows directly on the message before it: it may be known here alone
            # that messages between the two are settled.
            if position.tail != entry.id or ready[-2].id != entry.previous:
                return
            ready.pop()
            self.windows.release(channel, entry.message)
            position.tail = entry.previous
            position.cursor = entry.previous
            position.behind = True

    # Out: a consumer gets a message.

    def hand_out(
        self, channel: Channel, consumer: Holder, correlation_id: int, now_us: int
    ) -> bool:
        """Hand the consumer the next message it may have; say whether there was one."""
        if self.stopped:
            return False
        in_flight = channel.in_flight
        rules = channel.rules
        may_hold = (
            not consumer.isolated
            and in_flight.count < rules.in_flight_max
            and (in_flight.count == 0 or in_flight.bytes < rules.window_bytes)
        )
        if not may_hold and rules.serves_idle:
            # A consumer that holds much must not starve those that hold nothing.
            may_hold = consumer.held == 0
        if may_hold and (in_flight.returned or in_flight.last_chances):
            entry = self._next_returned(channel, consumer, now_us)
            if entry is not None:
                self._hand_out_entry(consumer, entry, now_us)
                return True
            may_hold = not self._last_chance_waits(channel, now_us)
        # A message whose dead letter the log refused is open without a consumer, and counts.
        may_hold = may_hold and len(in_flight.open) < rules.in_flight_max
        ready = channel.ready
        volatile = channel.volatile
        # The two kinds go out in the order in which they arrived. A consumer that may hold
        # nothing more still gets messages of QoS 0: it never has to acknowledge them.
        while True:
            if volatile and not (
                may_hold and ready and ready[0].message.arrival < volatile[0].arrival
            ):
                message = volatile.popleft()
                self.windows.release(channel, message)
                if message.is_expired(now_us):
                    self.stats.expired += 1
                    continue
                self.deliver(consumer.peer, Delivery(message, correlation_id, 0))
                return True
            if not may_hold:
                return False
            if not ready:
                self.effects.read_ahead(channel)
                return False
            entry = ready.popleft()
            position = channel.position
            if position.behind and not position.reading:
                self.effects.read_ahead(channel)
            if entry.message.expires_us and entry.message.is_expired(now_us):
                self.settling.expire(entry, now_us)
                continue
            self._hand_out_entry(consumer, entry, now_us)
            return True

    def _next_returned(self, channel: Channel, consumer: Holder, now_us: int) -> Entry | None:
        in_flight = channel.in_flight
        while True:
            entry = in_flight.take_returned(consumer_is_idle=consumer.held == 0)
            if entry is None or not entry.message.is_expired(now_us):
                return entry
            self.settling.expire_open(entry, now_us)

    def _last_chance_waits(self, channel: Channel, now_us: int) -> bool:
        in_flight = channel.in_flight
        while True:
            entry = in_flight.last_chance()
            if entry is None or not entry.message.is_expired(now_us):
                return entry is not None
            self.settling.expire_open(entry, now_us)

    # Hot: one call per delivery, so it does by hand what smaller methods would do.
    def _hand_out_entry(self, consumer: Holder, entry: Entry, now_us: int) -> None:
        channel = entry.channel
        journal = channel if channel.journal is None else channel.journal
        progress = journal.progress
        if progress is None:
            progress = journal.made_progress()
            self.effects.note_progress(journal, now_us)
        entry.attempts += 1
        if journal is channel and entry.id > channel.position.handed_id:
            # One number for all first deliveries, which go out in order. A view's do not fit
            # that, as the subscribers of a fan-out are at different points.
            channel.position.handed_id = entry.id
            progress.handed_id = entry.id
        else:
            progress.attempts[entry.id] = entry.attempts
            if entry.attempts > 1:
                self.stats.redelivered += 1
        rules = channel.rules
        if entry.attempts == rules.attempts_max:
            consumer.isolated = entry.attempts > 1 or rules.first_goes_alone
        entry.state = IN_FLIGHT
        entry.consumer = consumer
        consumer.held += 1
        channel.flight().add(entry)
        settling = self.settling
        settling.in_flight += 1
        settling.retries.set(entry, now_us, rules.delay_us(entry.attempts))
        self.deliver(consumer.peer, Delivery(entry.message, entry.id, 1, entry))

    def deliver(self, peer: Peer, delivery: Delivery) -> None:
        """Put a delivery into the list of its peer."""
        peer.deliveries.append(delivery)
        peer.room_bytes -= len(delivery.message.body)
        peer.delivered += 1
        self.stats.delivered += 1
        if not peer.touched:
            self.effects.touch(peer)
