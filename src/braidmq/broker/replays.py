"""Replays: dead letters on their way back to where they came from.

As many go at once as the log is given at a time; the rest follows when those are committed.
"""

from typing import Final

from braidmq.broker import dead_letters, headers
from braidmq.broker.expiry import expires_us
from braidmq.broker.followers import FollowerDeliverer
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.queues import Queue
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.subscriptions import RETURNED, Entry
from braidmq.broker.topics import Topics

REPLAY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Dead letters on their way back that are not committed; the rest waits for the log."""


SENT: Final = 1
READING: Final = 2
"""The letter may be among those that are being read from the log: ask again."""
HELD: Final = 3
"""It is with a consumer, or a timer keeps it apart."""
UNSENDABLE: Final = 4
"""It does not say where it came from."""
FAR: Final = 5
"""More letters wait before it than are held in memory."""
GONE: Final = 6
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
        """Send one waiting dead letter back; say how that went, from SENT to GONE."""
        for lane in queue.lanes:
            entry = lane.in_flight.open.get(letter_id)
            if entry is not None:
                if entry.consumer is not None or entry.due_us != 0 or entry in queue.unsendable:
                    return HELD
                if not self._says_where_from(entry):
                    return UNSENDABLE
                lane.in_flight.remove(letter_id)
                self._send_back_one(queue, entry, now_us)
                return SENT
            for entry in lane.ready:
                if entry.id == letter_id:
                    if not self._says_where_from(entry):
                        return UNSENDABLE
                    lane.ready.remove(entry)
                    self._send_back_one(queue, entry, now_us)
                    return SENT
        return self._look_for(queue, letter_id)

    def _look_for(self, queue: Queue, letter_id: int) -> int:
        found = GONE
        for lane in queue.lanes:
            if lane.behind and lane.cursor < letter_id <= queue.topic.last_id:
                self.read_ahead(lane)
                if lane.reading:
                    return READING
                found = FAR
        return found

    def _says_where_from(self, entry: Entry) -> bool:
        name = headers.decode(entry.message.headers).get(dead_letters.QUEUE_HEADER, "")
        return bool(name) and self.topics.get(name) is not None

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
        block = entry.message.headers
        name = headers.decode(block).get(dead_letters.QUEUE_HEADER, "")
        topic = self.topics.get(name) if name else None
        if topic is None:
            self._set_aside(queue, entry)
            return
        letter = dead_letters.moved(
            entry.message, topic, dead_letters.headers_sent_back(block), now_us
        )
        if topic.queue is not None:
            letter.expires_us = expires_us(now_us, topic.queue.policy.ttl_us)
        self.move(entry, letter, is_letter=False)

    def _set_aside(self, queue: Queue, entry: Entry) -> None:
        # Nothing says where it came from: it stays, and is not met again by this replay.
        entry.state = RETURNED
        entry.subscription.in_flight.open[entry.id] = entry
        queue.unsendable.append(entry)


def _is_behind(queue: Queue) -> bool:
    return any(lane.behind for lane in queue.lanes)
