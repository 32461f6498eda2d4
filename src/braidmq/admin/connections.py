"""Connections over HTTP: list them, and close one.

    GET    /api/connections?after=&limit=    {"connections": [...], "next", "total"}
    DELETE /api/connections/{id}             {"id"}

A key sees its own connections, an administrator sees all. Unknown values are null.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.paging import name_bytes, page_by_id, place_of
from braidmq.admin.http.parameters import AFTER, LIMIT, Name, iso
from braidmq.admin.http.refusals import UnknownThingError
from braidmq.admin.http.requests import allow
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.server.strands.listeners import Listener, OpenConnection

ID: Final = Name("id", "The connection's id.", whole=True)


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

    @keyed("GET /api/connections", AFTER, LIMIT)
    async def get_connections(self, request: Request, principal: Principal) -> ConnectionsPage:
        """List the open connections of all strands."""
        of = restricted_to(principal)
        return await self.page(after=AFTER.of(request), limit=LIMIT.of(request), of=of)

    @keyed("DELETE /api/connections/{id}", ID, refusals=(404, 503))
    async def delete_connection(
        self, request: Request, principal: Principal
    ) -> ClosedConnection:
        """Close a connection; for administrators."""
        allow(principal, ADMIN, "")
        return ClosedConnection(self.close(request.path_params["id"]))


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
