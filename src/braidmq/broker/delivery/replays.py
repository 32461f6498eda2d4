"""Replays: dead letters on their way back to where they came from.

As many go at once as the log is given at a time; the rest follows when those are committed.
A letter that is in the log only, behind the window, goes *ahead* of those before it: its lane
notes that it is settled, as a restart does, and the log is read without it later.
"""

from typing import Final

from braidmq.broker import dead_letters, headers
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.followers import FollowerDeliverer
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.delivery.subscriptions import RETURNED, Entry, Subscription
from braidmq.broker.expiry import expires_us
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic, Topics

REPLAY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Dead letters on their way back that are not committed; the rest waits for the log."""

AHEAD_RANGES_MAX: Final = 10_000
"""Ranges of letters that one lane has sent ahead: each costs memory, and a read on the way."""

SENT: Final = 1
READING: Final = 2
"""More letters are being read from the log, and it may be one of them: ask again."""
HELD: Final = 3
"""It is with a consumer, or a timer keeps it apart."""
UNSENDABLE: Final = 4
"""It does not say where it came from, or cannot have come from there."""
FAR: Final = 5
"""It may wait in the log only: read it there, and give it to `replay_ahead`."""
CROWDED: Final = 6
"""Too many letters were sent ahead of those before them."""
GONE: Final = 7
"""It does not wait in this queue, or not any more."""


class Replayer(FollowerDeliverer):
    """Sends dead letters back."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        super().__init__(settings, topics, outgoing, stats)
        self.replays: list[Queue] = []

    def replay(self, queue: Queue, count: int, now_us: int) -> None:
        """Send the *count* oldest waiting dead letters back to where they came from."""
        if queue.is_fan_out:
            return  # each of its letters is its subscribers' business, and waits nowhere else
        if not queue.replaying:
            self.replays.append(queue)
        queue.replaying = max(queue.replaying, count)
        self.pump_queue(queue, now_us)

    def replay_one(self, queue: Queue, letter_id: int, now_us: int) -> int:
        """Send one dead letter back that is held; say how that went, from SENT to GONE."""
        for lane in queue.lanes:
            entry = lane.in_flight.open.get(letter_id)
            if entry is not None:
                if entry.consumer is not None or entry.due_us != 0 or entry in queue.unsendable:
                    return HELD
                if self._home_of(queue, entry) is None:
                    return UNSENDABLE
                lane.in_flight.remove(letter_id)
                self._send_back_one(queue, entry, now_us)
                self._catch_up(lane)
                return SENT
            for entry in lane.ready:
                if entry.id == letter_id:
                    if self._home_of(queue, entry) is None:
                        return UNSENDABLE
                    lane.ready.remove(entry)
                    self._send_back_one(queue, entry, now_us)
                    self._catch_up(lane)
                    return SENT
        for lane in queue.lanes:
            if _may_be_in_the_log(lane, letter_id):
                return READING if lane.reading else FAR
        return GONE

    def replay_ahead(self, queue: Queue, letter: Message, previous: int, now_us: int) -> int:
        """Send one dead letter back that was read from the log: SENT, or why it stays.

        *previous* is the message before it, or any id between the two.
        """
        lane = queue.lane_of(letter.priority)
        if not _may_be_in_the_log(lane, letter.id):
            return GONE
        if lane.reading:
            return READING  # what is being read was asked for before this
        entry = Entry(lane, letter, previous)
        if self._home_of(queue, entry) is None:
            return UNSENDABLE
        if lane.settled is None:
            lane.settled = Settled(lane.cursor)
        elif lane.settled.range_count >= AHEAD_RANGES_MAX:
            return CROWDED
        lane.settled.add(previous, letter.id)
        self.windows.hold(lane, len(letter.body))  # until it is moved, as any other
        self._send_back_one(queue, entry, now_us)
        self._catch_up(lane)
        return SENT

    def _catch_up(self, lane: Subscription) -> None:
        """Have a lane come to the log's end if nothing of it waits there: to free the log."""
        if lane.unsettled <= len(lane.ready) + len(lane.in_flight.open):
            self.read_ahead(lane)

    def _home_of(self, queue: Queue, entry: Entry) -> Topic | None:
        """Return where a letter of *queue* came from, None if nothing believable says so."""
        name = headers.decode(entry.message.headers).get(dead_letters.QUEUE_HEADER, "")
        known = self.topics.find(name)
        queue_there = None if known is None else known.queue
        declared = "" if queue_there is None else queue_there.policy.dead_letter_name
        if not name or not dead_letters.may_come_from(queue.topic.name, name, declared):
            return None
        return self.topics.get(name)

    def go_on_replaying(self, now_us: int) -> None:
        """Send more dead letters back: the log has taken those before them."""
        for queue in self.replays:
            self.pump_queue(queue, now_us)
        self.replays = [queue for queue in self.replays if queue.replaying]

    def end_replay(self, queue: Queue) -> None:
        """Send nothing more back; what could not be sent waits for consumers again."""
        queue.replaying = 0
        unsendable = queue.unsendable
        queue.unsendable = []
        for entry in unsendable:
            if entry.subscription.in_flight.open.get(entry.id) is entry:
                entry.subscription.in_flight.give_back(entry, last_chance=False)

    def send_back(self, queue: Queue, now_us: int) -> None:
        """Send back what is at hand, as long as the log takes it."""
        while queue.replaying and not self.log_refuses:
            if self.outgoing.bytes >= REPLAY_BYTES_MAX:
                return  # until the log has taken them
            entry = self._next_letter(queue)
            if entry is None:
                if _is_behind(queue):
                    return  # until they are read
                break
            self._send_back_one(queue, entry, now_us)
            queue.replaying -= 1
        self.end_replay(queue)

    def _next_letter(self, queue: Queue) -> Entry | None:
        """Take the oldest letter that is at hand, or have more of them read."""
        for number in range(len(queue.lanes) - 1, -1, -1):
            lane = queue.lanes[number]
            entry = lane.in_flight.take_returned(consumer_is_idle=True)
            if entry is not None:
                lane.in_flight.remove(entry.id)
                return entry
            if lane.ready:
                return lane.ready.popleft()
            if lane.behind:
                self.read_ahead(lane)
                return None
        return None

    def _send_back_one(self, queue: Queue, entry: Entry, now_us: int) -> None:
        topic = self._home_of(queue, entry)
        if topic is None:
            self._set_aside(queue, entry)
            return
        block = dead_letters.headers_sent_back(entry.message.headers)
        letter = dead_letters.moved(entry.message, topic, block, now_us)
        if topic.queue is not None:
            letter.expires_us = expires_us(now_us, topic.queue.policy.ttl_us)
        self.move(entry, letter, is_letter=False)

    def _set_aside(self, queue: Queue, entry: Entry) -> None:
        # Nothing says where it came from, or not believably: it stays, and is not met again by
        # this replay.
        entry.state = RETURNED
        entry.subscription.in_flight.open[entry.id] = entry
        queue.unsendable.append(entry)


def _may_be_in_the_log(lane: Subscription, letter_id: int) -> bool:
    """Say whether a lane has still to come to a letter, if it is one of its priority."""
    if lane.ended or not (lane.behind and lane.cursor < letter_id <= lane.topic.last_id):
        return False
    return lane.settled is None or not lane.settled.contains(letter_id)


def _is_behind(queue: Queue) -> bool:
    return any(lane.behind for lane in queue.lanes)
