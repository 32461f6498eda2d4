"""Queues over HTTP: list, show, declare, delete and purge them.

    GET    /api/queues?after=&limit=&search=&sort=    {"queues": [...], "next", "total"}
    GET    /api/queues/{name}           one queue
    POST   /api/queues                  {"name", ...}: 201, or 200 if it exists already
    DELETE /api/queues/{name}           {"name"}
    POST   /api/queues/{name}/purge     {"name", "purged"}

The fields of a queue have the names of the options that declare it; an option that was not
given is null. A change is answered once the log has committed it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import answered, keyed
from braidmq.admin.http.paging import name_bytes, page_after, ranked_page
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH, Name, choice, iso
from braidmq.admin.http.refusals import (
    ForbiddenNameError,
    OverQuotaError,
    QueueExistsError,
    UnknownQueueError,
)
from braidmq.admin.http.requests import allow, body_of, name_in, object_of, shown
from braidmq.broker import dead_letters
from braidmq.broker.authorize import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    LIST_QUEUES,
    PURGE_QUEUE,
    QUEUE_INFO,
    Principal,
    authorize,
    lacks_for_letters,
)
from braidmq.broker.dead_letters import QUEUE_NAME_CHARACTERS_MAX
from braidmq.broker.delivery.queue import QUEUES_MAX, TOO_MANY, Queue
from braidmq.broker.quotas import Account
from braidmq.broker.topics import Topic
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.requests import FindEngine, UnavailableError, changing, running
from braidmq.server.strands.vibe.queues import declared_policy, facts_of
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

RANKED_AT_ONCE: Final = 1_000
"""Queues ranked before the event loop serves others: there may be many thousand."""

QUEUE: Final = Name("queue", "The queue's name.")

_NameOrNone = Annotated[
    str,
    Meta(
        max_length=QUEUE_NAME_CHARACTERS_MAX, extra_json_schema={"pattern": QUEUE_NAME_PATTERN}
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
    """A queue to declare; options that are left out get their defaults.

    `read_options` reads the body, as on the Vibe strand; this describes what it accepts.
    """

    name: Annotated[_NameOrNone, Meta(min_length=1)]
    delivery_mode: _Mode | Annotated[int, Meta(ge=0, lt=len(MODES))] | None = None
    max_queue_size: _Count | None = None
    message_ttl: _Ms | _Span | None = None
    enable_dead_letter_queue: bool | None = None
    dead_letter_queue_name: _NameOrNone | None = None  # empty: the default
    overflow_strategy: _Strategy | Annotated[int, Meta(ge=0, lt=len(STRATEGIES))] | None = None
    max_retry_attempts: _Count | None = None
    durable: bool | None = None


DECLARING: Final = frozenset(DeclaredQueue.__struct_encode_fields__)
"""The fields of a declaration."""


class ShownQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue, with the options that declare it; null means no limit."""

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
    """Queues in the requested order, the next `after`, and how many match the search."""

    queues: list[ShownQueue]
    next: str | None
    total: int


class DeletedQueue(msgspec.Struct, frozen=True):
    """The queue that was deleted."""

    name: str


class PurgedQueue(msgspec.Struct, frozen=True):
    """The queue, and how many messages were purged."""

    name: str
    purged: int


BY_NAME: Final = "name"
SORT: Final = choice(
    "sort", "Sort by name, or by backlog, largest first.", (BY_NAME, "waiting")
)


class Queues:
    """The broker's queues. The endpoints check permissions before they call a method."""

    def __init__(self, find_engine: FindEngine) -> None:
        self._find_engine = find_engine

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool], sort: str = BY_NAME
    ) -> QueuesList:
        """Return up to *limit* visible queues after *after*, by name or by backlog.

        Raises:
            BadCursorError: *after* is not the `next` of a page with this sort.
            UnavailableError: The broker is still recovering.
        """
        queues = running(self._find_engine()).broker.queues.by_name
        if sort == BY_NAME:
            found, following, total = await page_of(
                list(queues), queues, after=after, limit=limit, visible=visible
            )
            return QueuesList([as_json(facts) for facts in found], following, total)
        chosen = await asyncio.to_thread(_chosen, list(queues), visible)
        ranked: list[tuple[int, str, Queue]] = []
        for at in range(0, len(chosen), RANKED_AT_ONCE):
            # On the event loop: the broker changes queues while a thread would count.
            some = _still_there(queues, chosen[at : at + RANKED_AT_ONCE])
            ranked += [(queue.waiting(), queue.topic.name, queue) for queue in some]
            await asyncio.sleep(0)
        page, following = await asyncio.to_thread(ranked_page, ranked, after=after, limit=limit)
        rows = [as_json(facts_of(queue)) for queue in page]
        return QueuesList(rows, following, len(ranked))

    def facts(self, name: str) -> QueueFacts:
        """Return one queue.

        Raises:
            UnknownQueueError: There is no such queue.
            UnavailableError: The broker is still recovering.
        """
        return facts_of(_found(running(self._find_engine()), name))

    async def create(
        self, name: str, options: QueueOptions, by: Principal | None = None
    ) -> bool:
        """Declare a queue; return whether it is new.

        *by* asks for it, and it counts towards the quotas of *by*; None is the broker.

        Raises:
            OptionError: An option is not valid for this queue.
            ForbiddenNameError: *by* may not have its dead letters sent there.
            OverQuotaError: *by* may make no more queues or topics.
            QueueExistsError: It exists with other options.
            UnavailableError: The broker cannot commit it now.
        """
        engine = changing(self._find_engine())
        queues = engine.broker.queues
        if options.dead_letter_name == dead_letters.queue_for(name):
            options.dead_letter_name = None  # the default, and not another option
        policy = declared_policy(name, options, queues.new_policy(name))
        letters = policy.dead_letter_name
        lacking = "" if by is None or not letters else lacks_for_letters(by, letters)
        if lacking:
            raise ForbiddenNameError(
                f"deadLetterQueueName: this API key lacks the permission {lacking} on {letters}"
            )
        queue = queues.by_name.get(name)
        is_new = queue is None
        if queue is None:
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            topic, owner = _topic_of_new(engine, name, by)
            queue = queues.declare(topic, policy, engine.now_us(), owner)
        elif queue.policy.values() != policy.values():
            raise QueueExistsError
        # Also if it exists: another request may have just declared it, uncommitted so far.
        await engine.waiters.committed(queue.id)
        return is_new

    async def delete(self, name: str) -> None:
        """Delete a queue and its messages; its dead letters stay.

        Raises:
            UnknownQueueError: There is no such queue.
            UnavailableError: The broker cannot commit it now.
        """
        engine = changing(self._find_engine())
        record_id = engine.broker.queues.delete(_found(engine, name))
        await engine.waiters.committed(record_id, lasts=True)

    async def purge(self, name: str) -> int:
        """Purge a queue; return how many messages waited in it.

        Raises:
            UnknownQueueError: There is no such queue.
            UnavailableError: The broker cannot commit it now.
        """
        engine = changing(self._find_engine())
        purged = engine.broker.queues.purge(_found(engine, name), engine.now_us())
        await engine.waiters.committed(engine.broker.barrier(), lasts=True)
        return purged

    @keyed("GET /api/queues", AFTER, LIMIT, SEARCH, SORT)
    async def get_queues(self, request: Request, principal: Principal) -> QueuesList:
        """List the queues, a page at a time."""
        wanted = SEARCH.of(request).casefold()
        return await self.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            visible=lambda name: (
                wanted in name.casefold() and authorize(principal, LIST_QUEUES, name)
            ),
            sort=SORT.of(request),
        )

    @keyed("GET /api/queues/{queue}", QUEUE, refusals=(404, 503))
    async def get_queue(self, request: Request, principal: Principal) -> ShownQueue:
        """Show one queue."""
        name = request.path_params["queue"]
        allow(principal, QUEUE_INFO, name)
        return as_json(self.facts(name))

    @keyed(
        "POST /api/queues",
        body=DeclaredQueue,
        answer=ShownQueue,
        statuses=(201, 200),
        refusals=(409, 503),
    )
    async def post_queue(self, request: Request, principal: Principal) -> Response:
        """Declare a queue; 200 if it exists already with the same options."""
        body = await body_of(request)
        name = name_in(object_of(body, DECLARING), "name")
        allow(principal, CREATE_QUEUE, name)
        if not is_queue_name(name):
            rule = "is not 1 to 256 letters, digits, hyphens, underscores and dots"
            raise HTTPException(400, f"name: {shown(name)} {rule}")
        try:
            is_new = await self.create(name, read_options({}, body), principal)
        except OptionError as error:
            raise HTTPException(400, str(error)) from None
        return answered(as_json(self.facts(name)), 201 if is_new else 200)

    @keyed("DELETE /api/queues/{queue}", QUEUE, refusals=(404, 503))
    async def delete_queue(self, request: Request, principal: Principal) -> DeletedQueue:
        """Delete a queue and its messages; its dead letters stay."""
        name = request.path_params["queue"]
        allow(principal, DELETE_QUEUE, name)
        await self.delete(name)
        return DeletedQueue(name)

    @keyed("POST /api/queues/{queue}/purge", QUEUE, refusals=(404, 503))
    async def post_purge(self, request: Request, principal: Principal) -> PurgedQueue:
        """Purge a queue: remove every message that waits in it."""
        name = request.path_params["queue"]
        allow(principal, PURGE_QUEUE, name)
        return PurgedQueue(name, await self.purge(name))


def as_json(facts: QueueFacts) -> ShownQueue:
    """Return a queue as the API shows it: null means no limit, times are ms and ISO 8601."""
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


async def page_of(
    names: Collection[str],
    queues: dict[str, Queue],
    *,
    after: str,
    limit: int,
    visible: Callable[[str], bool],
) -> tuple[list[QueueFacts], str | None, int]:
    """Return up to *limit* visible queues among *names* after *after*, by name.

    Also returned are the next `after`, and how many queues are visible in all.
    """
    chosen = await asyncio.to_thread(_chosen, names, visible)
    pairs = ((name, name) for name in chosen)
    first, following = await asyncio.to_thread(
        page_after, pairs, after, limit, lambda name, _: name_bytes(name)
    )
    return [facts_of(queue) for queue in _still_there(queues, first)], following, len(chosen)


def _chosen(names: Collection[str], visible: Callable[[str], bool]) -> list[str]:
    return [name for name in names if visible(name)]


def _still_there(queues: dict[str, Queue], names: Iterable[str]) -> list[Queue]:
    """Return the queues of these names that have not been deleted since they were chosen."""
    return [queues[name] for name in names if name in queues]


def _topic_of_new(
    engine: Engine, name: str, principal: Principal | None
) -> tuple[Topic, Account | None]:
    """Return the topic of a queue that is declared now, and to whom the queue is charged.

    Raises:
        OverQuotaError: *principal* may make no more queues or topics.
        UnavailableError: The broker has too many.
    """
    topics = engine.broker.topics
    owner = None if principal is None else topics.accounts.of(principal.name)
    refusal = "" if principal is None else engine.broker.queues.refusal(name, principal)
    if refusal and refusal != TOO_MANY:
        raise OverQuotaError(refusal)
    is_full = bool(refusal) or len(engine.broker.queues.by_name) >= QUEUES_MAX
    topic = None if is_full else topics.make(name, owner)
    if topic is None:
        raise UnavailableError(TOO_MANY)
    return topic, owner


def _found(engine: Engine, name: str) -> Queue:
    queue = engine.broker.queues.by_name.get(name)
    if queue is None:
        raise UnknownQueueError
    return queue
