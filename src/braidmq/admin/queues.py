"""Queues over HTTP: look at them, declare, delete and purge them.

    GET    /api/queues?after=&limit=    {"queues": [...], "next": name or null}
    GET    /api/queues/{name}           one queue
    POST   /api/queues                  {"name", ...}: 201, or 200 when it is there already
    DELETE /api/queues/{name}           {"name"}
    POST   /api/queues/{name}/purge     {"name", "purged"}

A queue is shown in the words that declare it, and what was not declared is null. A change is
answered once it is committed; how it is made, the QueueSource knows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from braidmq.admin.requests import (
    KeySource,
    allow,
    body_of,
    limit_of,
    name_in,
    object_of,
    principal_of,
    shown,
)
from braidmq.broker.authorize import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    LIST_QUEUES,
    PURGE_QUEUE,
    QUEUE_INFO,
    authorize,
)
from braidmq.wire.vibe.messages import is_queue_name
from braidmq.wire.vibe.queue_options import (
    MODES,
    STRATEGIES,
    OptionError,
    QueueFacts,
    QueueOptions,
    read_options,
)

DECLARING: Final = frozenset(
    {
        "name",
        "deliveryMode",
        "maxQueueSize",
        "messageTtl",
        "enableDeadLetterQueue",
        "deadLetterQueueName",
        "overflowStrategy",
        "maxRetryAttempts",
        "durable",
    }
)
"""What a declaration may say."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """Queues in the order of their names, and whether there are more behind them."""

    queues: list[QueueFacts]
    more: bool


class QueueSource(Protocol):
    """Who has the queues. What changes something returns once it is committed.

    Each raises RefusedError: there is no such queue, it exists otherwise, or not now.
    """

    def page(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> QueuesPage:
        """Return up to *limit* visible queues whose names sort behind *after*."""
        ...

    def facts(self, name: str) -> QueueFacts:
        """Return what there is to know of one queue."""
        ...

    async def create(self, name: str, options: QueueOptions) -> bool:
        """Declare a queue; say whether it is new. OptionError: an option cannot be."""
        ...

    async def delete(self, name: str) -> None:
        """End a queue, with all that waits in it."""
        ...

    async def purge(self, name: str) -> int:
        """Let go of everything that waits in a queue; return how many messages that were."""
        ...


def queue_routes(keys: KeySource, source: QueueSource) -> list[Route]:
    """Return everything below `/api/queues`."""

    async def list_queues(request: Request) -> JSONResponse:
        principal = principal_of(request, keys)
        page = source.page(
            after=request.query_params.get("after", ""),
            limit=limit_of(request),
            visible=lambda name: authorize(principal, LIST_QUEUES, name),
        )
        following = page.queues[-1].name if page.more and page.queues else None
        return JSONResponse({"queues": [as_json(q) for q in page.queues], "next": following})

    async def show(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        allow(principal_of(request, keys), QUEUE_INFO, name)
        return JSONResponse(as_json(source.facts(name)))

    async def create(request: Request) -> JSONResponse:
        principal = principal_of(request, keys)
        body = await body_of(request)
        name = name_in(object_of(body, DECLARING), "name")
        allow(principal, CREATE_QUEUE, name)
        if not is_queue_name(name):
            rule = "is not 1 to 256 letters, digits, hyphens, underscores and dots"
            raise HTTPException(400, f"name: {shown(name)} {rule}")
        try:
            is_new = await source.create(name, read_options({}, body))
        except OptionError as error:
            raise HTTPException(400, str(error)) from None
        return JSONResponse(as_json(source.facts(name)), status_code=201 if is_new else 200)

    async def delete(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        allow(principal_of(request, keys), DELETE_QUEUE, name)
        await source.delete(name)
        return JSONResponse({"name": name})

    async def purge(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        allow(principal_of(request, keys), PURGE_QUEUE, name)
        return JSONResponse({"name": name, "purged": await source.purge(name)})

    # Names may hold slashes: those of dead letters are made of any topic's.
    return [
        Route("/api/queues", list_queues),
        Route("/api/queues", create, methods=["POST"]),
        Route("/api/queues/{name:path}/purge", purge, methods=["POST"]),
        Route("/api/queues/{name:path}", delete, methods=["DELETE"]),
        Route("/api/queues/{name:path}", show),
    ]


def as_json(facts: QueueFacts) -> dict[str, object]:
    """Return a queue as the API shows it; null is no limit, times are in ms and ISO 8601."""
    return {
        "name": facts.name,
        "messageCount": facts.waiting,
        "inFlight": facts.in_flight,
        "subscriberCount": facts.subscribers,
        "deliveryMode": MODES[facts.mode],
        "maxQueueSize": facts.max_size or None,
        "overflowStrategy": STRATEGIES[facts.overflow],
        "messageTtl": facts.ttl_ms or None,
        "maxRetryAttempts": facts.max_attempts or None,
        "enableDeadLetterQueue": facts.dead_letters,
        "deadLetterQueueName": facts.dead_letter_name or None,
        "durable": facts.durable,
        "createdAt": iso(facts.created_us),
    }


def iso(moment_us: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    moment = _EPOCH + timedelta(microseconds=moment_us)
    return moment.isoformat().replace("+00:00", "Z")
