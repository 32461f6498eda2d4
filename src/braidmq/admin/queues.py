"""Queues over HTTP: look at them, declare, delete and purge them.

    GET    /api/queues?after=&limit=&search=&sort=    {"queues": [...], "next", "total"}
    GET    /api/queues/{name}           one queue
    POST   /api/queues                  {"name", ...}: 201, or 200 when it is there already
    DELETE /api/queues/{name}           {"name"}
    POST   /api/queues/{name}/purge     {"name", "purged"}

A queue is shown in the words that declare it, and what was not declared is null. A change is
answered once it is committed; how it is made, the QueueSource knows.
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
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH, Choice, Name, iso
from braidmq.admin.http.requests import (
    KeySource,
    allow,
    body_of,
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
from braidmq.broker.dead_letters import QUEUE_NAME_CHARACTERS_MAX
from braidmq.wire.vibe.messages import QUEUE_NAME_PATTERN, is_queue_name
from braidmq.wire.vibe.queue_options import (
    COUNT_MAX,
    MODES,
    STRATEGIES,
    TIMESPAN_PATTERN,
    TTL_MS_MAX,
    OptionError,
    QueueFacts,
    QueueOptions,
    read_options,
)

_NAMES: Final = (Name("queue", "The queue's name."),)

_NameOrNone = Annotated[
    str,
    Meta(
        max_length=QUEUE_NAME_CHARACTERS_MAX,
        extra_json_schema={"pattern": QUEUE_NAME_PATTERN},
    ),
]
_Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
_Mode = Annotated[str, Meta(extra_json_schema={"enum": list(MODES)})]
_Strategy = Annotated[str, Meta(extra_json_schema={"enum": list(STRATEGIES)})]
_Ms = Annotated[int, Meta(ge=0, le=TTL_MS_MAX)]
_Span = Annotated[str, Meta(extra_json_schema={"pattern": TIMESPAN_PATTERN})]


class DeclaredQueue(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """A queue to be declared; what is left out is the broker's to choose.

    It is read by `read_options`, as a strand reads it, and this is what that takes.
    """

    name: Annotated[_NameOrNone, Meta(min_length=1)]
    delivery_mode: _Mode | Annotated[int, Meta(ge=0, lt=len(MODES))] | None = None
    max_queue_size: _Count | None = None
    message_ttl: _Ms | _Span | None = None
    enable_dead_letter_queue: bool | None = None
    dead_letter_queue_name: _NameOrNone | None = None  # an empty one is none
    overflow_strategy: _Strategy | Annotated[int, Meta(ge=0, lt=len(STRATEGIES))] | None = None
    max_retry_attempts: _Count | None = None
    durable: bool | None = None


DECLARING: Final = frozenset(DeclaredQueue.__struct_encode_fields__)
"""What a declaration may say."""


class ShownQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue in the words that declare it; null is no limit."""

    name: str
    message_count: int
    in_flight: int
    subscriber_count: int
    delivery_mode: str
    max_queue_size: int | None
    overflow_strategy: str
    message_ttl: int | None
    max_retry_attempts: int | None
    enable_dead_letter_queue: bool
    dead_letter_queue_name: str | None
    durable: bool
    created_at: str


class QueuesList(msgspec.Struct, frozen=True):
    """Queues in the order that was asked for, where to go on, and how many fit the search."""

    queues: list[ShownQueue]
    next: str | None
    total: int


class DeletedQueue(msgspec.Struct, frozen=True):
    """The queue that is no more."""

    name: str


class PurgedQueue(msgspec.Struct, frozen=True):
    """The queue, and how many messages it has let go of."""

    name: str
    purged: int


BY_NAME: Final = "name"
SORT: Final = Choice(
    "sort", "By name, or by how many messages wait, most first.", (BY_NAME, "waiting")
)


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """Queues in the order that was asked for, where to go on, and how many there are."""

    queues: list[QueueFacts]
    next: str | None
    total: int


class QueueSource(Protocol):
    """Who has the queues. What changes something returns once it is committed.

    Each raises RefusedError: there is no such queue, it exists otherwise, or not now.
    """

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool], sort: str = BY_NAME
    ) -> QueuesPage:
        """Return up to *limit* visible queues behind *after*, sorted by one of SORT's."""
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


def queue_endpoints(keys: KeySource, source: QueueSource) -> list[Endpoint]:
    """Return everything below `/api/queues`."""
    return [*_looking(keys, source), *_changing(keys, source)]


def _looking(keys: KeySource, source: QueueSource) -> list[Endpoint]:
    async def list_queues(request: Request) -> Response:
        principal = principal_of(request, keys)
        wanted = SEARCH.of(request).casefold()
        page = await source.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            visible=lambda name: (
                wanted in name.casefold() and authorize(principal, LIST_QUEUES, name)
            ),
            sort=SORT.of(request),
        )
        return answered(QueuesList([as_json(q) for q in page.queues], page.next, page.total))

    async def show(request: Request) -> Response:
        name = request.path_params["queue"]
        allow(principal_of(request, keys), QUEUE_INFO, name)
        return answered(as_json(source.facts(name)))

    return [
        Endpoint(
            method="GET",
            path="/api/queues",
            handler=list_queues,
            summary="The queues, a page at a time.",
            tag="queues",
            query=(AFTER, LIMIT, SEARCH, SORT),
            answer=QueuesList,
            refusals=(503,),
        ),
        Endpoint(
            method="GET",
            path="/api/queues/{queue}",
            handler=show,
            summary="One queue.",
            tag="queues",
            names=_NAMES,
            answer=ShownQueue,
            refusals=(404, 503),
        ),
    ]


def _changing(keys: KeySource, source: QueueSource) -> list[Endpoint]:
    async def create(request: Request) -> Response:
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
        return answered(as_json(source.facts(name)), 201 if is_new else 200)

    async def delete(request: Request) -> Response:
        name = request.path_params["queue"]
        allow(principal_of(request, keys), DELETE_QUEUE, name)
        await source.delete(name)
        return answered(DeletedQueue(name))

    async def purge(request: Request) -> Response:
        name = request.path_params["queue"]
        allow(principal_of(request, keys), PURGE_QUEUE, name)
        return answered(PurgedQueue(name, await source.purge(name)))

    return [
        Endpoint(
            method="POST",
            path="/api/queues",
            handler=create,
            summary="Declare a queue; 200 when it is there already, with the same options.",
            tag="queues",
            body=DeclaredQueue,
            answer=ShownQueue,
            statuses=(201, 200),
            refusals=(409, 503),
        ),
        Endpoint(
            method="DELETE",
            path="/api/queues/{queue}",
            handler=delete,
            summary="End a queue, with all that waits in it; its dead letters stay.",
            tag="queues",
            names=_NAMES,
            answer=DeletedQueue,
            refusals=(404, 503),
        ),
        Endpoint(
            method="POST",
            path="/api/queues/{queue}/purge",
            handler=purge,
            summary="Let go of everything that waits in a queue.",
            tag="queues",
            names=_NAMES,
            answer=PurgedQueue,
            refusals=(404, 503),
        ),
    ]


def as_json(facts: QueueFacts) -> ShownQueue:
    """Return a queue as the API shows it; null is no limit, times are in ms and ISO 8601."""
    return ShownQueue(
        name=facts.name,
        message_count=facts.waiting,
        in_flight=facts.in_flight,
        subscriber_count=facts.subscribers,
        delivery_mode=MODES[facts.mode],
        max_queue_size=facts.max_size or None,
        overflow_strategy=STRATEGIES[facts.overflow],
        message_ttl=facts.ttl_ms or None,
        max_retry_attempts=facts.max_attempts or None,
        enable_dead_letter_queue=facts.dead_letters,
        dead_letter_queue_name=facts.dead_letter_name or None,
        durable=facts.durable,
        created_at=iso(facts.created_us),
    )
