"""Connections over HTTP: list them, and close one.

    GET    /api/connections?after=&limit=    {"connections": [...], "next", "total"}
    DELETE /api/connections/{id}             {"id"}

A key sees its own connections, an administrator sees all. Unknown values are null.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.paging import name_bytes, page_by_id, place_of
from braidmq.admin.http.parameters import AFTER, LIMIT, Name, iso
from braidmq.admin.http.refusals import UnknownThingError
from braidmq.admin.http.requests import FindPrincipal, allow, principal_of
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.server.strands.listeners import Listener, OpenConnection


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One connection; `in_bytes` and `out_bytes` are counted on the wire."""

    id: int
    strand: str
    peer: str
    principal: str | None
    since: str
    subscriptions: int
    in_bytes: int | None
    out_bytes: int | None


class ConnectionsPage(msgspec.Struct, frozen=True):
    """Connections by id, the `after` of the next page, and how many there are in all."""

    connections: list[ConnectionRow]
    next: str | None
    total: int


class ClosedConnection(msgspec.Struct, frozen=True):
    """The connection that was closed."""

    id: int


class Connections:
    """The connections of every listener; there are none before recovery is done."""

    def __init__(self, find_listeners: Callable[[], Sequence[Listener]]) -> None:
        self._find_listeners = find_listeners

    async def page(self, *, after: str, limit: int, of: Principal | None) -> ConnectionsPage:
        """Return up to *limit* connections after *after*, all or those of one principal.

        Raises:
            BadCursorError: *after* is not the `next` of a page.
        """
        place = place_of(after)
        lines = self._lines()  # copied on the event loop, made into rows on the thread
        rows = (
            ((line.number, 0), _row(line))
            for line in lines
            if of is None or line.principal == of.name
        )
        return ConnectionsPage(
            *await asyncio.to_thread(page_by_id, rows, place, limit, _name_bytes)
        )

    def close(self, connection_id: str) -> int:
        """Close a connection; return its id.

        Raises:
            UnknownThingError: There is no such connection.
        """
        for line in self._lines():
            if str(line.number) == connection_id:
                line.close()
                return line.number
        raise UnknownThingError("no such connection")

    def _lines(self) -> list[OpenConnection]:
        return [
            line for listener in self._find_listeners() for line in listener.open_connections()
        ]


def connection_endpoints(
    find_principal: FindPrincipal, connections: Connections
) -> list[Endpoint]:
    """Return `/api/connections`."""

    async def show(request: Request) -> Response:
        of = restricted_to(principal_of(request, find_principal))
        page = await connections.page(after=AFTER.of(request), limit=LIMIT.of(request), of=of)
        return answered(page)

    async def close(request: Request) -> Response:
        allow(principal_of(request, find_principal), ADMIN, "")
        return answered(ClosedConnection(connections.close(request.path_params["id"])))

    return [
        Endpoint(
            method="GET",
            path="/api/connections",
            handler=show,
            summary="List the open connections of all strands.",
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
    ]


def restricted_to(principal: Principal) -> Principal | None:
    """Return whose rows *principal* may see: its own, or None for an administrator's all."""
    return None if authorize(principal, ADMIN, "") else principal


def _row(line: OpenConnection) -> ConnectionRow:
    return ConnectionRow(
        id=line.number,
        strand=line.strand,
        peer=line.peer,
        principal=line.principal,
        since=iso(line.since_us),
        subscriptions=line.subscriptions,
        in_bytes=line.in_bytes,
        out_bytes=line.out_bytes,
    )


def _name_bytes(row: ConnectionRow) -> int:
    return name_bytes(row.principal or "")
