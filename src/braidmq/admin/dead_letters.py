"""Dead letters over HTTP: which queues hold them, and how each message died.

    GET /api/dead-letters?after=&limit=        {"queues": [...], "next": name or null, "total"}
    GET /api/dead-letters?queue=&from=&limit=  {"letters": [...], "next": offset or null}

Letters are listed while they wait or are in flight, oldest first, with payloads as
`messages.py` shows them. A page may be short; `next` says whether more may follow. To purge a
dead-letter queue, purge it as any other queue; `replays.py` sends letters back.

Which letters are not settled is known on the event loop, as ranges of ids; the letters are read
from the log. Every dead letter has a record there.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.parameters import AFTER, FROM, LIMIT, text
from braidmq.admin.http.refusals import UnknownLettersError
from braidmq.admin.http.requests import allow
from braidmq.admin.log import Log
from braidmq.admin.messages import SHOWN_BYTES_MAX, ShownMessage, shown_message
from braidmq.admin.queues import page_of
from braidmq.base.limits import MIB
from braidmq.broker import dead_letters
from braidmq.broker.authorize import LIST_QUEUES, PURGE_QUEUE, SUBSCRIBE, Principal, authorize
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.records import Head
from braidmq.server.engine.requests import FindEngine, running
from braidmq.wal.wal import Wal

READ_BYTES_MAX: Final = 8 * MIB
"""Bytes read from the log for one page, payloads included; then the page ends early."""

PAGE_BYTES_MAX: Final = MIB
"""Headers and shown payloads on one page; the last letter may exceed it."""

QUEUE: Final = text("queue", "The dead-letter queue whose letters to list.", default=None)

_ATTEMPTS_DIGITS_MAX: Final = 10

Ranges = list[tuple[int, int]]
"""Ids as (after, last], in order."""


class LetterQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dead-letter queue, and how many letters wait in it."""

    queue: str
    message_count: int
    in_flight: int
    subscriber_count: int


class LetterQueuesList(msgspec.Struct, frozen=True):
    """Dead-letter queues by name, the next `after`, and how many there are."""

    queues: list[LetterQueue]
    next: str | None
    total: int


class ShownLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dead letter: why and where it died, and the publisher's headers and payload."""

    offset: int
    id: str
    reason: str
    death_queue: str
    attempts: int
    timestamp: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.field(
        name="payload_base64", default=msgspec.UNSET
    )
    encoding: str
    size: int
    sealed: bool
    truncated: bool
    headers: dict[str, str]


class LettersList(msgspec.Struct, frozen=True):
    """Letters by offset, and the `from` of the next page."""

    letters: list[ShownLetter]
    next: int | None


class DeadLetters:
    """The dead letters that are not settled."""

    def __init__(self, find_engine: FindEngine, log: Log) -> None:
        self._find_engine = find_engine
        self._log = log
        self._reading = asyncio.Lock()  # one page at a time, to bound memory

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool]
    ) -> LetterQueuesList:
        """Return up to *limit* visible dead-letter queues after *after*.

        Raises:
            UnavailableError: The broker is still recovering.
        """
        queues = running(self._find_engine()).broker.queues
        found, following, total = await page_of(
            queues.letter_queues(), queues.by_name, after=after, limit=limit, visible=visible
        )
        rows = [
            LetterQueue(
                queue=facts.name,
                message_count=facts.waiting,
                in_flight=facts.in_flight,
                subscriber_count=facts.subscribers,
            )
            for facts in found
        ]
        return LetterQueuesList(rows, following, total)

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersList:
        """Return up to *limit* letters that are not settled, from an offset on.

        Raises:
            UnknownLettersError: It is not a dead-letter queue.
            UnavailableError: The broker cannot read the log now.
        """
        async with self._reading:
            engine = running(self._find_engine())
            found = engine.broker.queues.letter_queue(queue)
            if found is None:
                raise UnknownLettersError
            waiting = Waiting(found, engine.broker.committed_id)
            return await self._log.read(
                read_letters, waiting, from_offset=from_offset, limit=limit
            )

    @keyed("GET /api/dead-letters", QUEUE, AFTER, FROM, LIMIT, refusals=(404, 503))
    async def get_letters(
        self, request: Request, principal: Principal
    ) -> LetterQueuesList | LettersList:
        """List the dead-letter queues; with `queue`, the letters in one of them."""
        queue = QUEUE.given(request)
        from_offset = FROM.of(request)
        if queue is None:
            return await self.page(
                after=AFTER.of(request),
                limit=LIMIT.of(request),
                visible=lambda name: authorize(principal, LIST_QUEUES, name),
            )
        # A key that may consume or purge the letters may read them. Permission to see the queue
        # is not enough: headers and payloads are the publisher's.
        if not authorize(principal, SUBSCRIBE, queue):
            allow(principal, PURGE_QUEUE, queue)
        return await self.letters(queue, from_offset=from_offset, limit=LIMIT.of(request))


class Waiting:
    """The letters of a queue that are not settled, by id; a snapshot for the reading thread."""

    def __init__(self, queue: Queue, committed_id: int) -> None:
        self.topic = queue.topic.raw
        self.last_id = queue.topic.last_id
        self._lanes = [
            open_ranges(channel.settled_ranges(committed_id), self.last_id)
            for channel in queue.durable_channels()
        ]

    def has(self, letter_id: int, priority: int) -> bool:
        """Return whether the letter is one of them."""
        # Only a queue with priorities has several lanes: one for each.
        ranges = self._lanes[priority if len(self._lanes) > 1 else 0]
        at = bisect_left(ranges, letter_id, key=_last)
        return at < len(ranges) and ranges[at][0] < letter_id

    def after(self, position: int) -> int | None:
        """Return the id up to which none of them follows *position*; None if none is left.

        A page continues there, and skips what is settled without reading it.
        """
        found: list[int] = []
        for ranges in self._lanes:
            at = bisect_left(ranges, position + 1, key=_last)
            if at < len(ranges):
                found.append(max(position, ranges[at][0]))
        return min(found, default=None)


def open_ranges(settled: Ranges, up_to: int) -> Ranges:
    """Return the ranges between the settled ones, up to *up_to*."""
    found: Ranges = []
    at = 0
    for after, last in sorted(settled):
        if at < min(after, up_to):
            found.append((at, min(after, up_to)))
        at = max(at, last)
    if at < up_to:
        found.append((at, up_to))
    return found


def read_letters(wal: Wal, waiting: Waiting, *, from_offset: int, limit: int) -> LettersList:
    """Read a page of letters; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    letters: list[ShownLetter] = []
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
                letters.append(_letter(shown_message(letter_id, record, waiting.topic)))
                # Only SHOWN_BYTES_MAX of a payload are on the page; as much again for headers.
                page_bytes += min(len(record) - head.headers_at, 2 * SHOWN_BYTES_MAX)
                if page_bytes >= PAGE_BYTES_MAX:
                    reached_id = letter_id  # the next page begins behind this letter
                    left_bytes = 0
                    break
        assert reached_id > position
        position = waiting.after(reached_id)
    return LettersList(letters, None if position is None else position + 1)


def _letter(message: ShownMessage) -> ShownLetter:
    kept = message.headers
    attempts = kept.pop(dead_letters.ATTEMPTS_HEADER, "")
    is_number = attempts.isascii() and attempts.isdigit()
    return ShownLetter(
        offset=message.offset,
        id=message.id or str(message.offset),
        reason=kept.pop(dead_letters.REASON_HEADER, ""),
        death_queue=kept.pop(dead_letters.QUEUE_HEADER, ""),
        attempts=int(attempts) if is_number and len(attempts) <= _ATTEMPTS_DIGITS_MAX else 0,
        timestamp=message.timestamp,
        payload=message.payload,
        payload_base64=message.payload_base64,
        encoding=message.encoding,
        size=message.size,
        sealed=message.sealed,
        truncated=message.truncated,
        headers=kept,
    )


def _last(ids: tuple[int, int]) -> int:
    return ids[1]
