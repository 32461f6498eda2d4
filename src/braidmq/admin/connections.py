"""Connections over HTTP: list them, one by one or by client, and close one.

    GET    /api/clients?after=&limit=                {"clients": [...], "next", "total", ...}
    GET    /api/connections?after=&limit=&client=    {"connections": [...], "next", "total"}
    DELETE /api/connections/{id}                     {"id"}

A client is a principal at an address: programs open a connection for each thing that they do,
and no strand tells which of them belong together. A key sees its own connections, an
administrator sees all. Unknown values are null.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.paging import name_bytes, page_after, page_by_id, place_of
from braidmq.admin.http.parameters import AFTER, LIMIT, Name, iso, text
from braidmq.admin.http.refusals import UnknownThingError
from braidmq.admin.http.requests import allow
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.server.strands.listeners import Listener, OpenConnection

ID: Final = Name("id", "The connection's id.", whole=True)
CLIENT: Final = text("client", "Show only the connections of the client with this id.")


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


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client: the connections of a principal from one address.

    `strands` counts them by strand, `since` is when the oldest was opened. Bytes are those of
    the strands that count them.
    """

    id: str
    principal: str | None
    address: str
    strands: dict[str, int]
    connections: int
    since: str
    subscriptions: int
    in_bytes: int | None
    out_bytes: int | None


class ClientsPage(msgspec.Struct, frozen=True):
    """Clients by principal and address, the next `after`, and how many there are in all.

    `connections` is how many connections they have together.
    """

    clients: list[ClientRow]
    next: str | None
    total: int
    connections: int


class ClosedConnection(msgspec.Struct, frozen=True):
    """The connection that was closed."""

    id: int


class Connections:
    """The connections of every listener; there are none before recovery is done."""

    def __init__(self, find_listeners: Callable[[], Sequence[Listener]]) -> None:
        self._find_listeners = find_listeners

    async def page(
        self, *, after: str, limit: int, of: Principal | None, client: str = ""
    ) -> ConnectionsPage:
        """Return up to *limit* connections after *after*, all or those of one principal.

        With *client*, only those of the client with this id.

        Raises:
            BadCursorError: *after* is not the `next` of a page.
        """
        place = place_of(after)
        lines = self._lines()  # copied on the event loop, made into rows on the thread
        rows = (
            ((line.number, 0), _row(line))
            for line in lines
            if (of is None or line.principal == of.name)
            and (not client or client_id(line) == client)
        )
        return ConnectionsPage(
            *await asyncio.to_thread(page_by_id, rows, place, limit, _name_bytes)
        )

    async def clients(self, *, after: str, limit: int, of: Principal | None) -> ClientsPage:
        """Return up to *limit* clients after *after*, all or those of one principal."""
        lines = self._lines()
        own = (line for line in lines if of is None or line.principal == of.name)
        return await asyncio.to_thread(_clients_page, own, after, limit)

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

    @keyed("GET /api/clients", AFTER, LIMIT)
    async def get_clients(self, request: Request, principal: Principal) -> ClientsPage:
        """List the clients that are connected, by principal and address."""
        of = restricted_to(principal)
        return await self.clients(after=AFTER.of(request), limit=LIMIT.of(request), of=of)

    @keyed("GET /api/connections", AFTER, LIMIT, CLIENT)
    async def get_connections(self, request: Request, principal: Principal) -> ConnectionsPage:
        """List the open connections of all strands."""
        return await self.page(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            of=restricted_to(principal),
            client=CLIENT.of(request),
        )

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


def address_of(peer: str) -> str:
    """Return the address of a peer, without the port if it has one."""
    if peer.startswith("["):
        return peer[1:].partition("]")[0]
    host, _, port = peer.rpartition(":")
    # An IPv6 address without a port has colons, too.
    return host if ":" not in host and host and port.isdigit() else peer


def client_id(line: OpenConnection) -> str:
    """Return the id of the client that a connection belongs to."""
    return f"{quote(line.principal or '', safe='')}@{address_of(line.peer)}"


def _clients_page(lines: Iterable[OpenConnection], after: str, limit: int) -> ClientsPage:
    groups: dict[str, list[OpenConnection]] = {}
    for line in lines:
        groups.setdefault(client_id(line), []).append(line)
    page, following = page_after(groups.items(), after, limit, lambda key, _: name_bytes(key))
    rows = [_client_row(group) for group in page]
    return ClientsPage(rows, following, len(groups), sum(map(len, groups.values())))


def _client_row(group: list[OpenConnection]) -> ClientRow:
    first = group[0]
    strands = Counter(line.strand for line in group)
    return ClientRow(
        id=client_id(first),
        principal=first.principal,
        address=address_of(first.peer),
        strands=dict(sorted(strands.items())),
        connections=len(group),
        since=iso(min(line.since_us for line in group)),
        subscriptions=sum(line.subscriptions for line in group),
        in_bytes=_sum(line.in_bytes for line in group),
        out_bytes=_sum(line.out_bytes for line in group),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


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
