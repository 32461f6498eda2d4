"""The overview: the broker at a glance, and who looks at it.

GET /api/overview
"""

import functools
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.requests import KeySource, principal_of
from braidmq.base.build import compiled_modules, hot_modules, is_compiled
from braidmq.broker.authorize import ADMIN, authorize


class Build(msgspec.Struct, frozen=True):
    """Which of the hot modules run compiled."""

    compiled: bool
    compiled_modules: list[str]
    interpreted_modules: list[str]


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is worth knowing at a glance; `backlog` are messages that wait for a consumer.

    `tls` are those of the listeners that take nothing else.
    """

    version: str
    dev: bool
    ready: bool
    reason: str
    started: str
    uptime_s: float
    fsync: str
    topics: int
    subscriptions: int
    queues: int
    connections: dict[str, int]
    listeners: dict[str, str | None]
    tls: list[str]
    messages_published: int
    messages_delivered: int
    messages_inflight: int
    backlog: int
    dead_letters: int
    memory_bytes: int
    memory_limit_bytes: int
    rss_bytes: int
    recovery_seconds: float
    log_bytes: int
    committed_id: int


class Overview(BrokerFacts, frozen=True, kw_only=True):
    """The facts, who asks for them, and what they were made with."""

    principal: str
    admin: bool
    build: Build


class OverviewSource(KeySource, Protocol):
    """Who knows the broker."""

    def overview(self) -> BrokerFacts:
        """Return what is worth knowing at a glance."""
        ...


def overview_endpoints(source: OverviewSource) -> list[Endpoint]:
    """Return `/api/overview`."""

    async def show(request: Request) -> Response:
        principal = principal_of(request, source)
        facts = source.overview()
        overview = Overview(
            **msgspec.structs.asdict(facts),
            principal=principal.name,
            admin=authorize(principal, ADMIN, ""),
            build=_build(),
        )
        return answered(overview)

    return [
        Endpoint(
            method="GET",
            path="/api/overview",
            handler=show,
            summary="The broker at a glance.",
            answer=Overview,
        )
    ]


@functools.cache
def _build() -> Build:
    # Found out once: it looks into the file system, and does not change while we run.
    compiled = compiled_modules()
    interpreted = [name for name in hot_modules() if name not in compiled]
    return Build(is_compiled(), compiled, interpreted)
