"""Messages as they are read and published over HTTP.

Reading goes to the log, by its index and on a thread, and touches nobody's delivery. Publishing
is any publisher's way: to the broker, into the log, and answered when it is committed.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidmq.admin.http.refusals import QueueFullError, UnknownMessageError, UnknownTopicError
from braidmq.admin.messages import StoredMessage, StoredPage
from braidmq.admin.queries.log_reading import read_log
from braidmq.base.limits import MIB, RECORD_BYTES_MAX
from braidmq.base.strict_json import is_json
from braidmq.broker import admission
from braidmq.broker import headers as blocks
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.marks import SENDER_PUBLIC_KEY
from braidmq.broker.records import Head
from braidmq.broker.schemas import SEALED_BYTES_MIN, SENDER_KEY_BYTES
from braidmq.broker.topics import (
    ORIGIN_BLIP,
    ORIGIN_HTTP,
    ORIGIN_QUMBED,
    ORIGIN_SPARK,
    ORIGIN_VIBE,
    Message,
    Topic,
    body_of,
)
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.refusals import UnavailableError
from braidmq.server.engine.requests import FindEngine, running
from braidmq.wal.browse import Bounds
from braidmq.wal.wal import Wal

READ_BYTES_MAX: Final = 4 * MIB
"""Payloads that are read for one page; one message may overshoot it."""

READ_ROWS_MAX: Final = 1_000_000
"""Ids that are searched for one page: a rare topic's page may be short, and goes on."""

GROUP_MESSAGES: Final = 50
GROUP_BYTES_MAX: Final = GROUP_MESSAGES * RECORD_BYTES_MAX
"""Read at once when a page goes backwards, however large: payloads are bounded before."""

ROOM_WAIT_S: Final = 5.0
"""How long a publish waits for room, in the log's batches or in a queue that blocks."""

ORIGINS: Final = {
    ORIGIN_BLIP: "blip",
    ORIGIN_VIBE: "vibe",
    ORIGIN_QUMBED: "qumbed",
    ORIGIN_HTTP: "http",
    ORIGIN_SPARK: "spark",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A page of a topic: from where on, by offset and time, and how many messages at most."""

    topic: bytes
    last_id: int
    from_id: int | None
    time_us: int | None
    limit: int


class Messages:
    """What `admin` asks about messages."""

    def __init__(self, find_engine: FindEngine, find_wal: Callable[[], Wal | None]) -> None:
        self._find_engine = find_engine
        self._find_wal = find_wal
        self._reading = asyncio.Lock()  # one page at a time: that is what bounds the memory

    async def page(
        self,
        topic: str,
        *,
        from_offset: int | None,
        time_us: int | None,
        limit: int,
        newest_first: bool,
    ) -> StoredPage:
        """Return up to *limit* messages of a topic that are in the log.

        Raises:
            UnknownTopicError: There is no such topic.
            UnavailableError: The log cannot be read now.
        """
        found = self._topic(topic)
        wanted = Wanted(found.raw, found.last_id, from_offset, time_us, limit)
        read = newest_before if newest_first else oldest_from
        async with self._reading:
            return await read_log(self._find_engine(), self._find_wal(), read, wanted)

    async def one(self, topic: str, offset: int) -> StoredMessage:
        """Return one message.

        Raises:
            UnknownTopicError, UnknownMessageError: It is not there, or not any more.
            UnavailableError: The log cannot be read now.
        """
        raw = self._topic(topic).raw
        async with self._reading:
            message = await read_log(self._find_engine(), self._find_wal(), _read, raw, offset)
        if message is None:
            raise UnknownMessageError
        return message

    async def publish(
        self, topic: str, payload: bytes, *, headers: dict[str, str], qos: int, priority: int
    ) -> int | None:
        """Publish a message; return its offset once it is committed, None if it has none.

        Raises:
            QueueFullError: The queue takes no more.
            UnavailableError: Not now; if it was the log that failed, it may be stored.
        """
        engine = running(self._find_engine())
        place = engine.broker.topics.get(topic)
        if place is None:
            raise UnavailableError("too many topics")
        message = Message(place, qos, body_of(place, payload))
        message.origin = ORIGIN_HTTP
        message.priority = priority
        kept = {key: value for key, value in headers.items() if not blocks.is_brokers(key)}
        message.headers = blocks.encode(kept)
        given = await _admitted(engine, message, headers.get(DEDUP_HEADER, ""))
        if given == 0:
            engine.end_turn()
            return None
        await engine.waiters.committed(given)
        return given

    def _topic(self, name: str) -> Topic:
        topic = running(self._find_engine()).broker.topics.find(name)
        if topic is None:
            raise UnknownTopicError
        return topic


async def _admitted(engine: Engine, message: Message, dedup_id: str) -> int:
    """Wait for room, store the message or its letter, and return the id that it has.

    Raises:
        QueueFullError: The queue takes no more.
        UnavailableError: Nothing is stored now.
    """
    broker = engine.broker
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ROOM_WAIT_S
    while True:
        verdict = broker.admission.judge(message, dedup_id, engine.now_us())
        if verdict in {admission.GO, admission.REDIRECT}:
            return broker.accept(verdict, message, dedup_id, engine.now_us()).id
        if verdict == admission.DUPLICATE:
            return broker.admission.known_id
        if verdict == admission.REFUSED:
            raise UnavailableError(broker.admission.reason)
        if verdict == admission.FULL:
            raise QueueFullError
        if loop.time() >= deadline:
            broker.admission.gave_up()
            if verdict == admission.STARVED:
                raise UnavailableError("the log does not keep up")
            raise QueueFullError
        await engine.waiters.until(
            lambda: not broker.admission.has_to_wait(message, dedup_id, engine.now_us()),
            within_s=deadline - loop.time(),
        )


def oldest_from(wal: Wal, wanted: Wanted) -> StoredPage:
    """Read a page forwards; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    first_id = max(wanted.from_id or 1, wal.first_id)
    if wanted.time_us is not None:
        first_id = max(first_id, wal.first_at(wanted.time_us))
    after = first_id - 1
    up_to = min(wanted.last_id, after + READ_ROWS_MAX)
    if after >= up_to:
        return StoredPage([], None)
    topic = wanted.topic
    found = wal.read(
        after, topic=topic, up_to=up_to, count_max=wanted.limit, bytes_max=READ_BYTES_MAX
    )
    messages = [stored(one, record, topic) for one, record in found.records]
    is_last = found.reached_id >= wanted.last_id
    return StoredPage(messages, None if is_last else found.reached_id + 1)


def newest_before(wal: Wal, wanted: Wanted) -> StoredPage:
    """Read a page backwards: what is before an offset and no newer than a time; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    before = wanted.last_id + 1
    if wanted.from_id is not None:
        before = min(before, wanted.from_id)
    if wanted.time_us is not None:
        before = min(before, wal.first_at(wanted.time_us + 1))
    topic = wanted.topic
    found = wal.browse_before(
        before, topic, Bounds(wanted.limit, READ_BYTES_MAX, READ_ROWS_MAX)
    )
    messages: list[StoredMessage] = []
    reached_id = found.reached_id
    left_bytes = READ_BYTES_MAX
    for at in range(0, len(found.ids), GROUP_MESSAGES):
        if left_bytes <= 0:  # headers and names count, too
            reached_id = found.ids[at - 1]
            break
        group = found.ids[at : at + GROUP_MESSAGES]
        read = wal.read(
            group[-1] - 1,
            topic=topic,
            up_to=group[0],
            count_max=len(group),
            bytes_max=GROUP_BYTES_MAX,
        )
        left_bytes -= read.body_bytes
        messages += [stored(one, record, topic) for one, record in reversed(read.records)]
    return StoredPage(messages, reached_id if reached_id > wal.first_id else None)


def _read(wal: Wal, topic: bytes, offset: int) -> StoredMessage | None:
    found = wal.read(offset - 1, topic=topic, up_to=offset, count_max=1, bytes_max=1)
    return stored(*found.records[0], topic) if found.records else None


def stored(offset: int, record: bytes, topic: bytes) -> StoredMessage:
    """Return the message that a record of *topic* holds."""
    head = Head(record)
    kept = blocks.decode(record[head.headers_at : head.body_at])
    payload = record[head.body_at + 2 + len(topic) :]
    return StoredMessage(
        offset=offset,
        timestamp_us=head.timestamp_us,
        payload=payload,
        message_id=kept.pop(blocks.MESSAGE_ID, ""),
        headers=kept,
        qos=head.qos,
        priority=head.priority,
        origin=ORIGINS.get(head.origin, "unknown"),
        sealed=head.origin == ORIGIN_QUMBED and is_sealed(payload, kept),
    )


def is_sealed(payload: bytes, kept: dict[str, str]) -> bool:
    """Say whether the payload of a Qumbed message is a box between two keys."""
    try:
        key = base64.b64decode(kept.get(SENDER_PUBLIC_KEY, ""), validate=True)
    except binascii.Error:
        return False
    is_box = len(key) == SENDER_KEY_BYTES and len(payload) >= SEALED_BYTES_MIN
    return is_box and not is_json(payload)
