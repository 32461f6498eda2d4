"""Dead letters as an administrator over HTTP has them: found, looked at, sent back.

What is not settled is known on the event loop, as ranges of ids; the letters themselves are
read from the log, on a thread, and a page of them at a time. A letter that was given up in
memory only cannot be: every dead letter has a record.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Final

from braidmq.admin.dead_letters import Letter, LettersPage
from braidmq.admin.http.refusals import (
    FanOutError,
    LetterStaysError,
    UnknownQueueError,
    UnknownThingError,
)
from braidmq.admin.messages import SHOWN_BYTES_MAX, StoredMessage
from braidmq.admin.queries.backlogs import letter_queues
from braidmq.admin.queries.log_reading import read_log
from braidmq.admin.queries.messages import stored as as_stored
from braidmq.admin.queries.queue_administration import page_of
from braidmq.admin.queues import QueuesPage
from braidmq.base.limits import MIB
from braidmq.broker import dead_letters
from braidmq.broker.delivery import replays
from braidmq.broker.delivery.backlog import stored
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.records import Head
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.refusals import UnavailableError
from braidmq.server.engine.requests import FindEngine, changing, running
from braidmq.wal.browse import Bounds
from braidmq.wal.wal import Wal

READ_BYTES_MAX: Final = 8 * MIB
"""What is read from the log for one page, payloads and all; then the page ends, short."""

PAGE_BYTES_MAX: Final = MIB
"""Headers and shown payloads in one page; one letter more may overshoot it."""

READ_WAIT_S: Final = 10.0
"""How long a letter that is sent back by itself waits for the log's reader."""

PREVIOUS_ROWS_MAX: Final = 100_000
"""Ids that are searched for the message before a letter: further back, it need not be known."""

_ATTEMPTS_DIGITS_MAX: Final = 10

_STAYS: Final = {
    replays.READING: "timed out reading the log",
    replays.HELD: "a consumer has the letter now",
    replays.UNSENDABLE: "the letter does not say where it came from, or not believably",
    replays.CROWDED: "too many letters went ahead of the oldest: send those back first",
}

Ranges = list[tuple[int, int]]
"""Ids as (after, last], in order."""


class DeadLetters:
    """What `admin` asks about dead letters."""

    def __init__(self, find_engine: FindEngine, find_wal: Callable[[], Wal | None]) -> None:
        self._find_engine = find_engine
        self._find_wal = find_wal
        # One page is read at a time, whoever asks: that is what bounds the memory.
        self._reading = asyncio.Lock()
        self._replaying = asyncio.Lock()

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool]
    ) -> QueuesPage:
        """Return up to *limit* visible queues of dead letters with names behind *after*.

        Raises:
            UnavailableError: The broker is not up.
        """
        queues = running(self._find_engine()).broker.queues.by_name
        names = set(letter_queues(queues))
        return await page_of(names, queues, after=after, limit=limit, visible=visible)

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersPage:
        """Return up to *limit* letters that are not settled, from an offset on.

        Raises:
            UnknownQueueError: It is no queue of dead letters.
            UnavailableError: The log cannot be read now.
        """
        async with self._reading:
            engine = running(self._find_engine())
            waiting = Waiting(_found(engine, queue), engine.broker.committed_id)
            return await read_log(
                engine,
                self._find_wal(),
                read_letters,
                waiting,
                from_offset=from_offset,
                limit=limit,
            )

    async def replay(self, queue: str, count: int | None) -> int:
        """Send the oldest letters back, all when *count* is None; return how many went.

        Those that do not say, believably, where they came from stay. While somebody consumes
        the letters, what was acknowledged meanwhile counts as sent back.

        Raises:
            UnknownQueueError: It is no queue of dead letters.
            FanOutError: It is one whose letters are not sent back.
            UnavailableError: Not now; some may have been sent back before it was refused.
        """
        async with self._replaying:
            engine = changing(self._find_engine())
            found = _found(engine, queue)
            if found.ledger is not None:
                raise FanOutError
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            waiting = found.waiting()
            asked = waiting if count is None else min(count, waiting)
            if asked == 0:
                return 0
            settled = found.topic.message_count - found.unsettled()
            engine.broker.queues.replay(found, asked, engine.now_us())
            # A full log stops a replay half-way; the letters that are left stay.
            while _is_replaying(found):
                if engine.broker.refusal:
                    raise UnavailableError(engine.broker.refusal)
                await engine.waiters.until(
                    lambda: not _is_replaying(found) or bool(engine.broker.refusal)
                )
            await engine.waiters.committed(engine.broker.barrier())
            return min(asked, found.topic.message_count - found.unsettled() - settled)

    async def replay_one(self, queue: str, offset: int) -> None:
        """Send one letter back; it is over when that is committed.

        Raises:
            UnknownQueueError, UnknownThingError: There is no such queue, or letter in it.
            FanOutError, LetterStaysError: It cannot be sent back by itself.
            UnavailableError: Not now.
        """
        async with self._replaying:
            engine = changing(self._find_engine())
            found = _found(engine, queue)
            if found.ledger is not None:
                raise FanOutError
            outcome = await self._sent(engine, found, offset)
            if outcome == replays.GONE:
                raise UnknownThingError("no such letter")
            if outcome != replays.SENT:
                raise LetterStaysError(_STAYS[outcome])
            await engine.waiters.committed(engine.broker.outgoing.last_id)

    async def _sent(self, engine: Engine, queue: Queue, offset: int) -> int:
        """Give a letter's way back to the log, as soon as it can be; say how that went."""
        queues = engine.broker.queues
        read: tuple[Message, int] | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_WAIT_S
        while True:
            changing(engine)
            reads_done = engine.reads_done
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            # What happened while it was read decides: it may be held by now, or settled.
            outcome = queues.replay_one(queue, offset, engine.now_us())
            if outcome == replays.FAR and read is None:
                async with self._reading:
                    read = await read_log(
                        engine, self._find_wal(), read_letter, queue.topic, offset
                    )
                if read is None:
                    return replays.GONE
                continue
            if outcome == replays.FAR and read is not None:
                outcome = queues.replay_ahead(queue, *read, engine.now_us())
            if outcome != replays.READING or loop.time() >= deadline:
                return outcome
            # A busy lane asks for its next read in the turn in which this one comes back: it
            # may never be seen idle, and each read that has come back is a reason to ask again.
            await engine.waiters.until(
                partial(_has_read, engine, queue, reads_done), within_s=deadline - loop.time()
            )


class Waiting:
    """The letters of a queue that are not settled, by their ids; it does not change."""

    def __init__(self, queue: Queue, committed_id: int) -> None:
        self.topic = queue.topic.raw
        self.last_id = queue.topic.last_id
        self._lanes = [
            open_ranges(channel.settled_ranges(committed_id), self.last_id)
            for channel in queue.durable_channels()
        ]

    def has(self, letter_id: int, priority: int) -> bool:
        """Say whether the letter is one of them."""
        ranges = self._lanes[priority if len(self._lanes) > 1 else 0]
        at = bisect_left(ranges, letter_id, key=_last)
        return at < len(ranges) and ranges[at][0] < letter_id

    def after(self, position: int) -> int | None:
        """Return the highest id that has none of them between *position* and itself."""
        found: list[int] = []
        for ranges in self._lanes:
            at = bisect_left(ranges, position + 1, key=_last)
            if at < len(ranges):
                found.append(max(position, ranges[at][0]))
        return min(found, default=None)


def open_ranges(settled: Ranges, up_to: int) -> Ranges:
    """Return the ranges up to *up_to* that are between the settled ones."""
    found: Ranges = []
    at = 0
    for after, last in sorted(settled):
        if at < min(after, up_to):
            found.append((at, min(after, up_to)))
        at = max(at, last)
    if at < up_to:
        found.append((at, up_to))
    return found


def read_letters(wal: Wal, waiting: Waiting, *, from_offset: int, limit: int) -> LettersPage:
    """Read a page of letters; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    letters: list[Letter] = []
    left_bytes = READ_BYTES_MAX
    page_bytes = 0
    position = waiting.after(from_offset - 1)
    while position is not None and len(letters) < limit and left_bytes > 0:
        found = wal.read(
            position,
            topic=waiting.topic,
            up_to=waiting.last_id,
            count_max=limit - len(letters),
            bytes_max=left_bytes,
        )
        left_bytes -= found.body_bytes
        reached_id = found.reached_id
        for letter_id, record in found.records:
            head = Head(record)
            if waiting.has(letter_id, head.priority):
                letters.append(_letter(as_stored(letter_id, record, waiting.topic)))
                page_bytes += min(len(record) - head.headers_at, 2 * SHOWN_BYTES_MAX)
                if page_bytes >= PAGE_BYTES_MAX:
                    reached_id = letter_id
                    left_bytes = 0
                    break
        assert reached_id > position
        position = waiting.after(reached_id)
    return LettersPage(letters, None if position is None else position + 1)


def read_letter(wal: Wal, topic: Topic, offset: int) -> tuple[Message, int] | None:
    """Read one letter, and find the message before it or an id between; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    found = wal.read(offset - 1, topic=topic.raw, up_to=offset, count_max=1, bytes_max=1)
    if not found.records:
        return None
    before = wal.browse_before(offset, topic.raw, Bounds(1, 1, PREVIOUS_ROWS_MAX))
    previous = before.ids[0] if before.ids else before.reached_id - 1
    return stored(topic, *found.records[0]), previous


def _letter(message: StoredMessage) -> Letter:
    kept = message.headers
    attempts = kept.pop(dead_letters.ATTEMPTS_HEADER, "")
    is_number = attempts.isascii() and attempts.isdigit()
    return Letter(
        offset=message.offset,
        message_id=message.message_id or str(message.offset),
        reason=kept.pop(dead_letters.REASON_HEADER, ""),
        death_queue=kept.pop(dead_letters.QUEUE_HEADER, ""),
        attempts=int(attempts) if is_number and len(attempts) <= _ATTEMPTS_DIGITS_MAX else 0,
        timestamp_us=message.timestamp_us,
        payload=message.payload,
        headers=kept,
        sealed=message.sealed,
    )


def _found(engine: Engine, name: str) -> Queue:
    queues = engine.broker.queues.by_name
    if name not in queues or name not in letter_queues(queues):
        raise UnknownQueueError("queue of dead letters")
    return queues[name]


def _is_replaying(queue: Queue) -> bool:
    return queue.replaying > 0 and queue.topic.queue is queue  # else it was deleted


def _has_read(engine: Engine, queue: Queue, reads_done: int) -> bool:
    return engine.reads_done > reads_done or not any(
        lane.position.reading for lane in queue.lanes
    )


def _last(ids: tuple[int, int]) -> int:
    return ids[1]
