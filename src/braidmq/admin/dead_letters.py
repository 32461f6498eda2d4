"""Dead letters over HTTP: where they are, what each says of its end, and how to send them back.

    GET  /api/dead-letters?after=&limit=        {"queues": [...], "next": name or null, "total"}
    GET  /api/dead-letters?queue=&from=&limit=  {"letters": [...], "next": offset or null}
    POST /api/dead-letters/replay     {"queue", "count" or "offset"}: {"queue", "replayed"}

Letters are shown while they wait or are with a consumer, oldest first, payloads as messages';
a page may be short, and `next` says whether more may follow. Purging is done by their queue's
own address: to this API it is a queue like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import AFTER, FROM, LIMIT, Text, iso
from braidmq.admin.http.requests import (
    KeySource,
    allow,
    body_of,
    name_in,
    object_of,
    principal_of,
)
from braidmq.admin.messages import SHOWN_BYTES_MAX, shown_payload
from braidmq.admin.queues import QueuesPage
from braidmq.broker.authorize import LIST_QUEUES, PURGE_QUEUE, SUBSCRIBE, authorize

REPLAY_COUNT_MAX: Final = 2**31 - 1
SIGNED_MAX: Final = 2**63 - 1
"""Above every offset, and as far as JSON is read without doubt."""

QUEUE: Final = Text("queue", "The queue whose letters are shown.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter."""

    offset: int
    message_id: str
    reason: str
    death_queue: str
    attempts: int
    timestamp_us: int
    payload: bytes
    headers: dict[str, str]
    sealed: bool


class LetterQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue of dead letters, and how many wait in it."""

    queue: str
    message_count: int
    in_flight: int
    subscriber_count: int


class LetterQueuesList(msgspec.Struct, frozen=True):
    """Queues of dead letters by name, the name to go on behind, and how many there are."""

    queues: list[LetterQueue]
    next: str | None
    total: int


class ShownLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A dead letter: what it says of its end, and what its publisher gave it."""

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
    """Letters by offset, and the offset to go on from."""

    letters: list[ShownLetter]
    next: int | None


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which letters to send back: so many of the oldest, the one at an offset, or all."""

    queue: Annotated[str, Meta(min_length=1)]
    count: Annotated[int, Meta(ge=1, le=REPLAY_COUNT_MAX)] | None = None
    offset: Annotated[int, Meta(ge=1, le=SIGNED_MAX)] | None = None


_ONE_OF: Final = {name: {"type": "integer"} for name in ("count", "offset")}
_Replay = Annotated[
    Replay,
    Meta(extra_json_schema={"not": {"properties": _ONE_OF, "required": list(_ONE_OF)}}),
]


class Replayed(msgspec.Struct, frozen=True):
    """How many letters went back."""

    queue: str
    replayed: int


REPLAYING: Final = frozenset(Replay.__struct_encode_fields__)
"""What a replay may say."""


@dataclass(frozen=True, slots=True)
class LettersPage:
    """Letters by offset, and the offset to go on from, or None when there are no more."""

    letters: list[Letter]
    next_offset: int | None


class LetterSource(Protocol):
    """Who has the dead letters.

    Each raises RefusedError: it is no queue of dead letters, or not now.
    """

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool]
    ) -> QueuesPage:
        """Return up to *limit* visible queues of dead letters with names behind *after*."""
        ...

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersPage:
        """Return up to *limit* letters that are not settled, from an offset on."""
        ...

    async def replay(self, queue: str, count: int | None) -> int:
        """Send the oldest letters back, all when *count* is None; return how many went."""
        ...

    async def replay_one(self, queue: str, offset: int) -> None:
        """Send the letter at an offset back."""
        ...


def letter_endpoints(keys: KeySource, source: LetterSource) -> list[Endpoint]:
    """Return everything below `/api/dead-letters`."""

    async def show(request: Request) -> Response:
        principal = principal_of(request, keys)
        queue = QUEUE.given(request)
        from_offset = FROM.of(request)
        if queue is None:
            page = await source.page(
                after=AFTER.of(request),
                limit=LIMIT.of(request),
                visible=lambda name: authorize(principal, LIST_QUEUES, name),
            )
            return answered(_queues_as_json(page))
        # Whoever may consume or destroy letters may look at them; to know of the queue's
        # existence is not enough, because headers are the publisher's.
        if not authorize(principal, SUBSCRIBE, queue):
            allow(principal, PURGE_QUEUE, queue)
        found = await source.letters(queue, from_offset=from_offset, limit=LIMIT.of(request))
        letters = [_as_json(letter) for letter in found.letters]
        return answered(LettersList(letters, found.next_offset))

    async def replay(request: Request) -> Response:
        principal = principal_of(request, keys)
        given = object_of(await body_of(request), REPLAYING)
        queue = name_in(given, "queue")
        allow(principal, PURGE_QUEUE, queue)
        count = _whole(given, "count", REPLAY_COUNT_MAX)
        offset = _whole(given, "offset", SIGNED_MAX)
        if offset is None:
            return answered(Replayed(queue, await source.replay(queue, count)))
        if count is not None:
            raise HTTPException(400, "give one of count and offset")
        await source.replay_one(queue, offset)
        replayed = 1
        return answered(Replayed(queue, replayed))

    return [
        Endpoint(
            method="GET",
            path="/api/dead-letters",
            handler=show,
            summary="The queues of dead letters; with `queue`, the letters in one of them.",
            tag="dead letters",
            query=(QUEUE, AFTER, FROM, LIMIT),
            answer=(LetterQueuesList, LettersList),
            refusals=(404, 503),
        ),
        Endpoint(
            method="POST",
            path="/api/dead-letters/replay",
            handler=replay,
            summary="Send dead letters back to where they came from, oldest first.",
            tag="dead letters",
            body=_Replay,
            answer=Replayed,
            refusals=(404, 409, 503),
        ),
    ]


def _whole(given: dict[str, object], key: str, most: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if type(value) is int and 1 <= value <= most:
        return value
    raise HTTPException(400, f"{key}: must be a whole number from 1 to {most}")


def _queues_as_json(page: QueuesPage) -> LetterQueuesList:
    rows = [
        LetterQueue(
            queue=facts.name,
            message_count=facts.waiting,
            in_flight=facts.in_flight,
            subscriber_count=facts.subscribers,
        )
        for facts in page.queues
    ]
    return LetterQueuesList(rows, page.next, page.total)


def _as_json(letter: Letter) -> ShownLetter:
    payload, encoding, encoded = shown_payload(letter.payload, SHOWN_BYTES_MAX)
    return ShownLetter(
        offset=letter.offset,
        id=letter.message_id,
        reason=letter.reason,
        death_queue=letter.death_queue,
        attempts=letter.attempts,
        timestamp=iso(letter.timestamp_us),
        payload=payload,
        payload_base64=encoded,
        encoding=encoding,
        size=len(letter.payload),
        sealed=letter.sealed,
        truncated=len(letter.payload) > SHOWN_BYTES_MAX,
        headers=letter.headers,
    )
