"""Topics over HTTP: found, sorted, a page at a time, and one with all that is known of it.

    GET /api/topics?after=&limit=&search=&sort=    {"topics": [...], "next", "total"}
    GET /api/topics/{topic}                        one topic

Whoever may publish to a topic or read it sees it, and an administrator all.
"""

import functools
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH, Choice, Name
from braidmq.admin.http.requests import KeySource, allow, principal_of
from braidmq.broker.authorize import ADMIN, PUBLISH, SUBSCRIBE, Principal, authorize

SORT: Final = Choice(
    "sort",
    "By name, by the number of messages, or the latest first.",
    ("name", "messages", "last"),
)

Visible = Callable[[str], bool]
"""Says whether a name may be shown; None in its place: every name."""


class TopicSnapshot(msgspec.Struct, frozen=True):
    """One topic as a list shows it; the count is over all restarts."""

    name: str
    messages: int
    last_offset: int
    subscriptions: int


class TopicsPage(msgspec.Struct, frozen=True):
    """Topics in the order that was asked for, where to go on, and how many fit the search."""

    topics: list[TopicSnapshot]
    next: str | None
    total: int


class TopicDetail(msgspec.Struct, frozen=True):
    """One topic; the first offset is that of the oldest message which is still in the log."""

    name: str
    messages: int
    last_offset: int
    first_offset: int | None
    subscriptions: int
    is_queue: bool
    schema: str | None
    last_timestamp: str | None


class TopicSource(Protocol):
    """Who has the topics. Each raises RefusedError: not now, or there is no such topic."""

    async def page(
        self, *, after: str, limit: int, search: str, sort: str, visible: Visible | None
    ) -> TopicsPage:
        """Return up to *limit* visible topics behind *after*."""
        ...

    async def detail(self, name: str) -> TopicDetail:
        """Return all that is known of one topic."""
        ...


def topic_endpoints(keys: KeySource, source: TopicSource) -> list[Endpoint]:
    """Return `/api/topics` and what is right below it."""

    async def list_topics(request: Request) -> Response:
        principal = principal_of(request, keys)
        page = await source.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            search=SEARCH.of(request),
            sort=SORT.of(request),
            visible=visible_to(principal),
        )
        return answered(page)

    async def show(request: Request) -> Response:
        principal = principal_of(request, keys)
        name = request.path_params["topic"]
        if not may_see(principal, name):
            allow(principal, SUBSCRIBE, name)
        return answered(await source.detail(name))

    return [
        Endpoint(
            method="GET",
            path="/api/topics",
            handler=list_topics,
            summary="The topics, a page at a time.",
            tag="topics",
            query=(AFTER, LIMIT, SEARCH, SORT),
            answer=TopicsPage,
            refusals=(503,),
        ),
        Endpoint(
            method="GET",
            path="/api/topics/{topic}",
            handler=show,
            summary="One topic.",
            tag="topics",
            names=(Name("topic", "The topic's name."),),
            answer=TopicDetail,
            refusals=(404, 503),
        ),
    ]


def visible_to(principal: Principal) -> Visible | None:
    """Return what says whether *principal* may see a topic; None when it may see all."""
    if authorize(principal, ADMIN, ""):
        return None
    return functools.partial(may_see, principal)


def may_see(principal: Principal, topic: str) -> bool:
    """Say whether *principal* may know that there is a topic of this name."""
    return any(authorize(principal, kind, topic) for kind in (ADMIN, SUBSCRIBE, PUBLISH))
