"""Publishing over HTTP.

    POST /api/topics/{topic}/messages?timestamp=    201 {"offset"}, and "timestamp" if asked for

A string payload is published as its text, unless `encoding` is `json`; any other JSON is
published as its own bytes, as they were sent. Whatever `messages.py` shows can be posted again
unchanged. A publish obeys the rules of every strand, and is answered once it is committed.
"""

import asyncio
import base64
import binascii
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.parameters import TOPIC, choice, iso
from braidmq.admin.http.refusals import OverQuotaError, QueueFullError
from braidmq.admin.http.requests import BODY_BYTES_MAX, allow, body_of, is_small, shown
from braidmq.admin.messages import PATH
from braidmq.base import refusals
from braidmq.base.limits import KIB, MESSAGE_BYTES_MAX, MIB, TOPIC_BYTES_MAX
from braidmq.broker import admission
from braidmq.broker.authorize import PUBLISH, Principal
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.topics import (
    HEADER_BYTES_MAX,
    ORIGIN_HTTP,
    TOO_MANY,
    Message,
    Topic,
    encode_headers,
    is_brokers_header,
)
from braidmq.broker.topics import body_of as broker_body_of
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, running
from braidmq.wire.vibe.messages import HEADERS_MAX

PAYLOAD_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 2 * TOPIC_BYTES_MAX
"""So that a frame of Blip, whose length counts the topic as well, can carry it."""

HEADERS_BYTES_MAX: Final = 64 * KIB
"""All headers of one message."""

POST_BYTES_MAX: Final = 4 * MESSAGE_BYTES_MAX // 3 + MIB
"""A body with the largest payload in base64, and its headers."""

PRIORITY_MAX: Final = 3

WITH_TIME: Final = choice(
    "timestamp", "Answer with the time of the message, too.", ("false", "true")
)

LARGE_AT_ONCE_MAX: Final = 2
"""Bodies above BODY_BYTES_MAX in memory at once; others wait before theirs is read."""

ROOM_WAIT_S: Final = 5.0
"""How long a publish waits for room, in the log's batches or in a queue that blocks."""

BASE64_PATTERN: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
"""Base64 as a JSON Schema pattern."""

_Base64 = Annotated[
    str, Meta(extra_json_schema={"contentEncoding": "base64", "pattern": BASE64_PATTERN})
]
_HeaderName = Annotated[str, Meta(min_length=1)]
_False = Annotated[bool, Meta(extra_json_schema={"const": False})]


class Published(msgspec.Struct, frozen=True):
    """The offset of the message; null for one that is kept in memory only.

    With `timestamp=true` also when it was accepted; null for a repetition of another message,
    and for one that is kept in memory only.
    """

    offset: int | None
    timestamp: str | msgspec.UnsetType | None = msgspec.UNSET


class Posted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message to publish: either `payload` or `payload_base64`; the rest is optional.

    The fields from `offset` to `sealed` are set by the broker. They are accepted as they are
    shown, so that a message can be posted again, and ignored.
    """

    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: _Base64 | msgspec.UnsetType = msgspec.UNSET
    encoding: Literal["json", "text", "base64"] | msgspec.UnsetType = msgspec.UNSET
    headers: dict[_HeaderName, str] = msgspec.field(default_factory=dict)
    qos: Annotated[int, Meta(ge=0, le=1)] = 1
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 1
    offset: int | None = None
    timestamp: str | None = None
    id: str | None = None
    size: int | None = None
    origin: str | None = None
    sealed: bool = False
    truncated: _False = False


_OnePayload = Annotated[
    Posted,
    Meta(
        extra_json_schema={
            "oneOf": [{"required": [name]} for name in ("payload", "payload_base64")]
        }
    ),
]


class Publishing:
    """Publishes that arrive over HTTP."""

    def __init__(self, find_engine: FindEngine) -> None:
        self._find_engine = find_engine
        self._large = asyncio.Semaphore(LARGE_AT_ONCE_MAX)

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: dict[str, str],
        qos: int,
        priority: int,
        by: Principal | None = None,
    ) -> int | None:
        """Publish a message; return its offset once it is committed, None if it has none.

        *by* publishes it, and is judged when it goes in: its body may have taken a while to
        arrive, and its queue to have room. None is the broker itself.

        Raises:
            HTTPException: 403, *by* may not publish there.
            QueueFullError: The queue is full.
            OverQuotaError: *by* may make no more topics.
            UnavailableError: The broker cannot accept it now. If the log failed, the message
                may be stored nevertheless.
        """
        posted = Posted(headers=headers, qos=qos, priority=priority)
        return (await self._publish(topic, payload, posted, by))[0]

    async def _publish(
        self, topic: str, payload: bytes, posted: Posted, by: Principal | None
    ) -> tuple[int | None, int]:
        """Publish as above; return the time as well, 0 if the message was there before."""
        engine = running(self._find_engine())
        found = _topic_of(engine, topic, by)
        message = Message(found, posted.qos, broker_body_of(found, payload))
        message.origin = ORIGIN_HTTP
        message.priority = posted.priority
        headers = posted.headers
        # Dropped, not refused: a message that was shown can be posted as it is, with what the
        # broker had added.
        kept = {key: value for key, value in headers.items() if not is_brokers_header(key)}
        message.headers = encode_headers(kept)
        given, timestamp_us = await _admitted(
            engine, message, headers.get(DEDUP_HEADER, ""), by
        )
        return await _told(engine, given), timestamp_us

    @keyed(
        f"POST {PATH}", TOPIC, WITH_TIME, body=_OnePayload, statuses=(201,), refusals=(409, 503)
    )
    async def post_message(self, request: Request, principal: Principal) -> Published:
        """Publish a message; answered once it is durable."""
        topic = request.path_params["topic"]
        allow(principal, PUBLISH, topic)
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise HTTPException(400, f"a topic has at most {TOPIC_BYTES_MAX} bytes of UTF-8")
        if is_small(request):
            return await self._take(request, topic, principal)
        async with self._large:
            return await self._take(request, topic, principal)

    async def _take(self, request: Request, topic: str, principal: Principal) -> Published:
        with_time = WITH_TIME.of(request) == "true"  # before it is published: it may be refused
        body = await body_of(request, POST_BYTES_MAX)
        if len(body) <= BODY_BYTES_MAX:
            posted, payload = taken(body)
        else:
            posted, payload = await asyncio.to_thread(taken, body)
        offset, timestamp_us = await self._publish(topic, payload, posted, principal)
        if not with_time:
            return Published(offset)
        return Published(offset, iso(timestamp_us) if timestamp_us else None)


def _topic_of(engine: Engine, name: str, by: Principal | None) -> Topic:
    topics = engine.broker.topics
    found = topics.make(name, None) if by is None else topics.open(name, by)
    if found is not None:
        return found
    if topics.refusal == TOO_MANY:
        raise UnavailableError(TOO_MANY)
    raise OverQuotaError(topics.refusal)


async def _admitted(
    engine: Engine, message: Message, dedup_id: str, by: Principal | None
) -> tuple[int, int]:
    """Wait for room, store the message or its dead letter; return the id and time it has.

    Raises:
        HTTPException: 403, *by* may not publish it, or no longer.
        QueueFullError: The queue is full.
        UnavailableError: The broker cannot accept it now.
    """
    broker = engine.broker
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ROOM_WAIT_S
    # Judged again after each wait: another publisher may have taken the room, or the broker
    # may have begun to drain.
    while True:
        if message.topic.gone:  # deleted while this waited
            raise UnavailableError("the topic was deleted; retry")
        if by is not None:
            allow(by, PUBLISH, message.topic.name)
        verdict = broker.admission.judge(message, dedup_id, engine.now_us())
        if verdict in {admission.GO, admission.REDIRECT}:
            stored = broker.accept(verdict, message, dedup_id, engine.now_us())
            return stored.id, stored.timestamp_us
        if verdict == admission.DUPLICATE:
            return broker.admission.known_id, 0
        if verdict == admission.REFUSED:
            raise UnavailableError(broker.admission.reason)
        if verdict == admission.FULL:
            raise QueueFullError
        try:
            await _room(engine, message, verdict, deadline - loop.time())
        except (QueueFullError, UnavailableError):
            broker.admission.gave_up()
            raise


async def _room(engine: Engine, message: Message, verdict: int, within_s: float) -> None:
    """Wait until the admission would no longer have a publish wait.

    Raises:
        QueueFullError: The queue stayed full.
        UnavailableError: The log stayed behind, failed, or the broker drains.
    """
    admits = engine.broker.admission
    if await engine.waiters.until(lambda: not admits.must_wait(message), within_s=within_s):
        return
    if verdict == admission.STARVED:
        raise UnavailableError("the log cannot keep up; retry later")
    raise QueueFullError


async def _told(engine: Engine, given: int) -> int | None:
    if given == 0:  # kept in memory only: there is no commit to wait for
        engine.end_turn()
        return None
    await engine.waiters.committed(given)
    return given


def taken(body: bytes) -> tuple[Posted, bytes]:
    """Return the message in a body, and its payload; on any thread.

    Raises:
        HTTPException: 400 or 413, as the two below.
    """
    posted = read_posted(body)
    return posted, payload_of(posted)


def read_posted(body: bytes) -> Posted:
    """Return the message in a body.

    Raises:
        HTTPException: 400, the body is not a message.
    """
    try:
        body.decode()  # msgspec does not check the UTF-8 of a payload that it keeps raw
        posted = msgspec.json.decode(body, type=Posted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, shown(f"the body is not a message: {error}", 200)) from None
    _check_headers(posted.headers)
    return posted


def _check_headers(headers: dict[str, str]) -> None:
    # The broker's own are dropped later, so a dead letter that was shown may have more.
    count = sum(not is_brokers_header(name) for name in headers)
    if count > HEADERS_MAX:
        raise HTTPException(400, f"headers: {count}, at most {HEADERS_MAX}")
    sizes = [len(text.encode()) for header in headers.items() for text in header]
    if sum(sizes) > HEADERS_BYTES_MAX:
        raise HTTPException(400, f"headers: more than {HEADERS_BYTES_MAX} bytes")
    if max(sizes, default=0) > HEADER_BYTES_MAX:
        raise HTTPException(400, f"headers: a name is longer than {HEADER_BYTES_MAX} bytes")


def payload_of(posted: Posted) -> bytes:
    """Return the payload in bytes.

    Raises:
        HTTPException: 400, there is not exactly one payload; 413, it is too large.
    """
    given = [f for f in (posted.payload, posted.payload_base64) if f is not msgspec.UNSET]
    if len(given) != 1:
        raise HTTPException(400, "give one of payload and payload_base64")
    if posted.truncated:
        raise HTTPException(
            400, "truncated: the payload is incomplete; fetch the whole message first"
        )
    try:
        if isinstance(posted.payload_base64, str):
            payload = base64.b64decode(posted.payload_base64, validate=True)
        else:
            assert isinstance(posted.payload, msgspec.Raw)
            payload = bytes(posted.payload)
            if payload.startswith(b'"') and posted.encoding != "json":
                payload = msgspec.json.decode(payload, type=str).encode()
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, f"the payload cannot be decoded: {error}") from None
    if len(payload) > PAYLOAD_BYTES_MAX:
        text = refusals.by_bound("the payload is too long", PAYLOAD_BYTES_MAX, "bytes")
        raise HTTPException(413, text)
    return payload
