"""Replays over HTTP: send dead letters back to where they came from.

    POST /api/dead-letters/replay     {"queue", "count" or "offset"}: {"queue", "replayed"}

A letter that waits within its lane's window is sent back from memory. One that lies deeper is
read from the log, and the lane skips it later. A letter without a valid origin stays. A replay
publishes: the key needs `publish` on the origin of each letter besides `admin`.
"""

import asyncio
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.refusals import (
    FanOutError,
    ForbiddenNameError,
    LetterStaysError,
    UnknownLettersError,
    UnknownThingError,
)
from braidmq.admin.http.requests import allow, body_of, name_in, object_of, shown
from braidmq.admin.log import Log
from braidmq.base import refusals
from braidmq.broker.authorize import PURGE_QUEUE, Principal
from braidmq.broker.delivery import replays
from braidmq.broker.delivery.dispatch import stored
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, changing
from braidmq.wal.browse import Bounds
from braidmq.wal.wal import Wal

REPLAY_COUNT_MAX: Final = 2**31 - 1
SIGNED_MAX: Final = 2**63 - 1
"""Above every offset, and the largest integer that all JSON readers agree on."""

READ_WAIT_S: Final = 10.0
"""How long the replay of one letter waits for the log's reader."""

PREVIOUS_ROWS_MAX: Final = 100_000
"""Ids searched for the message before a letter; further back, any id between will do."""

_STAYS: Final = {
    replays.READING: "timed out reading the log",
    replays.HELD: "a consumer holds the letter now",
    replays.UNSENDABLE: "the letter has no valid origin to send it back to",
    replays.CROWDED: refusals.by_bound(
        "too many letters were replayed ahead of the oldest, replay those first",
        replays.AHEAD_RANGES_MAX,
        "ranges",
    ),
}


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters to send back: `count` of the oldest, the one at `offset`, or all."""

    queue: Annotated[str, Meta(min_length=1)]
    count: Annotated[int, Meta(ge=1, le=REPLAY_COUNT_MAX)] | None = None
    offset: Annotated[int, Meta(ge=1, le=SIGNED_MAX)] | None = None


_ONE_OF: Final = {name: {"type": "integer"} for name in ("count", "offset")}
_Replay = Annotated[
    Replay, Meta(extra_json_schema={"not": {"properties": _ONE_OF, "required": list(_ONE_OF)}})
]


class Replayed(msgspec.Struct, frozen=True):
    """How many letters were sent back."""

    queue: str
    replayed: int


REPLAYING: Final = frozenset(Replay.__struct_encode_fields__)
"""The fields of a replay."""


class Replays:
    """Replays, one at a time: two of them must not count the same letter."""

    def __init__(self, find_engine: FindEngine, log: Log) -> None:
        self._find_engine = find_engine
        self._log = log
        self._replaying = asyncio.Lock()

    async def replay(self, queue: str, count: int | None, by: Principal | None = None) -> int:
        """Send the oldest *count* letters back, or all; return how many were sent.

        *by* asks for it; None is the broker itself, which may publish anywhere.

        Letters without a valid origin stay. If the queue has consumers, letters that they
        acknowledge during the replay count as sent back.

        Raises:
            UnknownLettersError: It is not a dead-letter queue.
            FanOutError: Letters of a fan-out are not sent back.
            ForbiddenNameError: *by* may not publish where a letter came from; those before
                it were sent.
            UnavailableError: The broker cannot do it now; some letters may have been sent.
        """
        async with self._replaying:
            engine = changing(self._find_engine())
            found = _letter_queue(engine, queue)
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            waiting = found.waiting()
            asked = waiting if count is None else min(count, waiting)
            if asked == 0:
                return 0
            # What is settled from here on counts as sent back: nothing counts replays as such.
            settled = found.topic.message_count - found.unsettled()
            order = replays.Order(by)
            engine.broker.queues.replays.replay(found, asked, engine.now_us(), order)
            # A full log stops a replay half-way; the letters that are left stay.
            while _is_replaying(found):
                if engine.broker.refusal:
                    raise UnavailableError(engine.broker.refusal)
                await engine.waiters.until(
                    lambda: not _is_replaying(found) or bool(engine.broker.refusal)
                )
            await engine.waiters.committed(engine.broker.barrier())
            sent = min(asked, found.topic.message_count - found.unsettled() - settled)
            if order.forbidden:
                raise ForbiddenNameError(_forbidden(order, sent))
            return sent

    async def replay_one(self, queue: str, offset: int, by: Principal | None = None) -> None:
        """Send one letter back, committed.

        Raises:
            UnknownLettersError, UnknownThingError: There is no such queue, or letter in it.
            FanOutError, LetterStaysError: It cannot be sent back by itself.
            ForbiddenNameError: *by* may not publish where it came from.
            UnavailableError: The broker cannot do it now.
        """
        async with self._replaying:
            engine = changing(self._find_engine())
            found = _letter_queue(engine, queue)
            order = replays.Order(by)
            outcome = await self._sent(engine, found, offset, order)
            if outcome == replays.FORBIDDEN:
                raise ForbiddenNameError(_forbidden(order, 0))
            if outcome == replays.GONE:
                raise UnknownThingError("no such letter")
            if outcome != replays.SENT:
                raise LetterStaysError(_STAYS[outcome])
            await engine.waiters.committed(engine.broker.outgoing.last_id)

    async def _sent(
        self, engine: Engine, queue: Queue, offset: int, order: replays.Order
    ) -> int:
        """Hand a letter's replay to the log as soon as possible; return how that went."""
        queues = engine.broker.queues
        read: tuple[Message, int] | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_WAIT_S
        while True:
            changing(engine)
            reads_done = engine.reads_done
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            # Asked again after each wait: by now a consumer may hold it, or have settled it.
            outcome = queues.replays.replay_one(queue, offset, engine.now_us(), order)
            if outcome == replays.FAR and read is None:
                read = await self._log.read(read_letter, queue.topic, offset)
                if read is None:
                    return replays.GONE
                continue
            if outcome == replays.FAR and read is not None:
                outcome = queues.replays.replay_ahead(queue, *read, engine.now_us(), order)
            if outcome != replays.READING or loop.time() >= deadline:
                return outcome
            # A busy lane asks for its next read in the turn in which this one comes back, and
            # may never be seen idle: each completed read is a reason to ask again.
            await engine.waiters.until(
                partial(_has_read, engine, queue, reads_done), within_s=deadline - loop.time()
            )

    @keyed("POST /api/dead-letters/replay", body=_Replay, refusals=(404, 409, 503))
    async def post_replay(self, request: Request, principal: Principal) -> Replayed:
        """Send dead letters back to where they came from, oldest first."""
        given = object_of(await body_of(request), REPLAYING)
        queue = name_in(given, "queue")
        allow(principal, PURGE_QUEUE, queue)
        count = _whole(given, "count", REPLAY_COUNT_MAX)
        offset = _whole(given, "offset", SIGNED_MAX)
        if offset is None:
            return Replayed(queue, await self.replay(queue, count, principal))
        if count is not None:
            raise HTTPException(400, "give one of count and offset")
        await self.replay_one(queue, offset, principal)
        return Replayed(queue, replayed=1)


def _forbidden(order: replays.Order, sent: int) -> str:
    origin = shown(order.forbidden)
    done = f"; {sent} before it were sent back" if sent else ""
    return (
        f"this API key lacks the permission publish on {origin}, where a letter came from{done}"
    )


def read_letter(wal: Wal, topic: Topic, offset: int) -> tuple[Message, int] | None:
    """Read one letter, and find the message before it or an id in between; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    found = wal.read(offset - 1, topic=topic.raw, up_to=offset, count_max=1, bytes_max=1)
    if not found.records:
        return None
    before = wal.browse_before(offset, topic.raw, Bounds(1, 1, PREVIOUS_ROWS_MAX))
    previous = before.ids[0] if before.ids else before.reached_id - 1
    return stored(topic, *found.records[0]), previous


def _letter_queue(engine: Engine, name: str) -> Queue:
    found = engine.broker.queues.letter_queue(name)
    if found is None:
        raise UnknownLettersError
    if found.ledger is not None:
        raise FanOutError
    return found


def _whole(given: dict[str, object], key: str, most: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if type(value) is int and 1 <= value <= most:
        return value
    raise HTTPException(400, f"{key}: must be a whole number from 1 to {most}")


def _is_replaying(queue: Queue) -> bool:
    return queue.replaying > 0 and queue.topic.queue is queue  # else it was deleted


def _has_read(engine: Engine, queue: Queue, reads_done: int) -> bool:
    channels = queue.durable_channels()
    is_reading = any(channel.position.reading for channel in channels)
    return engine.reads_done > reads_done or not is_reading
