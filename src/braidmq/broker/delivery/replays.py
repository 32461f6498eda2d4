"""Replays: dead letters on their way back to where they came from.

A replay sends up to `REPLAY_BYTES_MAX` to the log at once; the rest follows when those are
committed. A letter that waits only in the log, beyond the window, can be sent *ahead* of those
before it: its lane notes that it is settled, as after a restart, and reading skips it.

A letter that is sent back is published where it came from, so whoever asks for it needs the
permission to publish there; a replay ends at the first letter for which it is missing.
"""

from typing import TYPE_CHECKING, Final, final

from braidmq.broker import dead_letters
from braidmq.broker.authorize import PUBLISH, Principal, authorize
from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.channels import RETURNED, Entry
from braidmq.broker.delivery.queue import Lane, Queue
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.outgoing import Effects, Outgoing
from braidmq.broker.topics import Message, Topic, Topics, decode_headers

if TYPE_CHECKING:
    from braidmq.broker.delivery.queues import Queues

REPLAY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Uncommitted bytes above which a replay waits for the log."""

AHEAD_RANGES_MAX: Final = 10_000
"""Ranges of letters that one lane has sent ahead: each costs memory, and a read on the way."""

SENT: Final = 1
READING: Final = 2
"""More letters are being read from the log, and it may be one of them: ask again."""
HELD: Final = 3
"""A consumer holds it, or a timer keeps it back."""
UNSENDABLE: Final = 4
"""It does not say where it came from, or what it says is not credible."""
FAR: Final = 5
"""It may wait in the log only: read it there, and give it to `replay_ahead`."""
CROWDED: Final = 6
"""Too many letters were sent ahead of those before them."""
GONE: Final = 7
"""It does not wait in this queue, or no longer."""
FORBIDDEN: Final = 8
"""Who asks may not publish where it came from."""


@final
class Order:
    """Who asked for a replay, and where it may not send a letter; None is the broker itself."""

    def __init__(self, by: Principal | None) -> None:
        self.by: Principal | None = by
        self.forbidden: str = ""  # the origin that ended the replay

    def allows(self, home: Topic) -> bool:
        """Say whether a letter may be sent back to *home*; note where it may not."""
        if self.by is None or authorize(self.by, PUBLISH, home.name):
            return True
        self.forbidden = home.name
        return False


@final
class Replays:
    """Sends dead letters back."""

    def __init__(self, settling: Settling, queues: "Queues") -> None:
        self.running: list[Queue] = []
        self.orders: dict[int, Order] = {}  # of those, by the queue's id
        self.queues: Queues = queues
        self.settling: Settling = settling
        self.effects: Effects = settling.effects
        self.topics: Topics = settling.topics
        self.outgoing: Outgoing = settling.outgoing

    # Many at once.

    def replay(self, queue: Queue, count: int, now_us: int, order: Order | None = None) -> None:
        """Send the *count* oldest waiting dead letters back to where they came from."""
        if queue.ledger is not None:
            return  # each letter waits for the subscribers of the fan-out, and nowhere else
        if order is not None:
            self.orders[queue.id] = order
        if not queue.replaying:
            self.running.append(queue)
        # Not the sum: both mean the oldest letters.
        queue.replaying = max(queue.replaying, count)
        self.queues.pump(queue, now_us)

    def go_on(self, now_us: int) -> None:
        """Send more dead letters back: the log has taken those before them."""
        for queue in self.running:
            self.queues.pump(queue, now_us)
        self.running = [queue for queue in self.running if queue.replaying]

    def end(self, queue: Queue) -> None:
        """Stop the replay; what could not be sent waits for consumers again."""
        queue.replaying = 0
        self.orders.pop(queue.id, None)
        for entry in queue.take_unsendable():
            if entry.channel.in_flight.open.get(entry.id) is entry:
                entry.channel.flight().give_back(entry, last_chance=False)

    def send_back(self, queue: Queue, now_us: int) -> None:
        """Send back the letters in memory, as long as the log takes them.

        A log that refuses ends the replay; the broker does not resume it.
        """
        while queue.replaying and not self.settling.log_refuses:
            if self.outgoing.bytes >= REPLAY_BYTES_MAX:
                return  # `go_on` continues when the log has committed them
            entry = self._next_letter(queue)
            if entry is None:
                if _is_behind(queue):
                    return  # `supply` pumps the queue when they are read
                break
            if not self._send_back_one(queue, entry, self.orders.get(queue.id), now_us):
                break
            queue.replaying -= 1
        self.end(queue)

    def _next_letter(self, queue: Queue) -> Entry | None:
        """Take the oldest letter in memory, or have more of them read."""
        for number in range(len(queue.lanes) - 1, -1, -1):  # the highest priority first
            lane = queue.lanes[number]
            entry = lane.in_flight.take_returned(consumer_is_idle=True)
            if entry is not None:
                lane.in_flight.remove(entry.id)
                return entry
            if lane.ready:
                return lane.ready.popleft()
            if lane.position.behind:
                # Lower priorities wait for the read: letters go back in the order in which
                # consumers would get them.
                self.effects.read_ahead(lane)
                return None
        return None

    # One by its id.

    def replay_one(
        self, queue: Queue, letter_id: int, now_us: int, order: Order | None = None
    ) -> int:
        """Send one waiting dead letter back; return the outcome, from SENT to FORBIDDEN."""
        for lane in queue.lanes:
            returned = lane.in_flight.open.get(letter_id)
            found = [returned] if returned is not None else lane.ready
            for entry in found:
                if entry.id != letter_id:
                    continue
                if entry.consumer is not None or entry.due_us != 0 or entry in queue.unsendable:
                    return HELD
                home = self._home_of(queue, entry)
                if home is None:
                    return UNSENDABLE
                if order is not None and not order.allows(home):
                    return FORBIDDEN
                if returned is None:
                    lane.ready.remove(entry)
                else:
                    lane.in_flight.remove(letter_id)
                self._send_back_one(queue, entry, order, now_us)
                self._catch_up(lane)
                return SENT
        for lane in queue.lanes:
            if _may_be_in_the_log(lane, letter_id):
                return READING if lane.position.reading else FAR
        return GONE

    def replay_ahead(
        self,
        queue: Queue,
        letter: Message,
        previous: int,
        now_us: int,
        order: Order | None = None,
    ) -> int:
        """Send one dead letter back that was read from the log: SENT, or why it stays.

        *previous* is the message before it, or any id between the two.
        """
        if queue.ledger is not None:
            return GONE  # as in `replay`: letters of a fan-out are not sent back
        # Judged again, as reading the letter took a while: it may have been taken in since.
        lane = queue.lane_of(letter.priority)
        if not _may_be_in_the_log(lane, letter.id):
            return GONE
        position = lane.position
        if position.reading:
            return READING  # that read was asked for first, and may bring this letter
        entry = Entry(lane, letter, previous)
        home = self._home_of(queue, entry)
        if home is None:
            return UNSENDABLE
        if order is not None and not order.allows(home):
            return FORBIDDEN
        if position.settled is None:
            position.settled = Settled(position.cursor)
        elif position.settled.range_count >= AHEAD_RANGES_MAX:
            return CROWDED
        position.settled.add(previous, letter.id)
        self.settling.windows.hold(lane, letter)  # `move` releases it, as any other
        self._send_back_one(queue, entry, order, now_us)
        self._catch_up(lane)
        return SENT

    def _catch_up(self, lane: Lane) -> None:
        """Have a lane read to the log's end if none of its letters waits there.

        Until it is there, retention keeps the log for it.
        """
        if lane.unsettled <= len(lane.ready) + len(lane.in_flight.open):
            self.effects.read_ahead(lane)

    # Where a letter goes.

    def _home_of(self, queue: Queue, entry: Entry) -> Topic | None:
        """Return where a letter of *queue* came from, None if nothing credible says so."""
        name = decode_headers(entry.message.headers).get(dead_letters.QUEUE_HEADER, "")
        known = self.topics.find(name)
        queue_there = None if known is None else known.queue
        declared = "" if queue_there is None else queue_there.policy.dead_letter_name
        if not name or not dead_letters.may_come_from(queue.topic.name, name, declared):
            return None
        return self.topics.make(name, queue.topic.owner)

    def _send_back_one(
        self, queue: Queue, entry: Entry, order: Order | None, now_us: int
    ) -> bool:
        """Send a letter back, or keep it; return False if *order* may not send it back."""
        topic = self._home_of(queue, entry)
        is_forbidden = topic is not None and order is not None and not order.allows(topic)
        if topic is None or is_forbidden:
            # It stays where it is; `unsendable` keeps this replay from meeting it again.
            entry.state = RETURNED
            entry.channel.flight().keep(entry)
            queue.add_unsendable(entry)
            return not is_forbidden
        block = dead_letters.headers_sent_back(entry.message.headers)
        letter = dead_letters.moved(entry.message, topic, block, now_us)
        if topic.queue is not None:
            letter.set_ttl(topic.queue.ttl_us, now_us)
        self.settling.move(entry, letter, is_letter=False)
        return True


def _may_be_in_the_log(lane: Lane, letter_id: int) -> bool:
    """Say whether a lane has yet to read a letter, if it is one of its priority."""
    position = lane.position
    if lane.ended or not (
        position.behind and position.cursor < letter_id <= lane.topic.last_id
    ):
        return False
    return position.settled is None or not position.settled.contains(letter_id)


def _is_behind(queue: Queue) -> bool:
    return any(lane.position.behind for lane in queue.lanes)
