"""Messages over HTTP: browsed in the log, looked at one by one, and published.

    GET  /api/topics/{topic}/messages?from=&time=&limit=&order=   {"messages": [...], "next"}
    GET  /api/topics/{topic}/messages/{offset}                    one message, whole
    POST /api/topics/{topic}/messages                             201 {"offset"}

A payload is shown as the JSON that it is, to the letter; else as text; else in base64.
Posted, a string is the text itself, unless `encoding` says that it is JSON, and any other JSON
is its own bytes, as they were sent. What is shown can be posted again as it is.
Looking at a message changes nothing for those who consume it.
"""

import asyncio
import base64
import binascii
import codecs
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import FROM, LIMIT, Choice, Moment, Name, Whole, iso
from braidmq.admin.http.requests import (
    BODY_BYTES_MAX,
    KeySource,
    allow,
    body_of,
    is_small,
    number_of,
    principal_of,
    shown,
)
from braidmq.base.ids import ID_MAX
from braidmq.base.limits import KIB, MESSAGE_BYTES_MAX, MIB, TOPIC_BYTES_MAX
from braidmq.base.strict_json import is_json
from braidmq.broker.authorize import PUBLISH, SUBSCRIBE

SHOWN_BYTES_MAX: Final = 64 * KIB
"""What a page shows of one payload; the rest is `truncated`."""

PAYLOAD_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 2 * TOPIC_BYTES_MAX
"""So that a frame of Blip, whose length counts the topic as well, can carry it."""

HEADERS_BYTES_MAX: Final = 64 * KIB
"""All headers of a posted message."""

POST_BYTES_MAX: Final = 4 * MESSAGE_BYTES_MAX // 3 + MIB
"""A body with the largest payload in base64, and its headers."""

PRIORITY_MAX: Final = 3

ORDER: Final = Choice("order", "Oldest first, or newest first.", ("asc", "desc"))
TIME: Final = Moment("time", "Begin with the first message that is not older than this.")
FROM_ANY: Final = Whole(
    "from",
    "The offset to begin with: the first one to show, or with `desc` the one that all shown "
    "are before.",
    1,
    ID_MAX,
    None,
    FROM.rule,
)

_PATH: Final = "/api/topics/{topic}/messages"
_TOPIC: Final = Name("topic", "The topic's name.")
_Utf8: Final = codecs.getincrementaldecoder("utf-8")

LARGE_AT_ONCE_MAX: Final = 2
"""Bodies above BODY_BYTES_MAX that are read and published at once; others wait for them."""

BASE64_PATTERN: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
"""Base64 in JSON Schema's words."""

_Base64 = Annotated[
    str, Meta(extra_json_schema={"contentEncoding": "base64", "pattern": BASE64_PATTERN})
]
_HeaderName = Annotated[str, Meta(min_length=1)]
_False = Annotated[bool, Meta(extra_json_schema={"const": False})]


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message as the log has it."""

    offset: int
    timestamp_us: int
    payload: bytes
    message_id: str
    headers: dict[str, str]
    qos: int
    priority: int
    origin: str
    sealed: bool


class StoredPage(msgspec.Struct, frozen=True):
    """Messages in the order that was asked for, and the offset to go on from, or None."""

    messages: list[StoredMessage]
    next_offset: int | None


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in JSON; either `payload` or `payload_base64` is there, `encoding` says how."""

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
    """Messages in the order that was asked for, and the offset to go on from."""

    messages: list[ShownMessage]
    next: int | None


class Published(msgspec.Struct, frozen=True):
    """Where the message is in the log; null for one that lives in memory only."""

    offset: int | None


class Posted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message to be published: one of `payload` and `payload_base64`, the rest as wanted.

    What a message is given when it is published, `offset` to `sealed`, may stand here as it is
    shown, and says nothing.
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


class MessageSource(Protocol):
    """Who reads and takes messages. Each raises RefusedError: not now, or not there."""

    async def page(
        self,
        topic: str,
        *,
        from_offset: int | None,
        time_us: int | None,
        limit: int,
        newest_first: bool,
    ) -> StoredPage:
        """Return up to *limit* messages of a topic."""
        ...

    async def one(self, topic: str, offset: int) -> StoredMessage:
        """Return one message."""
        ...

    async def publish(
        self, topic: str, payload: bytes, *, headers: dict[str, str], qos: int, priority: int
    ) -> int | None:
        """Publish a message; return its offset once it is committed, None if it has none."""
        ...


def message_endpoints(keys: KeySource, source: MessageSource) -> list[Endpoint]:
    """Return everything below `/api/topics/{topic}/messages`."""
    return [*_reading(keys, source), _publishing(keys, source)]


def _reading(keys: KeySource, source: MessageSource) -> list[Endpoint]:
    async def browse(request: Request) -> Response:
        topic = request.path_params["topic"]
        allow(principal_of(request, keys), SUBSCRIBE, topic)
        found = await source.page(
            topic,
            from_offset=FROM_ANY.given(request),
            time_us=TIME.given(request),
            limit=LIMIT.of(request),
            newest_first=ORDER.of(request) == "desc",
        )
        return await asyncio.to_thread(page_of, found)

    async def show(request: Request) -> Response:
        topic = request.path_params["topic"]
        allow(principal_of(request, keys), SUBSCRIBE, topic)
        offset = number_of(request.path_params["offset"], 0, ID_MAX)
        if not offset:
            raise HTTPException(404, "no such message: offsets are whole numbers from 1 on")
        message = await source.one(topic, offset)
        return await asyncio.to_thread(lambda: answered(as_json(message, None)))

    return [
        Endpoint(
            method="GET",
            path=_PATH,
            handler=browse,
            summary="Messages of a topic as the log has them, a page at a time.",
            tag="messages",
            names=(_TOPIC,),
            query=(FROM_ANY, TIME, LIMIT, ORDER),
            answer=MessagesPage,
            refusals=(404, 503),
        ),
        Endpoint(
            method="GET",
            path=_PATH + "/{offset}",
            handler=show,
            summary="One message, with all of its payload.",
            tag="messages",
            names=(_TOPIC, Name("offset", "The message's offset.", whole=True)),
            answer=ShownMessage,
            refusals=(404, 503),
        ),
    ]


def _publishing(keys: KeySource, source: MessageSource) -> Endpoint:
    large = asyncio.Semaphore(LARGE_AT_ONCE_MAX)

    async def publish(request: Request) -> Response:
        topic = request.path_params["topic"]
        allow(principal_of(request, keys), PUBLISH, topic)
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise HTTPException(400, f"a topic has at most {TOPIC_BYTES_MAX} bytes of UTF-8")
        if is_small(request):
            return await take(request, topic)
        async with large:
            return await take(request, topic)

    async def take(request: Request, topic: str) -> Response:
        body = await body_of(request, POST_BYTES_MAX)
        if len(body) <= BODY_BYTES_MAX:
            posted, payload = taken(body)
        else:
            posted, payload = await asyncio.to_thread(taken, body)
        offset = await source.publish(
            topic,
            payload,
            headers=posted.headers,
            qos=posted.qos,
            priority=posted.priority,
        )
        return answered(Published(offset), 201)

    return Endpoint(
        method="POST",
        path=_PATH,
        handler=publish,
        summary="Publish a message; answered when it is durable.",
        tag="messages",
        names=(_TOPIC,),
        body=_OnePayload,
        answer=Published,
        statuses=(201,),
        refusals=(409, 503),
    )


def taken(body: bytes) -> tuple[Posted, bytes]:
    """Return the message that a body asks to publish, and its payload; on any thread.

    Raises:
        HTTPException: 400 or 413, as the two below.
    """
    posted = read_posted(body)
    return posted, payload_of(posted)


def read_posted(body: bytes) -> Posted:
    """Return the message that a body asks to publish.

    Raises:
        HTTPException: 400, it is none.
    """
    try:
        body.decode()
        posted = msgspec.json.decode(body, type=Posted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, shown(f"the body is no message: {error}", 200)) from None
    if sum(len(k.encode()) + len(v.encode()) for k, v in posted.headers.items()) > (
        HEADERS_BYTES_MAX
    ):
        raise HTTPException(400, f"headers: more than {HEADERS_BYTES_MAX} bytes")
    return posted


def payload_of(posted: Posted) -> bytes:
    """Return the bytes that are to be published.

    Raises:
        HTTPException: 400, there is not exactly one payload; 413, it is too large.
    """
    given = [f for f in (posted.payload, posted.payload_base64) if f is not msgspec.UNSET]
    if len(given) != 1:
        raise HTTPException(400, "give one of payload and payload_base64")
    if posted.truncated:
        raise HTTPException(400, "truncated: this is only the beginning of a payload")
    try:
        if isinstance(posted.payload_base64, str):
            payload = base64.b64decode(posted.payload_base64, validate=True)
        else:
            assert isinstance(posted.payload, msgspec.Raw)
            payload = bytes(posted.payload)
            if payload.startswith(b'"') and posted.encoding != "json":
                payload = msgspec.json.decode(payload, type=str).encode()
    except (binascii.Error, ValueError) as error:
        raise HTTPException(400, f"the payload cannot be used: {error}") from None
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise HTTPException(413, f"the payload is longer than {PAYLOAD_BYTES_MAX} bytes")
    return payload


def page_of(found: StoredPage) -> Response:
    """Return the answer that shows a page; on any thread."""
    messages = [as_json(one, SHOWN_BYTES_MAX) for one in found.messages]
    return answered(MessagesPage(messages, found.next_offset))


def as_json(message: StoredMessage, bytes_max: int | None) -> ShownMessage:
    """Return a message as the API shows it, with *bytes_max* bytes of its payload at most."""
    payload, encoding, encoded = shown_payload(message.payload, bytes_max)
    return ShownMessage(
        offset=message.offset,
        timestamp=iso(message.timestamp_us),
        id=message.message_id or None,
        payload=payload,
        payload_base64=encoded,
        encoding=encoding,
        size=len(message.payload),
        headers=message.headers,
        qos=message.qos,
        priority=message.priority,
        origin=message.origin,
        sealed=message.sealed,
        truncated=bytes_max is not None and len(message.payload) > bytes_max,
    )


def shown_payload(
    payload: bytes, bytes_max: int | None
) -> tuple[msgspec.Raw | msgspec.UnsetType, str, str | msgspec.UnsetType]:
    """Return a payload as JSON, its encoding, and in base64 when it is no text."""
    whole = bytes_max is None or len(payload) <= bytes_max
    if whole and is_json(payload):
        return msgspec.Raw(payload), "json", msgspec.UNSET
    cut = payload if whole else payload[:bytes_max]
    try:
        # A cut may leave a character incomplete at the end: that one is left out.
        text = _Utf8().decode(cut, final=whole)
    except UnicodeDecodeError:
        return msgspec.UNSET, "base64", base64.b64encode(cut).decode()
    return msgspec.Raw(msgspec.json.encode(text)), "text", msgspec.UNSET
