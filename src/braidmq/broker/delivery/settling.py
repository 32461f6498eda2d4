"""Settling: how a delivery ends: acknowledged, returned, expired, dropped, dead-lettered.

Each verb acts on one entry and leaves its effects as data: progress to be recorded, dead
letters in `outgoing`. None of them hands anything out; the caller pumps when it is done.
"""

from typing import TYPE_CHECKING, final

from braidmq.broker import dead_letters, records
from braidmq.broker.delivery.channels import IN_FLIGHT, RETURNED, Channel, Entry
from braidmq.broker.delivery.queue import Lane, Ledger, Queue, View
from braidmq.broker.delivery.windows import ENTRY_BYTES, Windows
from braidmq.broker.outgoing import Buried, Effects, Outgoing, Schedule
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topics

if TYPE_CHECKING:
    from braidmq.broker.delivery.queues import Queues


@final
class Settling:
    """Ends deliveries; `channels` draws the states."""

    queues: "Queues"  # set by `Dispatch`, as queues need this in turn

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        self.settings: Settings = settings
        self.topics: Topics = topics
        self.outgoing: Outgoing = outgoing
        self.stats: Stats = stats
        self.effects: Effects = Effects()
        self.windows: Windows = Windows(settings, stats)
        self.retries: Schedule = Schedule()
        self.in_flight: int = 0  # deliveries that consumers hold, of all channels
        self.log_refuses: bool = False

    # At a consumer's request.

    def settle(self, entry: Entry, now_us: int) -> None:
        """End a delivery that is acknowledged."""
        if entry.state == IN_FLIGHT:
            self.uncount(entry)
        del entry.channel.in_flight.open[entry.id]
        self.end_entry(entry, now_us)
        self.effects.acknowledged = True
        self.stats.acknowledged += 1

    def release(self, entry: Entry) -> None:
        """Take an entry from its consumer and close its tag."""
        if entry.state == IN_FLIGHT:
            self.uncount(entry)
        entry.channel.in_flight.remove(entry.id)

    def uncount(self, entry: Entry) -> None:
        """Take an entry from its consumer; its tag stays open."""
        entry.channel.in_flight.uncount(entry)
        self.in_flight -= 1
        consumer = entry.consumer
        assert consumer is not None
        consumer.held -= 1
        consumer.isolated = False  # an isolated consumer held this entry and no other
        entry.consumer = None

    def end_entry(self, entry: Entry, now_us: int) -> None:
        """Settle an entry that has been taken out of window and in-flight table."""
        channel = entry.channel
        if channel.settle(entry):
            self.effects.note_progress(channel.journal or channel, now_us)
        size = len(entry.message.body)
        channel.held_bytes -= size
        self.windows.held_bytes -= size + ENTRY_BYTES
        entry.finish()

    def give_back(self, entry: Entry, now_us: int) -> None:
        """Let a message that no consumer holds be delivered again, unless it has ended.

        A message ends when it has expired or has no attempts left.
        """
        entry.state = RETURNED
        entry.due_us = 0
        channel = entry.channel
        if entry.message.is_expired(now_us):
            self.expire(entry, now_us)
            return
        rules = channel.rules
        if rules.is_exhausted(entry.attempts):
            self.bury(entry, dead_letters.MAX_RETRIES, now_us)
            return
        last_chance = rules.is_last(entry.attempts)
        channel.flight().give_back(entry, last_chance=last_chance)

    # When its time is over.

    def drop_expired(self, channel: Channel, now_us: int) -> None:
        """End what has expired at the front of the window."""
        # Only the front is checked, which is cheap. The rest is checked when it gets there, and
        # again when it is handed out.
        ready = channel.ready
        while ready and ready[0].message.is_expired(now_us):
            self.expire(ready.popleft(), now_us)
        volatile = channel.volatile
        while volatile and volatile[0].is_expired(now_us):
            self.windows.release(channel, volatile.popleft())
            self.stats.expired += 1

    def drop_expired_returned(self, channel: Channel, now_us: int) -> None:
        """End what has expired of the messages that came back and wait for a consumer."""
        in_flight = channel.in_flight
        if len(in_flight.open) > in_flight.count:
            for entry in in_flight.all():
                is_waiting = entry.consumer is None and entry.due_us == 0
                if is_waiting and entry.message.is_expired(now_us):
                    self.expire_open(entry, now_us)

    def expire_open(self, entry: Entry, now_us: int) -> None:
        """End a message that was handed out and has expired."""
        self.release(entry)
        self.expire(entry, now_us)

    def expire(self, entry: Entry, now_us: int) -> None:
        """End a message that has expired and that no consumer holds."""
        rules = entry.channel.rules
        if not (rules.expired_are_letters and rules.dead_letters):
            self.stats.expired += 1
            self.end_entry(entry, now_us)
        elif self.bury(entry, dead_letters.EXPIRED, now_us):
            self.stats.expired += 1

    # As a dead letter.

    def bury(self, entry: Entry, reason: str, now_us: int) -> bool:
        """Make a dead letter of a message that no consumer holds; False when it has to wait."""
        channel = entry.channel
        rules = channel.rules
        if not rules.dead_letters:
            self.stats.drop(reason)
            self.end_entry(entry, now_us)
            return True
        queue = channel.queue_of()
        if queue is None:
            name = dead_letters.topic_for(channel.topic.name)
        else:
            name = queue.letters_name()
        payer = channel.charged_to(self.topics.accounts)
        topic = self.queues.letters_topic(name, payer, now_us)
        if topic is None:
            # Neither drop it nor hand it out again: it stays open without a consumer, and is
            # tried again when its timer ends. The reason is not remembered: a message that was
            # rejected, and has attempts left, is then handed out again.
            entry.state = RETURNED
            channel.flight().add(entry)
            channel.in_flight.uncount(entry)
            self.retries.set(entry, now_us, self.settings.retry_backoff_us)
            return False
        letter = dead_letters.letter_of(
            entry.message,
            topic,
            reason,
            now_us=now_us,
            attempts=entry.attempts,
            keep_id=rules.letters_keep_ids,
        )
        self.move(entry, letter, is_letter=True)
        self.stats.dead_lettered += 1
        return True

    def move(self, entry: Entry, letter: Message, *, is_letter: bool) -> None:
        """Replace an entry by *letter*, in one record: no crash leaves both, or neither."""
        channel = entry.channel
        record = records.encode_dead_letter(
            letter,
            subscription_id=(channel.journal or channel).id,
            after_id=entry.previous,
            message_id=entry.id,
        )
        message = entry.message
        buried = Buried(letter, entry, message, is_letter)
        # `add` has numbered `buried`; the letter is the message of that record.
        letter.id = self.outgoing.add(buried, record)
        self.outgoing.bytes += len(letter.body)
        if letter.topic.queue is not None:
            letter.topic.queue.pending += 1
        self.windows.release(channel, message)
        buried.settles_ledger = channel.settle_by_letter(entry)
        entry.finish()

    def buried(self, buried: Buried) -> None:
        """Note that a dead letter is committed."""
        if buried.settles_ledger:
            view_of(buried.entry).ledger.burying.discard(buried.entry.id)

    def unbury(self, buried: Buried, now_us: int) -> None:
        """Take back a dead letter that the log refused."""
        entry = buried.entry
        if buried.is_letter:
            self.stats.dead_lettered -= 1
        if buried.letter.topic.queue is not None:
            buried.letter.topic.queue.pending -= 1
        if buried.settles_ledger:
            self._reopen_in_ledger(entry, now_us)  # even if the view has ended
        channel = entry.channel
        if channel.ended:
            return
        channel.unsettle()
        if entry.id > channel.position.cursor:
            # It was replayed ahead of those before it, and waits in the log again. If it were
            # taken in now, everything that the log has before it would count as settled.
            assert channel.position.settled is not None
            channel.position.settled.reopen(entry.id)
            return
        entry.message = buried.message
        self.windows.hold(channel, entry.message)
        self.give_back(entry, now_us)

    def _reopen_in_ledger(self, entry: Entry, now_us: int) -> None:
        """Undo the settling of a view's message, even when the view is gone."""
        view = view_of(entry)
        ledger = view.ledger
        if ledger.ended:
            return
        if entry.id in ledger.burying:
            ledger.burying.discard(entry.id)
            ledger.settled().reopen(entry.id)
            ledger.unsettled += 1
            if view.ended:
                ledger.position.know_attempts({entry.id: entry.attempts})
            return
        # Another subscriber has acknowledged it since. That was not recorded, because the dead
        # letter's record would have settled the message; now it has to be.
        self.effects.progress_of(ledger, now_us).settle(entry.previous, entry.id)
        self.effects.acknowledged = True

    # At an operator's request, or because there is too much.

    def empty(self, queue: Queue, now_us: int) -> None:
        """Settle everything that waits in a queue; deliveries that consumers hold stay."""
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
        # Apart from what consumers hold, the rest is in the log only. The record carries its
        # number, because a restart does not count the messages in a range.
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
        # Settle everything except what is held. Progress counts messages, not those of each
        # range, so the first range reports them all.
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
            self.windows.release(view, entry.message)
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
            self.windows.release(channel, volatile.popleft())
            return True
        if entry is None:
            if channel.position.behind:
                self.effects.read_now(channel)
            return False
        if entry.state == RETURNED:
            self.release(entry)
        else:
            ready.popleft()
        self.end_entry(entry, now_us)
        return True

    # When its channel ends.

    def forget(self, channel: Channel) -> None:
        """Release everything that a channel that ended was holding."""
        channel.ended = True
        self.windows.release_all(channel)
        for entry in channel.in_flight.all():
            self.release(entry)
            entry.finish()
        channel.ready.clear()
        channel.volatile.clear()
        # Its end is a record of its own; a restart has no use for its progress.
        channel.progress = None
        self.effects.dirty.pop(channel.id, None)
        for peer in channel.position.take_waiters():
            self.effects.touch(peer)


def view_of(entry: Entry) -> View:
    """Return the view that an entry of a fan-out is in."""
    view = entry.channel
    assert isinstance(view, View)
    return view


def queue_of(entry: Entry) -> Queue:
    """Return the queue of a message that a consumer of a queue holds."""
    queue = entry.channel.queue_of()
    assert queue is not None
    return queue
