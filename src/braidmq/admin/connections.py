"""Connections and what is subscribed to, over HTTP.

    GET    /api/connections?after=&limit=             {"connections": [...], "next", "total"}
    DELETE /api/connections/{id}                      {"id"}
    GET    /api/subscriptions?after=&limit=&search=   {"subscriptions": [...], "next", "total"}

Whoever asks sees its own, and an administrator all. What cannot be known is null.
"""

from typing import Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import AFTER, LIMIT, Name, Text
from braidmq.admin.http.requests import KeySource, allow, principal_of
from braidmq.broker.authorize import ADMIN, Principal, authorize

TOPIC_SEARCH: Final = Text("search", "Show only topics that have this in them, in any case.")


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One connection; the bytes are those of the wire."""

    id: int
    strand: str
    peer: str
    principal: str | None
    since: str
    subscriptions: int
    in_bytes: int | None
    out_bytes: int | None


class ConnectionsPage(msgspec.Struct, frozen=True):
    """Connections by their ids, the one to go on behind, and how many there are."""

    connections: list[ConnectionRow]
    next: str | None
    total: int


class ClosedConnection(msgspec.Struct, frozen=True):
    """The connection that is closed."""

    id: int


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, follower or consumer of a queue.

    `lag` are messages that wait; an upper bound where only the place in the log is known.
    `connection` is one that uses it now, or null.
    """

    id: str
    topic: str
    strand: str
    principal: str
    qos: int
    lag: int
    in_flight: int
    connection: int | None


class SubscriptionsPage(msgspec.Struct, frozen=True):
    """Subscriptions by their ids, the one to go on behind, and how many fit the search."""

    subscriptions: list[SubscriptionRow]
    next: str | None
    total: int


class ConnectionSource(Protocol):
    """Who has them. *of* is whose are wanted, None: everybody's.

    Each raises RefusedError: not now, there is no such connection, or a bad *after*.
    """

    async def connections(
        self, *, after: str, limit: int, of: Principal | None
    ) -> ConnectionsPage:
        """Return up to *limit* connections behind *after*."""
        ...

    async def subscriptions(
        self, *, after: str, limit: int, search: str, of: Principal | None
    ) -> SubscriptionsPage:
        """Return up to *limit* subscriptions behind *after*."""
        ...

    def close(self, connection_id: str) -> int:
        """Close a connection; return its id."""
        ...


def connection_endpoints(keys: KeySource, source: ConnectionSource) -> list[Endpoint]:
    """Return `/api/connections` and `/api/subscriptions`."""

    def asker(request: Request) -> Principal | None:
        principal = principal_of(request, keys)
        return None if authorize(principal, ADMIN, "") else principal

    async def list_connections(request: Request) -> Response:
        of = asker(request)
        page = await source.connections(after=AFTER.of(request), limit=LIMIT.of(request), of=of)
        return answered(page)

    async def list_subscriptions(request: Request) -> Response:
        of = asker(request)
        page = await source.subscriptions(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            search=TOPIC_SEARCH.of(request),
            of=of,
        )
        return answered(page)

    async def close(request: Request) -> Response:
        allow(principal_of(request, keys), ADMIN, "")
        return answered(ClosedConnection(source.close(request.path_params["id"])))

    return [
        Endpoint(
            method="GET",
            path="/api/connections",
            handler=list_connections,
            summary="The open connections of all strands.",
            tag="connections",
            query=(AFTER, LIMIT),
            answer=ConnectionsPage,
            refusals=(503,),
        ),
        Endpoint(
            method="DELETE",
            path="/api/connections/{id}",
            handler=close,
            summary="Close a connection; for administrators.",
            tag="connections",
            names=(Name("id", "The connection's id.", whole=True),),
            answer=ClosedConnection,
            refusals=(404, 503),
        ),
        Endpoint(
            method="GET",
            path="/api/subscriptions",
            handler=list_subscriptions,
            summary="What is subscribed to, by whom, and how far behind.",
            tag="connections",
            query=(AFTER, LIMIT, TOPIC_SEARCH),
            answer=SubscriptionsPage,
            refusals=(503,),
        ),
    ]
