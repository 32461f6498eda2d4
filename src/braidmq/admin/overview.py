"""The overview: the broker at a glance, and the principal of the key.

    GET /api/overview
    GET /api/session     {"version", "dev"}, and with a key {"principal", "admin"}

The session is the dashboard's first question, asked with a key or without.
"""

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import MAYBE_KEY, Endpoint, answered
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.base.build import compiled_modules, hot_modules, is_compiled
from braidmq.broker.authorize import ADMIN, authorize


class Build(msgspec.Struct, frozen=True):
    """Which of the hot modules run compiled, and which interpreted."""

    compiled: bool
    compiled_modules: list[str]
    interpreted_modules: list[str]


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The broker at a glance; `backlog` counts messages that wait for a consumer.

    `subscriptions` are the rows of `/api/subscriptions`: consumers of queues are among them.
    `messages_dropped` found no room, in a queue or in memory; of `messages_refused` their
    publishers know. `tls` names the listeners that accept TLS only. `alarms` are sentences
    about what an operator should see to, while the broker works on.
    """

    version: str
    dev: bool
    ready: bool
    reason: str
    alarms: list[str]
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
    messages_dropped: int
    messages_refused: int
    backlog: int
    dead_letters: int
    memory_bytes: int
    memory_limit_bytes: int
    rss_bytes: int
    recovery_seconds: float
    log_bytes: int
    committed_id: int


class Overview(BrokerFacts, frozen=True, kw_only=True):
    """The facts, the principal of the key that asked, and the build."""

    principal: str
    admin: bool
    build: Build


class Session(msgspec.Struct, frozen=True):
    """The broker, and the key's principal; with `dev`, the key `dev-key` is valid."""

    version: str
    dev: bool
    principal: str | msgspec.UnsetType = msgspec.UNSET
    admin: bool | msgspec.UnsetType = msgspec.UNSET


def session_endpoints(
    find_principal: FindPrincipal, *, version: str, dev: bool
) -> list[Endpoint]:
    """Return `/api/session`."""

    async def show(request: Request) -> Response:
        if "authorization" not in request.headers:
            return answered(Session(version, dev))
        principal = principal_of(request, find_principal)
        is_admin = authorize(principal, ADMIN, "")
        return answered(Session(version, dev, principal.name, is_admin))

    return [
        Endpoint(
            method="GET",
            path="/api/session",
            handler=show,
            summary="Show the broker's version, and the principal of the key.",
            answer=Session,
            key=MAYBE_KEY,
        )
    ]


@functools.cache
def build() -> Build:
    """Return which hot modules run compiled."""
    # Cached: it reads the file system, and cannot change while the process runs.
    compiled = compiled_modules()
    interpreted = [name for name in hot_modules() if name not in compiled]
    return Build(is_compiled(), compiled, interpreted)
