"""Admission: may this publish go in? One decision for all five ways in.

Blip, Vibe, Qumbed, HTTP and the Spark sink ask `PublishAdmission`, and only translate its
verdict into their own reply. The caller has checked permission and found the topic. The rest
is decided here, in this order; the first row that applies gives the verdict:

    it is a repeat: its dedup id is known for this topic        DUPLICATE   of `known_id`
    it needs a record, and the broker drains or the log refuses REFUSED     for `reason`
    its queue has room, or drops the oldest
        it needs a record, and the log is too far behind        STARVED     until a commit
        otherwise                                               GO
    its queue is full, and the strategy is
        BlockPublisher     while the broker drains              REFUSED     for `reason`
                           otherwise                            WAIT        for room
        RedirectToDlq      the broker drains or the log refuses REFUSED     for `reason`
                           the log is too far behind            STARVED     until a commit
                           the broker has too many topics       FULL
                           otherwise                            REDIRECT    as `letter`
        DropNewest, or RedirectToDlq without dead letters       FULL

A publish needs a record unless it has QoS 0 or its queue is not durable. A dead letter always
needs one, so a memory-only publish that would be redirected is refused while the log refuses. A
repeat needs none: it is acknowledged once the first is committed, even while nothing else is
accepted.

What each verdict does, and who does it:

    DUPLICATE   `judge` counts it. Nothing is stored; the reply waits for the commit of
                `known_id` and is refused with it.
    REFUSED     `judge` counts it. Nothing is remembered, so the publisher may repeat it.
    FULL        as REFUSED.
    WAIT        the connection parks in the queue's `blocked` and is woken to ask again when
                there is room, when the queue ends, when the broker begins to drain and when
                the log begins to refuse (`wake_blocked`): it always gets an answer.
                A connection that ends takes itself off the list.
    STARVED     the connection waits in the host's `starved`, for a commit.
    REDIRECT    `Broker.accept` stores `letter` and counts it as dead-lettered. The dedup id is
                remembered for the queue that the publish was meant for, so that a repeat is
                acknowledged and makes no second letter. The letter's own queue is not judged:
                queues of dead letters have no bound.
    GO          `Broker.accept` (Blip, which has no dedup ids: `Broker.publish`) stores it, and
                remembers the dedup id at once, so that a repeat in the same batch is found.

When the log refuses a record after all, `taken_back` counts the refusal and forgets the dedup
id. The sink differs in three ways. It has no publisher to refuse, so for its rows (`judge_row`)
every verdict but GO and REDIRECT means "not yet" and is not counted. Its rows are exactly-once
by their batch, so they have no dedup ids. They always have records, and the sink publishes them
in bounded chunks, so STARVED does not occur.

A replay of dead letters is not a publish but an operator's order, and is not judged here.
"""

from typing import Final, final

from braidmq.broker.dead_letters import QUEUE_HEADER
from braidmq.broker.dedup import NEW, DedupWindow
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.queues import Queues
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.policy import BLOCK_PUBLISHER, DROP_NEWEST, REDIRECT_TO_DLQ
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic, decode_headers

GO: Final = 1
REDIRECT: Final = 2
DUPLICATE: Final = 3
REFUSED: Final = 4
FULL: Final = 5
WAIT: Final = 6
STARVED: Final = 7
"""Verdicts. Plain integers: nothing is allocated for them; details are on the admission."""

QUEUE_FULL: Final = "queue full"
"""What a publisher is told when the verdict is FULL."""

UNCOMMITTED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Message bytes on their way to the log, of all publishers; above it they wait for commits."""

_NO_LETTER: Final = Message(Topic(""), 0, b"")


@final
class PublishAdmission:
    """Judges publishes; the details of the last verdict are its attributes."""

    def __init__(
        self,
        settings: Settings,
        outgoing: Outgoing,
        dedup: DedupWindow,
        queues: Queues,
        stats: Stats,
    ) -> None:
        self.refusal: str = ""  # why the log takes no record now; empty when it does
        self.reason: str = ""  # of REFUSED
        self.known_id: int = NEW  # of DUPLICATE
        self.letter: Message = _NO_LETTER  # of REDIRECT
        self.uncommitted_bytes_max: int = min(UNCOMMITTED_BYTES_MAX, settings.memory_bytes)
        self._draining: str = ""  # why, while it does
        self._outgoing: Outgoing = outgoing
        self._dedup: DedupWindow = dedup
        self._queues: Queues = queues
        self._stats: Stats = stats

    # The verdict.

    def judge(self, message: Message, dedup_id: str, now_us: int) -> int:
        """Return the verdict on a publish; *dedup_id* is empty when it has none."""
        # A publish that waits is judged again each time it is woken, so WAIT and STARVED must
        # count nothing.
        if dedup_id:
            known = self._dedup.find(message.topic.name, dedup_id, now_us)
            if known != NEW:
                self._stats.duplicates += 1
                self.known_id = known
                return DUPLICATE
        queue = message.topic.queue
        if queue is not None:
            return self._judge_for(queue, message, now_us)
        if message.qos == 0:
            return GO
        if self.refusal:
            return self._refused()
        return STARVED if self._outgoing.bytes >= self.uncommitted_bytes_max else GO

    def must_wait(self, message: Message) -> bool:
        """Say whether `judge` would answer WAIT or STARVED now; neither counts nor stores."""
        needs = needs_record(message)
        verdict = self._weigh(message.topic.queue, needs_record=needs)
        if verdict == REDIRECT or (verdict == GO and needs):
            return self._outgoing.bytes >= self.uncommitted_bytes_max
        return verdict == WAIT

    def judge_row(self, row: Message, now_us: int) -> int:
        """Return the verdict on a sink's row: GO, REDIRECT, or what it waits for."""
        queue = row.topic.queue
        # Even in a queue that is not durable: a restart counts the rows by their records.
        verdict = self._weigh(queue, needs_record=True)
        if verdict == REDIRECT:
            assert queue is not None
            verdict = self._redirect(row, queue, now_us)
        if verdict == REFUSED:
            self.reason = self.refusal
        return verdict

    def _judge_for(self, queue: Queue, message: Message, now_us: int) -> int:
        needs_record = message.qos != 0 and queue.policy.durable
        verdict = self._weigh(queue, needs_record=needs_record)
        if verdict == REDIRECT or (verdict == GO and needs_record):
            # Before the redirect, which makes a letter and may declare a queue for it.
            if self._outgoing.bytes >= self.uncommitted_bytes_max:
                return STARVED
            if verdict == REDIRECT:
                verdict = self._redirect(message, queue, now_us)
        if verdict == REFUSED:
            return self._refused()
        if verdict == FULL:
            self._stats.refused += 1
        return verdict

    def _weigh(self, queue: Queue | None, *, needs_record: bool) -> int:
        """Return what the log and the queue's bound say; neither counts nor stores."""
        if queue is None:
            return REFUSED if needs_record and self.refusal else GO
        if needs_record and self.refusal:
            return REFUSED
        policy = queue.policy
        if queue.size_max == 0 or queue.has_room():
            return GO
        if policy.overflow == BLOCK_PUBLISHER:
            # Nothing is handed out while the broker drains, so there will be no room.
            return REFUSED if self._draining else WAIT
        if policy.overflow == REDIRECT_TO_DLQ and policy.dead_letters:
            # A letter needs a record even if the message did not.
            return REFUSED if self.refusal else REDIRECT
        assert policy.overflow in {DROP_NEWEST, REDIRECT_TO_DLQ}
        return FULL

    def _redirect(self, message: Message, queue: Queue, now_us: int) -> int:
        letter = self._queues.redirect(message, queue, now_us)
        if letter is None:
            return FULL
        self.letter = letter
        return REDIRECT

    def _refused(self) -> int:
        self._stats.refused += 1
        self.reason = self.refusal
        return REFUSED

    # Its effects.

    def take_letter(self) -> Message:
        """Take the dead letter of a REDIRECT, to be stored now."""
        letter = self.letter
        self.letter = _NO_LETTER
        self._stats.dead_lettered += 1
        return letter

    def gave_up(self) -> None:
        """Count a publish whose publisher has stopped waiting."""
        self._stats.refused += 1

    def taken_back(self, message: Message) -> None:
        """Undo what was noted of a message that the log refused after all."""
        self._stats.refused += 1
        if message.headers:
            # Forget its id: the publisher is told of the refusal and may send it again.
            self._dedup.forget_message(message)
            if QUEUE_HEADER in decode_headers(message.headers):
                self._stats.dead_lettered -= 1
        if message.topic.queue is not None:
            message.topic.queue.pending -= 1

    # What changes the verdict.

    def drain(self, reason: str) -> None:
        """Refuse every publish that needs a record, for good, and tell those that wait."""
        self._draining = reason
        self.refusal = reason
        self._queues.wake_blocked()

    def log_refuses(self, reason: str) -> None:
        """Refuse every publish that needs a record, and tell those that wait."""
        self.refusal = self._draining or reason
        self._queues.wake_blocked()

    def log_accepts(self) -> None:
        """Take publishes that need a record again, unless the broker drains."""
        self.refusal = self._draining


def needs_record(message: Message) -> bool:
    """Say whether a publish goes to the log: QoS 1, and its queue, if any, is durable."""
    queue = message.topic.queue
    return message.qos != 0 and (queue is None or queue.policy.durable)
