"""Messages over HTTP: browse a topic in the log, and show one message.

    GET  /api/topics/{topic}/messages?from=&time=&limit=&order=   {"messages": [...], "next"}
    GET  /api/topics/{topic}/messages/{offset}                    one message, whole

A payload that is JSON is shown as it is, character by character; other text as a string;
anything else in base64. Messages are read from the log by its index, on a thread: that does not
affect their consumers.
"""

import asyncio
import base64
import binascii
import codecs
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import answered, keyed
from braidmq.admin.http.parameters import (
    FROM,
    LIMIT,
    TOPIC,
    Name,
    choice,
    iso,
    moment,
    whole,
    whole_number,
)
from braidmq.admin.http.refusals import UnknownMessageError, UnknownTopicError
from braidmq.admin.http.requests import allow
from braidmq.admin.log import Log
from braidmq.base.ids import ID_MAX
from braidmq.base.limits import KIB, MIB, RECORD_BYTES_MAX
from braidmq.base.strict_json import is_json
from braidmq.broker.authorize import SUBSCRIBE, Principal
from braidmq.broker.marks import SENDER_PUBLIC_KEY
from braidmq.broker.records import Head
from braidmq.broker.schemas import SEALED_BYTES_MIN, SENDER_KEY_BYTES
from braidmq.broker.topics import (
    MESSAGE_ID_HEADER,
    ORIGIN_BLIP,
    ORIGIN_HTTP,
    ORIGIN_QUMBED,
    ORIGIN_SPARK,
    ORIGIN_VIBE,
    Topic,
    decode_headers,
)
from braidmq.server.engine.requests import FindEngine, running
from braidmq.wal.browse import Bounds
from braidmq.wal.wal import Wal

PATH: Final = "/api/topics/{topic}/messages"
OFFSET: Final = Name("offset", "The message's offset.", whole=True)

SHOWN_BYTES_MAX: Final = 64 * KIB
"""How much of one payload a page shows; beyond that the message is `truncated`."""

READ_BYTES_MAX: Final = 4 * MIB
"""Payloads read for one page; one message may exceed it."""

READ_ROWS_MAX: Final = 1_000_000
"""Ids searched for one page. The page of a rare topic may be short, and `next` continues it."""

GROUP_MESSAGES: Final = 50
GROUP_BYTES_MAX: Final = GROUP_MESSAGES * RECORD_BYTES_MAX
"""Messages read at once for a page in descending order, whatever their size: `READ_BYTES_MAX`
bounds the groups of a page."""

ORIGINS: Final = {
    ORIGIN_BLIP: "blip",
    ORIGIN_VIBE: "vibe",
    ORIGIN_QUMBED: "qumbed",
    ORIGIN_HTTP: "http",
    ORIGIN_SPARK: "spark",
}

ORDER: Final = choice("order", "Oldest first, or newest first.", ("asc", "desc"))
TIME: Final = moment("time", "Begin with the first message that is not older than this.")
FROM_ANY: Final = whole(
    "from",
    "The offset to begin with; with `desc`, show the messages before it.",
    ID_MAX,
    None,
    FROM.rule,
)

_Utf8: Final = codecs.getincrementaldecoder("utf-8")


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message; it has either `payload` or `payload_base64`, as `encoding` says."""

    offset: int
    timestamp: str
    id: str | None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    encoding: str
    size: int
    headers: dict[str, str]
    qos: int
    priority: int
    origin: str
    sealed: bool
    truncated: bool


class MessagesPage(msgspec.Struct, frozen=True):
    """Messages in the requested order, and the `from` of the next page."""

    messages: list[ShownMessage]
    next: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A page of a topic: where it begins, by offset and time, and its length."""

    topic: bytes
    last_id: int
    from_id: int | None
    time_us: int | None
    limit: int
    after_id: int = 0
    """Messages up to it belong to a topic of the same name that was deleted."""


class Messages:
    """The messages in the log."""

    def __init__(self, find_engine: FindEngine, log: Log) -> None:
        self._find_engine = find_engine
        self._log = log
        self._reading = asyncio.Lock()  # one page at a time, to bound memory

    async def page(
        self,
        topic: str,
        *,
        from_offset: int | None,
        time_us: int | None,
        limit: int,
        newest_first: bool,
    ) -> MessagesPage:
        """Return up to *limit* messages of a topic.

        Raises:
            UnknownTopicError: There is no such topic.
            UnavailableError: The broker cannot read the log now.
        """
        found = self._topic(topic)
        wanted = Wanted(found.raw, found.last_id, from_offset, time_us, limit, found.began_id)
        read = newest_before if newest_first else oldest_from
        async with self._reading:
            return await self._log.read(read, wanted)

    async def one(self, topic: str, offset: int) -> ShownMessage:
        """Return one message.

        Raises:
            UnknownTopicError, UnknownMessageError: It does not exist, or no longer.
            UnavailableError: The broker cannot read the log now.
        """
        found = self._topic(topic)
        async with self._reading:
            message = await self._log.read(_read, found.raw, offset)
        if message is None or offset <= found.began_id:
            raise UnknownMessageError
        return message

    def _topic(self, name: str) -> Topic:
        topic = running(self._find_engine()).broker.topics.find(name)
        if topic is None:
            raise UnknownTopicError
        return topic

    @keyed(
        f"GET {PATH}",
        *(TOPIC, FROM_ANY, TIME, LIMIT, ORDER),
        answer=MessagesPage,
        refusals=(404, 503),
    )
    async def get_messages(self, request: Request, principal: Principal) -> Response:
        """List the messages of a topic in the log, a page at a time."""
        topic = request.path_params["topic"]
        allow(principal, SUBSCRIBE, topic)
        page = await self.page(
            topic,
            from_offset=FROM_ANY.given(request),
            time_us=TIME.given(request),
            limit=LIMIT.of(request),
            newest_first=ORDER.of(request) == "desc",
        )
        # A page may hold megabytes, so it is encoded on a thread as well.
        return await asyncio.to_thread(answered, page)

    @keyed(f"GET {PATH}/{{offset}}", TOPIC, OFFSET, answer=ShownMessage, refusals=(404, 503))
    async def get_message(self, request: Request, principal: Principal) -> Response:
        """Show one message with its whole payload."""
        topic = request.path_params["topic"]
        allow(principal, SUBSCRIBE, topic)
        offset = whole_number(request.path_params["offset"], ID_MAX)
        if offset is None:
            raise HTTPException(404, "no such message: offsets are whole numbers from 1 on")
        return await asyncio.to_thread(answered, await self.one(topic, offset))


def shown_payload(
    payload: bytes, bytes_max: int | None
) -> tuple[msgspec.Raw | msgspec.UnsetType, str, str | msgspec.UnsetType]:
    """Return a payload as JSON, its encoding, and its base64 if it is not text."""
    whole = bytes_max is None or len(payload) <= bytes_max
    if whole and is_json(payload):
        return msgspec.Raw(payload), "json", msgspec.UNSET
    cut = payload if whole else payload[:bytes_max]
    try:
        # The cut may split a character; the incremental decoder leaves the part out.
        text = _Utf8().decode(cut, final=whole)
    except UnicodeDecodeError:
        return msgspec.UNSET, "base64", base64.b64encode(cut).decode()
    return msgspec.Raw(msgspec.json.encode(text)), "text", msgspec.UNSET


def oldest_from(wal: Wal, wanted: Wanted) -> MessagesPage:
    """Read a page forwards; on any thread.

    Raises:
        LogError: The log cannot be read.
    """
    first_id = max(wanted.from_id or 1, wal.first_id, wanted.after_id + 1)
    if wanted.time_us is not None:
        first_id = max(first_id, wal.first_at(wanted.time_us))
    after = first_id - 1
    up_to = min(wanted.last_id, after + READ_ROWS_MAX)
    if after >= up_to:
        return MessagesPage([], None)
    topic = wanted.topic
    found = wal.read(
        after, topic=topic, up_to=up_to, count_max=wanted.limit, bytes_max=READ_BYTES_MAX
    )
    messages = [shown_message(one, record, topic) for one, record in found.records]
    is_last = found.reached_id >= wanted.last_id
    return MessagesPage(messages, None if is_last else found.reached_id + 1)


def newest_before(wal: Wal, wanted: Wanted) -> MessagesPage:
    """Read a page backwards, before an offset and not newer than a time; on any thread.

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
    messages: list[ShownMessage] = []
    reached_id = found.reached_id
    left_bytes = READ_BYTES_MAX
    ids = [one for one in found.ids if one > wanted.after_id]
    for at in range(0, len(ids), GROUP_MESSAGES):
        # The index knew the sizes of payloads only; headers and names count as well.
        if left_bytes <= 0:
            reached_id = ids[at - 1]
            break
        group = ids[at : at + GROUP_MESSAGES]
        read = wal.read(
            group[-1] - 1,
            topic=topic,
            up_to=group[0],
            count_max=len(group),
            bytes_max=GROUP_BYTES_MAX,
        )
        left_bytes -= read.body_bytes
        messages += [
            shown_message(one, record, topic) for one, record in reversed(read.records)
        ]
    oldest_id = max(wal.first_id, wanted.after_id + 1)
    return MessagesPage(messages, reached_id if reached_id > oldest_id else None)


def _read(wal: Wal, topic: bytes, offset: int) -> ShownMessage | None:
    found = wal.read(offset - 1, topic=topic, up_to=offset, count_max=1, bytes_max=1)
    return shown_message(*found.records[0], topic, None) if found.records else None


def shown_message(
    offset: int, record: bytes, topic: bytes, bytes_max: int | None = SHOWN_BYTES_MAX
) -> ShownMessage:
    """Return the message in a record of *topic*, with up to *bytes_max* bytes of payload."""
    head = Head(record)
    kept = decode_headers(record[head.headers_at : head.body_at])
    content = record[head.body_at + 2 + len(topic) :]  # behind u16 length and topic
    payload, encoding, encoded = shown_payload(content, bytes_max)
    return ShownMessage(
        offset=offset,
        timestamp=iso(head.timestamp_us),
        id=kept.pop(MESSAGE_ID_HEADER, None) or None,
        payload=payload,
        payload_base64=encoded,
        encoding=encoding,
        size=len(content),
        headers=kept,
        qos=head.qos,
        priority=head.priority,
        origin=ORIGINS.get(head.origin, "unknown"),
        sealed=head.origin == ORIGIN_QUMBED and is_sealed(content, kept),
        truncated=bytes_max is not None and len(content) > bytes_max,
    )


def is_sealed(payload: bytes, kept: dict[str, str]) -> bool:
    """Return whether the payload of a Qumbed message is sealed for a recipient's key."""
    try:
        key = base64.b64decode(kept.get(SENDER_PUBLIC_KEY, ""), validate=True)
    except binascii.Error:
        return False
    is_box = len(key) == SENDER_KEY_BYTES and len(payload) >= SEALED_BYTES_MIN
    return is_box and not is_json(payload)
