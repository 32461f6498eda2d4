"""Dead letters over HTTP: where they are, what each says of its end, and how to send them back.

    GET  /api/dead-letters?after=&limit=           {"queues": [...], "next": name or null}
    GET  /api/dead-letters?queue=&from=&limit=     {"letters": [...], "next": offset or null}
    POST /api/dead-letters/replay                  {"queue", "count"}: {"queue", "replayed"}

Letters are shown while they wait or are with a consumer, oldest first, without their payload;
a page may be short, and `next` says whether more may follow. Purging is done by their queue's
own address: to this API it is a queue like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from braidmq.admin.queues import QueuesPage, iso
from braidmq.admin.requests import (
    KeySource,
    allow,
    body_of,
    limit_of,
    name_in,
    object_of,
    offset_of,
    principal_of,
)
from braidmq.broker.authorize import LIST_QUEUES, PURGE_QUEUE, SUBSCRIBE, authorize

REPLAYING: Final = frozenset({"queue", "count"})
"""What a replay may say."""

REPLAY_COUNT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter; `size` is that of its payload, in bytes."""

    offset: int
    message_id: str
    reason: str
    death_queue: str
    attempts: int
    timestamp_us: int
    size: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class LettersPage:
    """Letters by offset, and the offset to go on from, or None when there are no more."""

    letters: list[Letter]
    next_offset: int | None


class LetterSource(Protocol):
    """Who has the dead letters.

    Each raises RefusedError: it is no queue of dead letters, or not now.
    """

    def page(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> QueuesPage:
        """Return up to *limit* visible queues of dead letters with names behind *after*."""
        ...

    async def letters(self, queue: str, *, from_offset: int, limit: int) -> LettersPage:
        """Return up to *limit* letters that are not settled, from an offset on."""
        ...

    async def replay(self, queue: str, count: int | None) -> int:
        """Send the oldest letters back, all when *count* is None; return how many went."""
        ...


def letter_routes(keys: KeySource, source: LetterSource) -> list[Route]:
    """Return everything below `/api/dead-letters`."""

    async def show(request: Request) -> JSONResponse:
        principal = principal_of(request, keys)
        queue = request.query_params.get("queue")
        if queue is None:
            page = source.page(
                after=request.query_params.get("after", ""),
                limit=limit_of(request),
                visible=lambda name: authorize(principal, LIST_QUEUES, name),
            )
            return JSONResponse(_queues_as_json(page))
        # Whoever may consume or destroy letters may look at them; to know of the queue's
        # existence is not enough, because headers are the publisher's.
        if not authorize(principal, SUBSCRIBE, queue):
            allow(principal, PURGE_QUEUE, queue)
        found = await source.letters(
            queue, from_offset=offset_of(request), limit=limit_of(request)
        )
        letters = [_as_json(letter) for letter in found.letters]
        return JSONResponse({"letters": letters, "next": found.next_offset})

    async def replay(request: Request) -> JSONResponse:
        principal = principal_of(request, keys)
        given = object_of(await body_of(request), REPLAYING)
        queue = name_in(given, "queue")
        allow(principal, PURGE_QUEUE, queue)
        replayed = await source.replay(queue, _count(given.get("count")))
        return JSONResponse({"queue": queue, "replayed": replayed})

    return [
        Route("/api/dead-letters", show),
        Route("/api/dead-letters/replay", replay, methods=["POST"]),
    ]


def _count(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is int and 1 <= value <= REPLAY_COUNT_MAX:
        return value
    raise HTTPException(400, f"count: must be a whole number from 1 to {REPLAY_COUNT_MAX}")


def _queues_as_json(page: QueuesPage) -> dict[str, object]:
    rows = [
        {
            "queue": facts.name,
            "messageCount": facts.waiting,
            "inFlight": facts.in_flight,
            "subscriberCount": facts.subscribers,
        }
        for facts in page.queues
    ]
    return {"queues": rows, "next": page.queues[-1].name if page.more and rows else None}


def _as_json(letter: Letter) -> dict[str, object]:
    return {
        "offset": letter.offset,
        "id": letter.message_id,
        "reason": letter.reason,
        "deathQueue": letter.death_queue,
        "attempts": letter.attempts,
        "timestamp": iso(letter.timestamp_us),
        "size": letter.size,
        "headers": letter.headers,
    }
